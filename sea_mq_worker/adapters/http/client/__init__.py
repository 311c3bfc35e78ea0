"""A small HTTP/1.1 client on asyncio for the many requests to one handler."""

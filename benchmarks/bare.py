"""A minimal handler: it reads a request, answers 200 and does nothing. ``bare.py PORT``."""

import asyncio
import re
import sys
from typing import cast

import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Handler(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer once the body is complete."""
        self._request += data
        head, end, body = self._request.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and len(body) >= (int(length[1]) if length else 0):
            self._request = b""
            self._transport.write(_ANSWER)


async def serve(port: int) -> None:
    """Listen until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Handler, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

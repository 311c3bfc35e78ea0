"""The admin server: health, metrics, and a page that shows what is wrong and, with a token, mends it."""

"""A database at a distance: each of its answers takes longer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

_CHUNK_BYTES = 2**18


@asynccontextmanager
async def at_distance(url: str, *, seconds: float) -> AsyncIterator[str]:
    """Yield the URL of a proxy that keeps each answer for ``seconds``; the URL itself for 0."""
    if not seconds:
        yield url
        return
    parts = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(parts.hostname, parts.port)
        with contextlib.suppress(OSError):
            await asyncio.gather(
                _pump(reader, to_server, seconds=0.0), _pump(from_server, writer, seconds=seconds)
            )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    place = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
    try:
        yield urlunsplit(parts._replace(netloc=place))
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(_CHUNK_BYTES):
        if seconds:
            loop.call_later(seconds, writer.write, data)
        else:
            writer.write(data)
            await writer.drain()
    loop.call_later(seconds, writer.close)

"""PostgreSQL's TLS in front of a server that was built without it, as a pooler offers it."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


@asynccontextmanager
async def postgres_tls(dsn: str, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Listen on 127.0.0.1 and give the DSN that leads there; without a context TLS is not offered.

    Where the context wants a client's certificate and gets none, the server's own words say so.
    """
    target = urlsplit(dsn)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                await _serve(reader, writer)
            finally:
                writer.close()

    async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(8) != _SSL_REQUEST:
            writer.write(_fatal("no pg_hba.conf entry for this host: no encryption"))
            return
        writer.write(b"N" if context is None else b"S")
        if context is None:
            return
        await writer.start_tls(context)
        secured = writer.get_extra_info("ssl_object")
        if context.verify_mode is not ssl.CERT_NONE and not secured.getpeercert():
            await reader.read(1024)
            writer.write(_fatal("connection requires a valid client certificate"))
            return
        upstream_reader, upstream_writer = await asyncio.open_connection(target.hostname, target.port)
        try:
            await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))
        finally:
            upstream_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = target.netloc.rpartition("@")[0]
    try:
        yield target._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def _fatal(text: str) -> bytes:
    named = (("S", "FATAL"), ("C", "28000"), ("M", text))
    fields = b"".join(f"{kind}{value}\0".encode() for kind, value in named)
    return b"E" + struct.pack("!i", len(fields) + 5) + fields + b"\0"

"""A TCP proxy between a client and its server that loses, holds, delays or cuts the traffic."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_CHUNK = 65536


class TcpProxy:
    """Passes bytes between clients and one server until told otherwise.

    What was dropped is gone for good, so a connection that lost bytes is only fit to be cut.

    Attributes:
        requests: how often clients sent something.
    """

    def __init__(self, host: str, port: int) -> None:
        self.requests = 0
        self._target = (host, port)
        self._flows = asyncio.Event()
        self._flows.set()
        self._drops_up = False
        self._drops_down = False
        self._garbles = False
        self._refuses = False
        self._lag_seconds = 0.0
        self._frame = b""
        self._frames_left = 0
        self._swallowing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one client's connection on."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refuses:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        own = {writer, upstream_writer}
        self._writers |= own
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream_writer, up=True))
                group.create_task(self._pump(upstream_reader, writer, up=False))
        except* OSError:
            pass
        finally:
            self._writers -= own
            for end in own:
                end.transport.abort()

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Reset every connection and take no new one."""
        self._refuses = True
        self.cut()

    def stall(self) -> None:
        """Hold all bytes back, in both directions."""
        self._flows.clear()

    def delay(self, seconds: float) -> None:
        """Pass each piece on so much later, in both directions."""
        self._lag_seconds = seconds

    def forget(self) -> None:
        """Discard all bytes of the open connections, in both directions; accept new connections."""
        self._forgotten |= self._writers

    def drop_to_server(self) -> None:
        """Discard the bytes that clients send."""
        self._drops_up = True

    def drop_to_client(self) -> None:
        """Discard the bytes that the server sends."""
        self._drops_down = True

    def garble(self) -> None:
        """Replace the bytes that the server sends by as many others."""
        self._garbles = True

    async def drop_behind(self, count: int, frame: bytes) -> None:
        """Pass the clients' bytes with ``count`` more pieces that begin with ``frame``, and nothing after.

        Returns when something was swallowed.
        """
        self._frame, self._frames_left = frame, count
        self._swallowing.clear()
        await self._swallowing.wait()

    def heal(self) -> None:
        """Pass everything again; connections that lost bytes are cut."""
        if self._drops_up or self._drops_down or self._garbles:
            self.cut()
        self._frame = b""
        self._drops_up = self._drops_down = self._refuses = self._garbles = False
        self._lag_seconds = 0.0
        self._flows.set()

    async def close(self) -> None:
        """Cut everything and wait for the end."""
        self._refuses = True
        self._flows.set()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        while data := await reader.read(_CHUNK):
            self.requests += up
            await asyncio.sleep(self._lag_seconds)
            await self._flows.wait()
            dropped = self._drops_up if up else self._drops_down
            passed = self._counted(data) if up and self._frame else data
            if self._garbles and not up:
                passed = b"#" * len(data)
            if passed and not dropped and writer not in self._forgotten:
                writer.write(passed)
                await writer.drain()
        raise ConnectionResetError

    def _counted(self, data: bytes) -> bytes:
        """Return the bytes before the first excess frame; a client sends the head of a frame whole."""
        at = data.find(self._frame)
        while at >= 0:
            if not self._frames_left:
                self._drops_up = True
                self._swallowing.set()
                return data[:at]
            self._frames_left -= 1
            at = data.find(self._frame, at + 1)
        return data


@asynccontextmanager
async def proxied(url: str, *, kind: type[TcpProxy] = TcpProxy) -> AsyncIterator[tuple[TcpProxy, str]]:
    """Put a proxy in front of a server; give it with the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = kind(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host = parts.netloc.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{port}")
    try:
        yield proxy, parts._replace(netloc=host).geturl()
    finally:
        server.close()
        with contextlib.suppress(OSError):
            await proxy.close()

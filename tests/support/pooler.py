"""A transaction pooler as hard as PgBouncer may be: each transaction comes to another session.

It takes no start-up parameter but those that PgBouncer tracks, and keeps nothing between transactions.
"""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sea_mq_worker.dev.servers import EmbeddedPostgres

_TRACKED = frozenset({"user", "database", "client_encoding", "application_name", "options"})
_SSL_REQUEST = 80877103
_PROTOCOL_3 = 196608
_IDLE = b"I"
_TERMINATE = b"X"


class _Session:
    """One session with the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = b""

    async def log_in(self, user: str, database: str) -> None:
        self.writer.write(_start_up({"user": user, "database": database}))
        while True:
            kind, body = await _message(self.reader)
            if kind == b"S":
                self.greeting += _frame(kind, body)
            if kind == b"Z":
                return


class TransactionPooler:
    """Serves any number of clients with a few sessions."""

    def __init__(self, sessions: list[_Session], *, refuses: bool, statements: bool) -> None:
        self._refuses = refuses
        self._statements = statements
        self._idle = deque(sessions)
        self._changed = asyncio.Condition()
        self._greeting = sessions[0].greeting

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client to its end."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            if await self._welcome(reader, writer):
                while (first := await _message(reader))[0] != _TERMINATE:
                    await self._transaction(first, reader, writer)
        writer.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        code, body = await _start_up_of(reader)
        if code == _SSL_REQUEST:
            writer.write(b"N")
            code, body = await _start_up_of(reader)
        given = set(body.split(b"\0")[::2]) - {b""} if code == _PROTOCOL_3 else set()
        refused = sorted(name.decode() for name in given if name.decode() not in _TRACKED)
        if (refused and self._refuses) or not given:
            text = f"unsupported startup parameter: {', '.join(refused)}"
            writer.write(_fatal(text))
            return False
        key = _frame(b"K", struct.pack("!ii", 1, 1))
        writer.write(_frame(b"R", struct.pack("!i", 0)) + self._greeting + key + _frame(b"Z", _IDLE))
        return True

    async def _transaction(
        self, first: tuple[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._idle)
            session = self._idle.popleft()
        asked = asyncio.create_task(self._pass_on(first, reader, session))
        try:
            while True:
                kind, body = await _message(session.reader)
                if kind == b"Z" and body != _IDLE and self._statements:
                    writer.write(_fatal("transaction blocks not allowed in statement pooling mode"))
                    writer.close()
                writer.write(_frame(kind, body))
                if kind == b"Z" and body == _IDLE:
                    break
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        async with self._changed:
            self._idle.append(session)
            self._changed.notify_all()

    async def _pass_on(
        self, message: tuple[bytes, bytes], reader: asyncio.StreamReader, session: _Session
    ) -> None:
        """A client says nothing more before the answer to its Sync or Query, so nothing is cut in two."""
        while True:
            session.writer.write(_frame(*message))
            message = await _message(reader)


@asynccontextmanager
async def transaction_pooler(
    server: EmbeddedPostgres, *, sessions: int = 3, refuses: bool = True, statements: bool = False
) -> AsyncIterator[str]:
    """Run a pooler before the test's own server, which then trusts every client; yield the URL.

    ``refuses`` start-up parameters that it does not track, or drops them. With ``statements`` it ends a
    client that begins a transaction, as PgBouncer does in the mode `statement`.
    """
    _trust_everybody(Path(server.folder, "data", "pg_hba.conf"))
    await server.stop()
    await server.start()
    made = [_Session(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(sessions)]
    for session in made:
        await session.log_in("postgres", "postgres")
    pooler = TransactionPooler(made, refuses=refuses, statements=statements)
    listening = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield urlsplit(server.dsn)._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
    finally:
        listening.close()
        for session in made:
            session.writer.close()


def _trust_everybody(access: Path) -> None:
    access.write_text(f"host all all 127.0.0.1/32 trust\n{access.read_text()}")


def _fatal(text: str) -> bytes:
    return _frame(b"E", f"SFATAL\0VFATAL\0C08P01\0M{text}\0\0".encode())


def _frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _start_up(parameters: dict[str, str]) -> bytes:
    pairs = "".join(f"{name}\0{value}\0" for name, value in parameters.items()).encode() + b"\0"
    return struct.pack("!ii", len(pairs) + 8, _PROTOCOL_3) + pairs


async def _start_up_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, code = struct.unpack("!ii", await reader.readexactly(8))
    return code, await reader.readexactly(size - 8)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)

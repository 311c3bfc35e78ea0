"""What every connection to PostgreSQL is opened with, and what goes wrong meanwhile."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

from sea_mq_worker.adapters.postgres.errors import NoTlsError, connecting
from sea_mq_worker.domain.addresses import postgres_address
from sea_mq_worker.domain.errors import ContractError

_DEFAULT_PORT = 5432
_SILENT_SECONDS = 10
"""A peer whose system acknowledges nothing for so long is gone."""
_TCP = {
    "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000,
    "TCP_KEEPIDLE": _SILENT_SECONDS,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
}
"""By the names of Python's socket module, as far as the platform has them."""

_ASK_FOR_TLS = struct.pack("!ll", 8, 80877103)
_NO_TLS = b"N"
_ANSWER_SECONDS = 2.0
_ANSWER_BYTES = 24


@contextlib.asynccontextmanager
async def opening(dsn: str) -> AsyncIterator[dict[str, Any]]:
    """Give what the driver takes of a DSN, and raise the domain's errors instead of its own.

    Hosts go apart from the URL: the driver parts it by urllib, which refuses some lists of them.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached or cannot serve now.
        ContractError: the DSN, the user or the database is wrong, or what answers is no PostgreSQL.
    """
    try:
        with connecting():
            rest, named = postgres_address(dsn)
            hosts = [host for host, _ in named]
            ports = [port or _DEFAULT_PORT for _, port in named] if any(port for _, port in named) else None
            yield {"dsn": rest, "host": hosts or None, "port": ports}
    except NoTlsError as error:
        answer = await _answer_to(error.host, error.port)
        if answer in {b"", _NO_TLS}:
            raise
        said = "".join(c if c.isprintable() else "." for c in answer.decode("ascii", "replace"))
        raise ContractError(
            f'what answers at {error.host}:{error.port} is no PostgreSQL (it says "{said}"); '
            "correct host and port in SEA_MQ_DATABASE_URL"
        ) from error


def notice_silence(connection: Any) -> None:
    """Let the system end a connection whose peer has gone without a word."""
    end = connection._transport.get_extra_info("socket")  # noqa: SLF001 - the driver has no option for it
    if end is None or end.family == socket.AF_UNIX:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _answer_to(host: str, port: int) -> bytes:
    """Ask for TLS as a client of PostgreSQL does; return what is answered, as far as anything is."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_ASK_FOR_TLS)
                return await reader.read(_ANSWER_BYTES)
            finally:
                writer.transport.abort()
    return b""

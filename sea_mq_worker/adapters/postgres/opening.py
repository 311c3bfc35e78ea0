"""Parameters for opening connections to PostgreSQL, and the translation of errors."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from sea_mq_worker.adapters.postgres.errors import NoTlsError, translated
from sea_mq_worker.domain.addresses import postgres_address, split_password_file
from sea_mq_worker.domain.errors import ContractError

_DEFAULT_PORT = 5432
_SILENT_SECONDS = 10
"""A peer whose system acknowledges no data for this time is considered gone."""
_TCP = {
    "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000,
    "TCP_KEEPIDLE": _SILENT_SECONDS,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
}
"""Names of Python's socket module; names that the platform lacks are skipped."""

_ASK_FOR_TLS = struct.pack("!ll", 8, 80877103)
_NO_TLS = b"N"
_ANSWER_SECONDS = 2.0
_ANSWER_BYTES = 24


@contextlib.asynccontextmanager
async def opening(dsn: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the driver's arguments for a DSN, and raise the domain's errors instead of the driver's.

    Hosts are passed apart from the URL: the driver parses it by urllib, which refuses some lists of hosts.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached or cannot serve now.
        ContractError: the DSN, the user or the database is wrong, or the server is no PostgreSQL.
    """
    try:
        with translated():
            url, password_file = split_password_file(dsn)
            rest, named = postgres_address(url)
            hosts = [host for host, _ in named]
            ports = [port or _DEFAULT_PORT for _, port in named] if any(port for _, port in named) else None
            arguments: dict[str, Any] = {"dsn": rest, "host": hosts or None, "port": ports}
            if password_file:  # the driver calls it for each connection, so a new password needs no restart
                arguments["password"] = partial(read_password, password_file)
            yield arguments
    except ValueError:  # its text quotes pieces of the DSN, perhaps of the password
        raise ContractError("the PostgreSQL DSN is not valid") from None
    except NoTlsError as error:
        answer = await _answer_to(error.host, error.port)
        if answer in {b"", _NO_TLS}:
            raise
        said = "".join(c if c.isprintable() else "." for c in answer.decode("ascii", "replace"))
        raise ContractError(
            f'what answers at {error.host}:{error.port} is no PostgreSQL (it says "{said}"); '
            "correct host and port in SEA_MQ_DATABASE_URL"
        ) from error


def read_password(path: str) -> str:
    """Read a password; white space around it does not count.

    Raises:
        OSError: the file cannot be read.
    """
    return Path(path).read_text(encoding="utf-8").strip()


def notice_silence(connection: Any) -> None:
    """Let the system close a connection whose peer vanished silently."""
    end = connection._transport.get_extra_info("socket")  # noqa: SLF001 - the driver has no option for it
    if end is None or end.family == socket.AF_UNIX:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _answer_to(host: str, port: int) -> bytes:
    """Send a TLS request as a client of PostgreSQL does; return the answer, or nothing."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_ASK_FOR_TLS)
                return await reader.read(_ANSWER_BYTES)
            finally:
                writer.transport.abort()
    return b""

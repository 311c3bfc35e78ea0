"""Connections direct to the server, for what belongs to a session: LISTEN and locks."""

from collections.abc import Mapping

import asyncpg

from sea_mq_worker.adapters.postgres.opening import notice_silence, opening
from sea_mq_worker.domain.errors import ContractError

_STATEMENT_SECONDS = 5.0
_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 1.0


async def connect_direct(dsn: str, settings: Mapping[str, str]) -> asyncpg.Connection:
    """Open a connection whose session ends with it.

    Raises:
        StoreUnavailableError: no primary can be reached.
        ContractError: a proxy is in between, which may give the session to others.
    """
    async with opening(dsn) as address:
        connection = await asyncpg.connect(
            **address,
            timeout=_CONNECT_SECONDS,
            command_timeout=_STATEMENT_SECONDS,
            server_settings=dict(settings),
            target_session_attrs="read-write",
        )
    notice_silence(connection)
    try:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
    except BaseException:
        await close_in_time(connection)
        raise
    if pid != connection.get_server_pid():
        await close_in_time(connection)
        raise ContractError("LISTEN and locks need a direct connection, and this one leads through a proxy")
    return connection


async def close_in_time(connection: asyncpg.Connection) -> None:
    """Close within bounds; a connection that is lost already, or cut off, is dropped."""
    try:
        await connection.close(timeout=_CLOSE_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()

"""Connections that know their schema, give up in time and heal by themselves."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.errors import POOLER, translated
from sea_mq_worker.adapters.postgres.opening import notice_silence, opening
from sea_mq_worker.adapters.postgres.pooler import through_pooler
from sea_mq_worker.domain.addresses import postgres_tls_files
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError, is_shortage

_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")

OPERATOR_HINTS: Mapping[str, str] = MappingProxyType(
    {"plan_cache_mode": "force_custom_plan", "enable_bitmapscan": "off"}
)
"""For statements that operators ask for: the planner knows which filters are given, and reads not all of a
backlog to list the latest of it, as it would before the first ANALYZE."""

WORKER_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "jit": "off",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_sort": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_memoize": "off",
        "plan_cache_mode": "force_generic_plan",
    }
)
"""Keep a small or never analysed table from being read whole, or sorted, at every call, and keep no rows in
mind that are asked for once."""

SERVER_MIN = 14
"""The oldest PostgreSQL that the statements are written for."""

_CLIENT_PATIENCE_SECONDS = 2.0
"""How much later than the server the client gives a statement up."""

_SLOW_SECONDS_MAX = 600
"""Longest for a statement of which an operator knows that it takes long."""

_TCP = MappingProxyType(
    {
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "30000",
    }
)
"""The server ends sessions of workers that vanished, and with them their locks."""


async def connect_pool(
    dsn: str,
    *,
    schema: str,
    size_max: int,
    application_name: str,
    statement_timeout_seconds: float,
    connect_timeout_seconds: float,
    hints: Mapping[str, str] = WORKER_HINTS,
    pooler: bool = False,
) -> asyncpg.Pool:
    """Open a pool whose statements see ``schema``, one connection at first.

    A statement that the server does not end within ``statement_timeout_seconds`` is given up a little later
    by the client, as on a server that is frozen or cut off. ``pooler``: one in transaction mode is between.

    Raises:
        StoreUnavailableError: no primary can be reached.
        ContractError: the DSN, user, password, database or schema name is wrong, TLS is refused, or the
            server is too old.
    """
    check_tls_files(dsn)
    settings = session_settings(schema, application_name) | _timeouts(statement_timeout_seconds) | dict(hints)
    async with opening(dsn) as address:
        pool = await asyncpg.create_pool(
            **address,
            min_size=0,  # more would be restored behind our back, and each failure logged
            max_size=size_max,
            timeout=connect_timeout_seconds,
            command_timeout=statement_timeout_seconds + _CLIENT_PATIENCE_SECONDS,
            target_session_attrs="read-write",
            init=_welcome,
            reset=_keep_as_is,
            **(through_pooler(settings) if pooler else {"server_settings": settings}),
        )
        if pool is None:
            raise AssertionError
        try:
            async with pool.acquire() as connection:
                await check_settings(connection, settings)
        except BaseException:
            pool.terminate()
            raise
    return pool


def _timeouts(seconds: float) -> dict[str, str]:
    milliseconds = str(int(seconds * 1000))
    return {
        "statement_timeout": milliseconds,
        "lock_timeout": str(int(seconds * 500)),
        "idle_in_transaction_session_timeout": milliseconds,
    }


async def check_settings(connection: Any, settings: Mapping[str, str]) -> None:
    """Make sure that a session, or each transaction, starts with what is asked for.

    Raises:
        ContractError: somebody in between drops it.
    """
    found = await connection.fetchval("SELECT current_setting('search_path')")
    if found.replace('"', "") != settings["search_path"].replace('"', ""):
        raise ContractError(f"PostgreSQL: the settings of a session do not arrive: {POOLER}")


async def _welcome(connection: Any) -> None:
    notice_silence(connection)
    await check_server(connection)


async def check_server(connection: Any) -> None:
    """Make sure that the server is not too old; asks it nothing.

    Raises:
        ContractError: it is; the text names its version and the oldest that will do.
    """
    version = connection.get_server_version()
    if version.major < SERVER_MIN:
        found = f"PostgreSQL {version.major}.{version.micro}"
        raise ContractError(f"{found} is too old for the worker; it needs {SERVER_MIN} or newer")


def check_tls_files(dsn: str) -> None:
    """Make sure that the files that a DSN names for TLS can be read; the driver would not name them.

    Raises:
        StoreUnavailableError: the machine can open no file now.
        ContractError: one cannot be read.
    """
    for name in postgres_tls_files(dsn):
        try:
            Path(name).open("rb").close()
        except OSError as error:
            kind = StoreUnavailableError if is_shortage(error) else ContractError
            raise kind(f"PostgreSQL: cannot read {name}, which the DSN names: {error.strerror}") from None


def session_settings(schema: str, application_name: str) -> dict[str, str]:
    """Return what every session of the worker starts with.

    Raises:
        ContractError: ``schema`` is not a plain name.
    """
    return {
        "search_path": f"{quoted_schema(schema)}, pg_temp",
        "application_name": application_name[:63],
        "jit": "off",
        **_TCP,
    }


def quoted_schema(schema: str) -> str:
    """Return ``schema`` as SQL takes it.

    Raises:
        ContractError: it is not a plain name, and might be SQL itself.
    """
    if not _SCHEMA.fullmatch(schema):
        raise ContractError(
            "the schema's name must be letters, digits and underscores, at most 63, and not begin with pg_"
        )
    return f'"{schema}"'


async def fetch(pool: asyncpg.Pool, statement: str, *args: object) -> Sequence[Any]:
    """Run one statement as its own transaction and return its rows.

    Raises:
        StoreUnavailableError: it may or may not have taken effect.
        ContractError: see ``translated``.
    """
    with translated():
        try:
            async with pool.acquire() as connection:
                return await _rows(connection, statement, args)
        except (TimeoutError, asyncpg.ReadOnlySQLTransactionError):
            # The other connections have gone silent, too, or lead to what is no primary any more.
            await pool.expire_connections()
            raise


async def fetch_with_long_timeout(pool: asyncpg.Pool, statement: str, *args: object) -> Sequence[Any]:
    """Do as ``fetch`` does for a statement that may read a whole table while somebody waits for it."""
    with translated():
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = {_SLOW_SECONDS_MAX * 1000}")
            return list(await connection.fetch(statement, *args, timeout=_SLOW_SECONDS_MAX))


async def leave_former_primary(pool: asyncpg.Pool) -> None:
    """Connect anew where the server has become read-only, which a pool that only reads would never notice.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now.
    """
    [row] = await fetch(pool, "SELECT current_setting('transaction_read_only') = 'on' AS is_read_only")
    if row["is_read_only"]:
        await pool.expire_connections()


async def _rows(connection: Any, statement: str, args: Sequence[object]) -> Sequence[Any]:
    try:
        return list(await connection.fetch(statement, *args))
    except TimeoutError:
        connection.terminate()  # or its release would wait as long again for the end of the statement
        raise


async def _keep_as_is(_: asyncpg.Connection) -> None:
    """Save the round trip of a reset: no statement of the worker changes its session."""

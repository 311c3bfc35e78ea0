"""Open connections with schema, time-outs and planner settings, and replace broken ones."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg

from sea_mq_worker.adapters.postgres.errors import POOLER, PoolerError, translated
from sea_mq_worker.adapters.postgres.opening import notice_silence, opening
from sea_mq_worker.adapters.postgres.pooler import through_pooler
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.addresses import postgres_files
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError, is_shortage

Join: TypeAlias = Callable[[asyncpg.Connection], Awaitable[None]]
"""Adds a new connection to the worker's session."""

_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")

OPERATOR_HINTS: Mapping[str, str] = {"plan_cache_mode": "force_custom_plan", "enable_bitmapscan": "off"}
"""For operators' statements: the planner knows which filters are set, and does not read a whole backlog to
list its latest rows, as it would before the first ANALYZE."""

WORKER_HINTS: Mapping[str, str] = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_memoize": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Prevent full reads and sorts of a small or never analysed table at every call, and a cache of rows that
are read only once."""

SERVER_MIN = 14
"""The oldest PostgreSQL that the statements are written for."""

_CLIENT_GRACE_SECONDS = 2.0
"""The client abandons a statement this much later than the server."""

_SLOW_SECONDS_MAX = 600
"""Time-out of operators' statements that are expected to take long."""

_FIRST, _LAST = (one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max))  # noqa: DTZ901
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_OFFSET, _LAST_OFFSET = ((one - _EPOCH) // _MICROSECOND for one in (_FIRST, _LAST))
_INFINITY = 2**63 - 1
"""PostgreSQL's time without an end, in microseconds since its epoch."""

_TCP = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
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
    join: Join | None = None,
) -> asyncpg.Pool:
    """Open a pool whose statements use ``schema``; it starts with one connection.

    If the server does not end a statement within ``statement_timeout_seconds`` (it may be frozen or cut off),
    the client abandons the statement a little later. ``pooler``: a pooler in transaction mode is in between.
    ``join`` is called with each connection before its first use.

    Raises:
        StoreUnavailableError: no primary can be reached.
        ContractError: the DSN, user, password, database or schema name is wrong, TLS is refused, or the
            server is too old.
    """
    check_files(dsn)
    settings = session_settings(schema, application_name) | _timeouts(statement_timeout_seconds) | dict(hints)
    async with opening(dsn) as address:
        pool = await asyncpg.create_pool(
            **address,
            min_size=0,  # asyncpg would reopen more in the background, and log each failure
            max_size=size_max,
            timeout=connect_timeout_seconds,
            command_timeout=statement_timeout_seconds + _CLIENT_GRACE_SECONDS,
            target_session_attrs="read-write",
            init=partial(_welcome, join=join),
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
    """Require that a session, or each transaction, starts with the given settings.

    Raises:
        ContractError: a pooler drops them.
    """
    found = await connection.fetchval("SELECT current_setting('search_path')")
    if found.replace('"', "") != settings["search_path"].replace('"', ""):
        raise PoolerError(f"PostgreSQL: the settings of a session do not arrive: {POOLER}")


async def _welcome(connection: Any, *, join: Join | None) -> None:
    notice_silence(connection)
    await check_server(connection)
    # The driver raises for a time before year 1 or after 9999: one such row would spoil its whole result.
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encode_time, decoder=_decode_time, format="tuple"
    )
    if join is not None:
        await join(connection)


def _decode_time(offset: tuple[int]) -> datetime:
    """Return a time, or one near the end of Python's calendar; infinity is its very first or last."""
    if _FIRST_OFFSET <= offset[0] <= _LAST_OFFSET:
        return _EPOCH + timedelta(microseconds=offset[0])
    if offset[0] < 0:
        return _FIRST if offset[0] < -_INFINITY else _FIRST + _MICROSECOND
    return _LAST if offset[0] == _INFINITY else _LAST - _MICROSECOND


def _encode_time(moment: datetime) -> tuple[int]:
    """Encode what ``_decode_time`` returns for infinity as infinity."""
    if moment <= _FIRST or moment >= _LAST:
        return (_INFINITY if moment >= _LAST else -_INFINITY - 1,)
    return ((moment - _EPOCH) // _MICROSECOND,)


async def check_server(connection: Any) -> None:
    """Require a supported server version, without a request.

    Raises:
        ContractError: the server is too old; the text names its version and the oldest supported one.
    """
    version = connection.get_server_version()
    if version.major < SERVER_MIN:
        found = f"PostgreSQL {version.major}.{version.micro}"
        raise ContractError(f"{found} is too old for the worker; it needs {SERVER_MIN} or newer")


def check_files(dsn: str) -> None:
    """Require that the files of a DSN can be read; the driver's error would not name the file.

    Raises:
        StoreUnavailableError: the machine can open no file now.
        ContractError: a file cannot be read.
    """
    for name in postgres_files(dsn):
        try:
            Path(name).open("rb").close()
        except OSError as error:
            kind = StoreUnavailableError if is_shortage(error) else ContractError
            raise kind(f"PostgreSQL: cannot read {name}, which the DSN names: {error.strerror}") from None


def session_settings(schema: str, application_name: str) -> dict[str, str]:
    """Return the settings with which every session of the worker starts.

    Raises:
        ContractError: ``schema`` is not a plain name.
    """
    return {
        "search_path": f"{quoted_schema(schema)}, pg_temp",
        "application_name": application_name[:63],
        "jit": "off",
        "idle_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        "standard_conforming_strings": "on",
        "quote_all_identifiers": "off",
        **_TCP,
    }


def quoted_schema(schema: str) -> str:
    """Return ``schema`` quoted for SQL.

    Raises:
        ContractError: ``schema`` is not a plain name, and might contain SQL.
    """
    if not _SCHEMA.fullmatch(schema):
        raise ContractError(
            "the schema's name must be letters, digits and underscores, at most 63, and not begin with pg_"
        )
    return f'"{schema}"'


async def fetch(pool: asyncpg.Pool, statement: str, *args: object, connection: Any = None) -> Sequence[Any]:
    """Run one statement as its own transaction and return its rows.

    ``connection``: one that the caller has acquired from the pool; None: any.

    Raises:
        StoreUnavailableError: the statement may or may not have taken effect.
        ContractError: see ``translated``.
    """
    with translated():
        try:
            async with nullcontext(connection) if connection else pool.acquire() as acquired:
                return await _rows(acquired, statement, args)
        except (TimeoutError, asyncpg.ReadOnlySQLTransactionError):
            # The other connections are silent, too, or lead to a server that is no longer the primary.
            await pool.expire_connections()
            raise


async def fetch_with_long_timeout(pool: asyncpg.Pool, statement: str, *args: object) -> Sequence[Any]:
    """Run one statement that may read a whole table, with a long time-out; otherwise like ``fetch``."""
    with translated():
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = {_SLOW_SECONDS_MAX * 1000}")
            return list(await connection.fetch(statement, *args, timeout=_SLOW_SECONDS_MAX))


async def check_connection_limit(pool: asyncpg.Pool, *, least: int, most: int) -> str:
    """Require that the login may have as many connections as a worker needs.

    Returns:
        A warning if it may have fewer than ``most``; empty otherwise.

    Raises:
        ContractError: it may have fewer than ``least``; the text names the limit.
    """
    rows = await fetch(pool, load_queries("sessions")["connection_limit"])
    if not rows or rows[0]["most"] >= most:
        return ""
    found = rows[0]
    text = f"{found['who']} allows {found['most']} connections"
    if found["most"] < least:
        raise ContractError(f"{text}; a worker needs {least}: raise the limit")
    return f"{text}, and a worker may open {most}: raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX"


async def leave_former_primary(pool: asyncpg.Pool) -> None:
    """Reconnect if the server has become read-only; a pool that only reads would never notice.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now.
    """
    [row] = await fetch(pool, "SELECT current_setting('transaction_read_only') = 'on' AS is_read_only")
    if row["is_read_only"]:
        await pool.expire_connections()


def to_storable_text(text: str) -> str:
    """Return a text that PostgreSQL can store: without NUL, and valid UTF-8."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


async def _rows(connection: Any, statement: str, args: Sequence[object]) -> Sequence[Any]:
    try:
        return list(await connection.fetch(statement, *args))
    except TimeoutError:
        connection.terminate()  # or its release would wait just as long for the end of the statement
        raise


async def _keep_as_is(_: asyncpg.Connection) -> None:
    """Save the round trip of a reset: no statement of the worker changes its session."""

"""Connections to PostgreSQL: opened by a DSN, with the schema, time-outs and planner settings of a worker.

``connect_pool`` opens what statements run on, ``connect`` one connection for what belongs to its session.
The driver finds the host that serves, and speaks TLS. It notices no silent peer, reads no password from a
file, and does not recognize another program on the server's port: this module does.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
from asyncpg.transaction import Transaction

from sea_mq_worker.errors import ContractError, StoreUnavailableError, is_shortage
from sea_mq_worker.postgres.errors import POOLER, NoTlsError, translated
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.addresses import postgres_address, postgres_files, split_password_file

SERVER_MIN = 14
"""The oldest PostgreSQL that the statements are written for."""

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

Join: TypeAlias = Callable[[asyncpg.Connection], Awaitable[None]]
"""Adds a new connection to the worker's session."""

_CONNECT_SECONDS = 10.0
_CLIENT_GRACE_SECONDS = 2.0
"""The client abandons a statement this much later than the server, which may be frozen or cut off."""
_SLOW_SECONDS_MAX = 600
"""Time-out of operators' statements that are expected to take long."""
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")


def session_settings(schema: str, application_name: str) -> dict[str, str]:
    """Return the settings with which every session of the worker starts."""
    return {
        "search_path": f"{quoted_schema(schema)}, pg_temp",
        "application_name": application_name[:63],
        "jit": "off",
        "idle_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        "standard_conforming_strings": "on",
        "quote_all_identifiers": "off",
        # The server ends sessions of workers that vanished, and with them their locks.
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "30000",
    }


def quoted_schema(schema: str) -> str:
    """Return ``schema`` quoted for SQL; refuse what is no plain name, and might contain SQL."""
    if not _SCHEMA.fullmatch(schema):
        raise ContractError(
            "the schema's name must be letters, digits and underscores, at most 63, and not begin with pg_"
        )
    return f'"{schema}"'


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

    ``pooler``: a pooler in transaction mode is in between. ``join`` is called with each connection before its
    first use. StoreUnavailableError: no primary can be reached. ContractError: the DSN, user, password,
    database or schema name is wrong, TLS is refused, or the server is too old.
    """
    milliseconds = int(statement_timeout_seconds * 1000)
    settings = session_settings(schema, application_name) | {
        "statement_timeout": str(milliseconds),
        "lock_timeout": str(milliseconds // 2),
        "idle_in_transaction_session_timeout": str(milliseconds),
        **hints,
    }

    async def welcome(connection: Any) -> None:
        _notice_silence(connection)
        check_server(connection)
        # The driver raises for a time before year 1 or after 9999: one such row would spoil its whole result.
        await connection.set_type_codec(
            "timestamptz", schema="pg_catalog", encoder=_encode_time, decoder=_decode_time, format="tuple"
        )
        if join is not None:
            await join(connection)

    async def keep_as_is(_: asyncpg.Connection) -> None:
        """Save the round trip of a reset: no statement of the worker changes its session."""

    async with _opening(dsn) as address:
        pool = await asyncpg.create_pool(
            **address,
            min_size=0,  # asyncpg would reopen more in the background, and log each failure
            max_size=size_max,
            timeout=connect_timeout_seconds,
            command_timeout=statement_timeout_seconds + _CLIENT_GRACE_SECONDS,
            target_session_attrs="read-write",
            init=welcome,
            reset=keep_as_is,
            **(_through_pooler(settings) if pooler else {"server_settings": settings}),
        )
        try:
            async with pool.acquire() as connection:
                await _check_settings(connection, settings)
        except BaseException:
            pool.terminate()
            raise
    return pool


async def connect(
    dsn: str, settings: Mapping[str, str], *, statement_seconds: float | None = None
) -> asyncpg.Connection:
    """Open one connection to the primary, whose session starts with ``settings``."""
    async with _opening(dsn) as address:
        connection = await asyncpg.connect(
            **address,
            timeout=_CONNECT_SECONDS,
            command_timeout=statement_seconds,
            server_settings=dict(settings),
            target_session_attrs="read-write",
        )
        try:
            _notice_silence(connection)
            check_server(connection)
            await _check_settings(connection, settings)
        except BaseException:
            connection.terminate()
            raise
    return connection


def check_server(connection: Any) -> None:
    """Require a supported server version, without a request."""
    version = connection.get_server_version()
    if version.major < SERVER_MIN:
        found = f"PostgreSQL {version.major}.{version.micro}"
        raise ContractError(f"{found} is too old for the worker; it needs {SERVER_MIN} or newer")


def check_files(dsn: str) -> None:
    """Require that the files of a DSN can be read; the driver's error would not name the file."""
    for name in postgres_files(dsn):
        try:
            Path(name).open("rb").close()
        except OSError as error:
            kind = StoreUnavailableError if is_shortage(error) else ContractError
            raise kind(f"PostgreSQL: cannot read {name}, which the DSN names: {error.strerror}") from None


def read_password(path: str) -> str:
    """Read a password; white space around it does not count."""
    return Path(path).read_text(encoding="utf-8").strip()


async def _check_settings(connection: Any, settings: Mapping[str, str]) -> None:
    """Require that a session, or each transaction, starts with the given settings: a pooler may drop them."""
    found = await connection.fetchval("SELECT current_setting('search_path')")
    if found.replace('"', "") != settings["search_path"].replace('"', ""):
        raise ContractError(f"PostgreSQL: the settings of a session do not arrive: {POOLER}")


# --- From the DSN to the driver's arguments.

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
async def _opening(dsn: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the driver's arguments for a DSN, and raise the domain's errors instead of the driver's.

    Hosts are passed apart from the URL: the driver parses it by urllib, which refuses some lists of hosts.
    """
    check_files(dsn)
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


def _notice_silence(connection: Any) -> None:
    """Let the system close a connection whose peer vanished silently."""
    end = connection._transport.get_extra_info("socket")  # noqa: SLF001 - the driver has no option for it
    if end is None or end.family == socket.AF_UNIX:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- Sessions behind a pooler in transaction mode, such as PgBouncer: each transaction may come to another
# one.
#
# So nothing is left in a session or expected there. What a session of the worker starts with goes with each
# transaction instead, and a statement is prepared and run inside one: five round trips instead of one.

_NOT_OF_A_TRANSACTION = ("application_name", "tcp_", "idle_session_", "default_transaction_")


def _through_pooler(settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the arguments of a pool of connections whose transactions begin with ``settings``."""
    local = "; ".join(
        f"SET LOCAL {name} = {value}"
        for name, value in settings.items()
        if not name.startswith(_NOT_OF_A_TRANSACTION)
    )

    class LocalTransaction(Transaction):  # type: ignore[misc]
        async def start(self) -> None:
            await super().start()
            if not self._nested:
                await self._connection.execute(local)

    class PooledConnection(asyncpg.Connection):  # type: ignore[misc]
        def transaction(self, **options: Any) -> Transaction:
            defaults = {"isolation": "read_committed", "readonly": False, "deferrable": False}
            return LocalTransaction(self, **(defaults | options))

        async def _execute(self, *args: Any, **options: Any) -> Any:
            """Run what fetch, fetchrow, fetchval and, with arguments, execute have in common."""
            async with nullcontext() if self.is_in_transaction() else self.transaction():
                return await super()._execute(*args, **options)

    return {
        "server_settings": {"application_name": settings["application_name"]},
        "statement_cache_size": 0,
        "connection_class": PooledConnection,
    }


# --- Times: PostgreSQL's calendar is longer than Python's, and has infinity.

_FIRST, _LAST = (one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max))  # noqa: DTZ901
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_OFFSET, _LAST_OFFSET = ((one - _EPOCH) // _MICROSECOND for one in (_FIRST, _LAST))
_INFINITY = 2**63 - 1
"""PostgreSQL's time without an end, in microseconds since its epoch."""


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


# --- Statements.


async def fetch(pool: asyncpg.Pool, statement: str, *args: object, connection: Any = None) -> Sequence[Any]:
    """Run one statement as its own transaction and return its rows; raise what ``translated`` raises.

    ``connection``: one that the caller has acquired from the pool; None: any. StoreUnavailableError: the
    statement may or may not have taken effect.
    """
    with translated():
        try:
            async with nullcontext(connection) if connection else pool.acquire() as acquired:
                try:
                    return list(await acquired.fetch(statement, *args))
                except TimeoutError:
                    acquired.terminate()  # or its release would wait just as long for the statement's end
                    raise
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
    """Require that the login may have ``least`` connections; return a warning if it may not have ``most``."""
    rows = await fetch(pool, load_queries("sessions")["connection_limit"])
    if not rows or rows[0]["most"] >= most:
        return ""
    found = rows[0]
    text = f"{found['who']} allows {found['most']} connections"
    if found["most"] < least:
        raise ContractError(f"{text}; a worker needs {least}: raise the limit")
    return f"{text}, and a worker may open {most}: raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX"


async def leave_former_primary(pool: asyncpg.Pool) -> None:
    """Reconnect if the server has become read-only; a pool that only reads would never notice."""
    [row] = await fetch(pool, "SELECT current_setting('transaction_read_only') = 'on' AS is_read_only")
    if row["is_read_only"]:
        await pool.expire_connections()


def to_storable_text(text: str) -> str:
    """Return a text that PostgreSQL can store: without NUL, and valid UTF-8."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()

"""Connections that read much of PostgreSQL as Arrow, by the same DSN as the worker's.

The driver is imported where it connects: it brings pandas, which takes longer to import than all the rest,
and most processes of a job read no table.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pyarrow as pa

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.domain.addresses import postgres_address
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.settings import Settings

if TYPE_CHECKING:
    from adbc_driver_manager import dbapi as adbc

Cursor: TypeAlias = Any
"""A cursor of ADBC's, which are not typed."""

ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""All statements see the same; to be said first."""

_UNLIMITED = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""A read lasts as long as Spark takes the rows, whatever limit the role has for its daily work."""

_DEFAULT_PORT = 5432
_DEFAULTS = {
    "connect_timeout": "10",
    "client_encoding": "UTF8",
    "target_session_attrs": "read-write",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
_LIBPQ = frozenset(
    {
        *("host", "port", "user", "password", "passfile", "dbname", "service", "connect_timeout"),
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
        *("krbsrvname", "gsslib"),
    }
)
"""What a DSN may say that is for the client; asyncpg hands all else to the server."""

_SAID = re.compile(r"(?:ERROR|FATAL):\s+(.+)")
_LOGIN = re.compile(r"(?:authentication failed|does not exist|no password supplied)")
_MIGRATE = "; run `python -m sea_mq_worker migrate`"
_MISSING = ("3F000", "42P01", "42703")
_QUOTING_CLASS = "22"


@contextmanager
def connected(settings: Settings, *, purpose: str) -> Iterator[Cursor]:
    """Provide a cursor inside a transaction, which ends with the block.

    The transaction is the driver's own: where it is left to commit by itself, it does so after each statement
    with parameters, also inside a transaction that a statement began.

    Args:
        settings: those of this process.
        purpose: shows in pg_stat_activity.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or went away.
        ContractError: it refuses the user, or a table is missing.
        PipelineError: the snapshot is gone.
    """
    uri = libpq_uri(
        settings.database_url.get_secret_value(), schema=settings.database_schema, purpose=purpose
    )
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - see above

    with _translated():
        connection = dbapi.connect(uri)
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()


def record_batches(cursor: Cursor) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the statement that was executed.

    Raises:
        StoreUnavailableError: the connection was lost, or the server ended the statement.
    """
    try:
        yield from cursor.fetch_record_batch()
    except OSError as error:  # what Arrow makes of a driver's error in the middle of a stream
        reason = str(error).splitlines()[0]
        raise StoreUnavailableError(f"PostgreSQL ended a read before its end: {reason}") from None


def libpq_uri(dsn: str, *, schema: str, purpose: str) -> str:
    """Return the DSN as libpq reads it, with the session's settings in it.

    Everything stands in the query: asyncpg and libpq part the rest of a URL differently where a user or a
    password has characters of its own.

    Raises:
        ContractError: it is not a DSN; the text shows nothing of it.
    """
    try:
        given = _parameters(dsn)
    except ValueError:
        raise ContractError("the PostgreSQL DSN is not valid") from None
    client = {name: value for name, value in given.items() if name in _LIBPQ}
    session = session_settings(schema, f"sea_mq_worker {purpose}")
    server = {**{name: value for name, value in given.items() if name not in _LIBPQ}, **session, **_UNLIMITED}
    options = " ".join(f"-c {name}={_escaped(value)}" for name, value in server.items())
    return "postgresql://?" + urlencode({**_DEFAULTS, **client, "options": options}, quote_via=quote, safe="")


def _parameters(dsn: str) -> dict[str, str]:
    """Read a DSN as asyncpg does."""
    rest, named = postgres_address(dsn)
    parts = urlsplit(rest)
    user, _, password = parts.netloc.removesuffix("@").partition(":")
    found = {
        "host": ",".join(host for host, _ in named),
        "port": ",".join(str(port or _DEFAULT_PORT) for _, port in named),
        "user": unquote(user),
        "password": unquote(password),
        "dbname": unquote(parts.path.removeprefix("/")),
    }
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    query.setdefault("dbname", query.pop("database", ""))
    return {name: value for name, value in {**query, **_given(found)}.items() if value}


def _given(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if value}


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the domain's errors; of the driver's texts only what shows neither rows nor the DSN is kept."""
    from adbc_driver_manager import dbapi as adbc  # noqa: PLC0415 - see above

    try:
        yield
    except adbc.Error as error:
        raise _meaning(error) from None


def _meaning(error: "adbc.Error") -> WorkerError:
    state = error.sqlstate or ""
    said = _SAID.search(str(error))
    text = said[1].strip() if said else ""
    if "snapshot" in text:
        return PipelineError(
            f"PostgreSQL: {text}: the session that holds the snapshot has ended (a restart, a lost"
            " connection, or the job closed it before its last action); run the job again"
        )
    if not state:
        reason = text or str(error).strip().splitlines()[0].rpartition("failed: ")[2]
        return (ContractError if _LOGIN.search(text) else StoreUnavailableError)(
            f"PostgreSQL cannot be reached: {reason}"
        )
    shown = "a value is out of its range" if state.startswith(_QUOTING_CLASS) else text
    kind = StoreUnavailableError if state[:2] in {"08", "53", "57", "58"} else ContractError
    return kind(f"PostgreSQL: {shown} (SQLSTATE {state}){_MIGRATE if state in _MISSING else ''}")

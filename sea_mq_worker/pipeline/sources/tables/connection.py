"""Connections that read PostgreSQL tables as Arrow, by the worker's DSN.

The driver is imported only when it connects: it imports pandas, which takes longer than all other imports,
and most processes of a job read no table.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from sea_mq_worker.errors import ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.postgres.pool import read_password, session_settings
from sea_mq_worker.runtime.addresses import postgres_address, split_password_file
from sea_mq_worker.settings import Settings

if TYPE_CHECKING:
    from adbc_driver_manager import dbapi as adbc

Cursor: TypeAlias = Any
"""An ADBC cursor; ADBC has no types for it."""

ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""Makes all statements see the same snapshot; must be the transaction's first statement."""

_UNLIMITED = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""Overrides the role's time limits, since a read lasts as long as Spark takes the rows."""

_DEFAULT_PORT = 5432
_DEFAULTS = {
    "connect_timeout": "10",
    "client_encoding": "UTF8",
    "target_session_attrs": "primary",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
_ERROR_TEXT = re.compile(r"(?:ERROR|FATAL):\s+(.+)")
_LOGIN = re.compile(r"(?:authentication failed|does not exist|no password supplied)")
_MIGRATE = "; run `python -m sea_mq_worker migrate`"
_MISSING = ("3F000", "42P01", "42703")
_QUOTING_CLASS = "22"


@contextmanager
def connected(settings: Settings, *, purpose: str) -> Iterator[Cursor]:
    """Provide a cursor inside a transaction, which ends with the block.

    The driver manages the transaction: in autocommit mode it would commit after each statement with
    parameters, also inside a transaction that a statement began.

    Args:
        settings: the settings of this process.
        purpose: shown in pg_stat_activity.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or the connection was lost.
        ContractError: PostgreSQL refuses the user, or a table is missing.
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


def libpq_uri(dsn: str, *, schema: str, purpose: str) -> str:
    """Return the DSN in libpq's form, with the session's settings.

    All parameters are in the URL's query: asyncpg and libpq split the rest of a URL differently if a user or
    password has special characters.

    Raises:
        ContractError: the text is not a DSN, which the error does not show, or its file cannot be read.
    """
    try:
        given = _parameters(dsn)
    except ValueError:
        raise ContractError("the PostgreSQL DSN is not valid") from None
    except OSError as error:
        raise ContractError(
            f"PostgreSQL: cannot read the password: {error.strerror}: {error.filename}"
        ) from None
    session = session_settings(schema, f"sea_mq_worker {purpose}") | _UNLIMITED
    options = [given.pop("options", ""), *(f"-c {name}={_escaped(value)}" for name, value in session.items())]
    parameters = {**_DEFAULTS, **given, "options": " ".join(options)}
    return "postgresql://?" + urlencode(parameters, quote_via=quote, safe="")


def _parameters(dsn: str) -> dict[str, str]:
    """Parse a DSN as asyncpg does: its parts before its query."""
    url, password_file = split_password_file(dsn)
    rest, hosts = postgres_address(url)
    parts = urlsplit(rest)
    user, _, password = parts.netloc.removesuffix("@").partition(":")
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    found = {
        "host": ",".join(host for host, _ in hosts),
        "port": ",".join(str(port or _DEFAULT_PORT) for _, port in hosts),
        "user": unquote(user),
        "password": read_password(password_file) if password_file else unquote(password),
        "dbname": unquote(parts.path.removeprefix("/")),
    }
    return {name: value for name, value in (*query.items(), *found.items()) if value}


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the domain's errors, without parts of the driver's texts that could show rows or the DSN."""
    from adbc_driver_manager import dbapi as adbc  # noqa: PLC0415 - see above

    try:
        yield
    except adbc.Error as error:
        raise _meaning(error) from None


def _meaning(error: "adbc.Error") -> WorkerError:
    state = error.sqlstate or ""
    found = _ERROR_TEXT.search(str(error))
    text = found[1].strip() if found else ""
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

"""PostgreSQL's tables as DataFrames by JDBC: page ranges in parallel, all under one exported snapshot."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlencode
from uuid import UUID

import asyncpg
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.migrations import check_owner, check_version
from sea_mq_worker.postgres.partitions import LEAVES, leaf_of, ranges
from sea_mq_worker.postgres.pool import connect, read_password, session_settings
from sea_mq_worker.runtime.addresses import split_password_file
from sea_mq_worker.settings import Settings

FIRST_TIME = datetime(2, 1, 1, tzinfo=UTC)
"""The earliest time that is read exactly: Python has no earlier one in every time zone."""

LAST_TIME = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
"""The latest time that is read exactly."""

PAGES = 16_384
"""Pages that one task reads: 128 MiB."""

_FETCH_ROWS = 5_000
_FETCH_WIDE_ROWS = 100
"""Rows with a payload, which may have a megabyte, that a task keeps in memory."""

_LIMITS = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0", "lock_timeout": "10s"}
"""Overrides the role's time limits, since a read lasts as long as Spark takes the rows."""

_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_LOCK = "LOCK TABLE outbox_events, inbox_messages IN ACCESS SHARE MODE"
"""The lock prevents a rewrite or truncation of the tables, after which tasks would read other pages."""

_KINDS = """
SELECT a.attname::text AS name, a.atttypid::regtype::text AS kind FROM pg_attribute a
 WHERE a.attrelid = $1::text::regclass::oid AND a.attnum > 0 AND NOT a.attisdropped
"""
_TLS_FILES = ("sslrootcert", "sslcert", "sslkey", "sslpassword")


@dataclass(frozen=True, slots=True)
class Session:
    """One connection to the tables' database; Spark works while no statement runs on it."""

    settings: Settings
    connection: asyncpg.Connection
    _runner: asyncio.Runner

    def rows(self, statement: str, *args: object) -> list[Any]:
        """Run a statement in the driver.

        Raises:
            StoreUnavailableError: the connection was lost, and with it locks, transaction and snapshot.
            ContractError: PostgreSQL refuses the statement.
        """

        async def fetch() -> list[Any]:
            with translated():
                return list(await self.connection.fetch(statement, *args))

        return self._runner.run(fetch())


@contextmanager
def session(settings: Settings, *, purpose: str, hints: Mapping[str, str] | None = None) -> Iterator[Session]:
    """Open a session in the database of this context's tables, in a thread without a loop.

    Args:
        settings: name the database, the schema and the context.
        purpose: shown in pg_stat_activity.
        hints: settings of the planner.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: PostgreSQL refuses the user, or the tables have another version or context.
    """
    with asyncio.Runner() as runner:
        connection = runner.run(open_connection(settings, purpose=purpose, hints=hints))
        try:
            runner.run(check_version(connection))
            runner.run(check_owner(connection, settings.context))
            yield Session(settings, connection, runner)
        finally:
            connection.terminate()


async def open_connection(
    settings: Settings, *, purpose: str, hints: Mapping[str, str] | None = None
) -> asyncpg.Connection:
    """Connect as the worker does, but let statements last, and wait for no lock longer than 10 s."""
    own = session_settings(settings.database_schema, f"sea_mq_worker {purpose}") | _LIMITS
    return await connect(settings.database_url.get_secret_value(), own | dict(hints or {}))


def with_password(settings: Settings) -> Settings:
    """Return the settings with the password itself instead of its file, for executors on other machines."""
    url, file = split_password_file(settings.database_url.get_secret_value())
    if not file:
        return settings
    password = urlencode({"password": read_password(file)}, quote_via=quote)
    return settings.model_copy(
        update={"database_url": SecretStr(f"{url}{'&' if '?' in url else '?'}{password}")}
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables as of one moment, readable while its transaction is open: until the last action of Spark.

    Attributes:
        id: the exported snapshot, which each task imports.
        at: the server's time when it was taken.
    """

    id: str
    at: datetime
    _session: Session

    def rows(self, statement: str, *args: object) -> list[Any]:
        """Run a statement in the driver, as of the snapshot; raises what ``Session.rows`` raises."""
        return self._session.rows(statement, *args)

    def read(
        self,
        spark: SparkSession,
        table: str,
        columns: Sequence[str],
        where: str = "true",
        *,
        pages: int = PAGES,
    ) -> DataFrame:
        """Return rows of ``outbox_events`` or ``inbox_messages``, IDs and JSON as text.

        Times outside the years 2 to 9998, also infinity, become the first or last time of these years.

        Args:
            spark: the session.
            table: the table's name.
            columns: names of columns, and expressions of PostgreSQL, as ``octet_length(reply) AS bytes``.
            where: a condition of PostgreSQL; see ``literal``.
            pages: the most pages that a task reads; 0: one task reads all, which is faster where an index
                finds few rows.
        """
        kinds = {row["name"]: row["kind"] for row in self.rows(_KINDS, table)}
        times = [name for name in columns if kinds.get(name) == "timestamp with time zone"]
        selected = ", ".join(_selected(name, kinds.get(name, "")) for name in columns)
        leaves = map(leaf_of, self.rows(LEAVES, table)) if pages else ()
        parts = [part for leaf in leaves for part in ranges(leaf, pages)]
        # The snapshot holds a lock, so no leaf is dropped; a page or leaf added later has no rows in it.
        rows = " UNION ALL ".join(
            f"SELECT {selected}, '{leaf}'::text AS leaf_, ctid AS ctid_ FROM {leaf} WHERE {where}"  # noqa: S608
            for leaf in dict.fromkeys(part.leaf for part in parts)
        )
        within = [
            f"leaf_ = '{part.leaf}' AND ctid_ >= '({part.first},0)'::tid AND ctid_ < '({part.end},0)'::tid"
            for part in parts
        ]
        if not parts:
            rows = f"SELECT {selected}, '' AS leaf_, '' AS ctid_ FROM {table} WHERE {where}"  # noqa: S608
            within = ["false" if pages else "true"]
        url, properties = jdbc_address(self._session, purpose="pipeline read")
        properties |= {
            "fetchsize": str(_FETCH_WIDE_ROWS if "payload" in columns else _FETCH_ROWS),
            "sessionInitStatement": f"{_ONE_MOMENT}; SET TRANSACTION SNAPSHOT '{self.id}'",
        }
        frame = spark.read.jdbc(url, f"({rows}) AS t", predicates=within, properties=properties)
        return frame.drop("leaf_", "ctid_").withColumns({name: fn.timestamp_micros(name) for name in times})


@contextmanager
def snapshot(settings: Settings) -> Iterator[Snapshot]:
    """Hold a snapshot of the tables; leave the block soon, since the server keeps old row versions meanwhile.

    The snapshot needs a direct connection to the server, not through a pooler in transaction mode.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or another session is rewriting a table.
        ContractError: PostgreSQL refuses the user, a table is missing, or the tables are another context's.
        PipelineError: the server is reached by a Unix socket, which JDBC does not know.
    """
    with session(settings, purpose="pipeline snapshot") as opened:
        for statement in ("BEGIN", _ONE_MOMENT, _LOCK):
            opened.rows(statement)
        [[identity, at]] = opened.rows("SELECT pg_export_snapshot(), now()")
        yield Snapshot(identity, at, opened)


def literal(value: datetime | int | str | UUID) -> str:
    """Return a value as a SQL literal for a condition of ``Snapshot.read``."""
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::timestamptz"
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _selected(name: str, kind: str) -> str:
    """Return a column in a form that comes to Spark unchanged; JDBC has another calendar for old times."""
    if kind in {"uuid", "json", "jsonb"}:
        return f"{name}::text AS {name}"
    if kind == "timestamp with time zone":
        first, last = literal(FIRST_TIME), literal(LAST_TIME)
        nearest = f"CASE WHEN {name} < {first} THEN {first} WHEN {name} > {last} THEN {last} ELSE {name} END"
        return f"(extract(epoch FROM {nearest}) * 1000000)::bigint AS {name}"
    return name


def jdbc_address(opened: Session, *, purpose: str) -> tuple[str, dict[str, str]]:
    """Return JDBC's URL, without a secret, of the very server of a session, and the properties to log in.

    The driver's own parameters are used: they come from the URL, from files, and from the environment.

    Raises:
        PipelineError: the connection is by a Unix socket.
    """
    settings, connection = opened.settings, opened.connection
    address, given = connection._addr, connection._params  # noqa: SLF001 - it shows them in no other way
    if isinstance(address, str):
        raise PipelineError(
            "Spark reads PostgreSQL by JDBC, which knows no Unix sockets: let SEA_MQ_DATABASE_URL name a host"
            " and a port"
        )
    host, port = address
    query = parse_qs(settings.database_url.get_secret_value().partition("?")[2])
    own = session_settings(settings.database_schema, f"sea_mq_worker {purpose}") | _LIMITS
    options = [*query.get("options", []), *(f"-c {name}={_escaped(text)}" for name, text in own.items())]
    parameters = {
        "ApplicationName": own["application_name"],  # or the driver would give its own
        "sslmode": given.sslmode.name.replace("_", "-"),
        "connectTimeout": "10",
        "tcpKeepAlive": "true",
        "sslNegotiation": given.ssl_negotiation.name,
    }
    password = given.password() if callable(given.password) else given.password
    properties = {
        "driver": "org.postgresql.Driver",
        "user": given.user,
        "options": " ".join(options),
        "stringtype": "unspecified",
        **({"password": password} if password else {}),
        **{name: query[name][0] for name in _TLS_FILES if name in query},
    }
    named = f"[{host}]" if ":" in host else host
    return (
        f"jdbc:postgresql://{named}:{port}/{quote(given.database, safe='')}?{urlencode(parameters)}",
        properties,
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")

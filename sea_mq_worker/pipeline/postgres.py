"""PostgreSQL's tables as DataFrames by JDBC: page ranges in parallel, all under one exported snapshot."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg
from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.migrations import require_owner
from sea_mq_worker.postgres.partitions import LEAVES, leaf_of, ranges
from sea_mq_worker.postgres.pool import connect, read_password, session_settings
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.addresses import postgres_address, split_password_file
from sea_mq_worker.settings import Settings

_PAGES = 16_384
"""Pages that one task reads: 128 MiB."""

_FETCH_ROWS = 10_000
_DEFAULT_PORT = 5432
_UNLIMITED = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""A read lasts as long as Spark takes the rows."""

_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_LOCK = """
SET LOCAL lock_timeout = '10s';
LOCK TABLE outbox_events, inbox_messages IN ACCESS SHARE MODE;
"""
"""The lock prevents a rewrite or truncation of the tables, after which tasks would read other pages."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables as of one moment, readable while its transaction is open: until the last action of Spark.

    Attributes:
        id: the exported snapshot, which each task imports.
        at: the server's time when it was taken.
    """

    id: str
    at: datetime
    _settings: Settings
    _connection: asyncpg.Connection
    _runner: asyncio.Runner

    def rows(self, statement: str, *args: object) -> list[Any]:
        """Run a statement in the driver, as of the snapshot.

        Raises:
            StoreUnavailableError: the connection was lost, and with it the snapshot.
        """

        async def fetch() -> list[Any]:
            with translated():
                return list(await self._connection.fetch(statement, *args))

        return self._runner.run(fetch())

    def read(self, spark: SparkSession, table: str, columns: Sequence[str], where: str = "true") -> DataFrame:
        """Return rows of ``outbox_events`` or ``inbox_messages``.

        Args:
            spark: the session.
            table: the table's name.
            columns: expressions of PostgreSQL, as ``payload::text AS payload``.
            where: a condition of PostgreSQL.
        """
        leaves = map(leaf_of, self.rows(LEAVES, table))
        parts = [part for leaf in leaves for part in ranges(leaf, _PAGES)]
        selected = " UNION ALL ".join(
            f"SELECT {', '.join(columns)}, '{leaf}' AS leaf_, ctid AS ctid_ FROM {leaf} WHERE {where}"  # noqa: S608
            for leaf in dict.fromkeys(part.leaf for part in parts)
        )
        if not parts:
            selected = f"SELECT {', '.join(columns)}, '' AS leaf_, ctid AS ctid_ FROM {table} WHERE false"  # noqa: S608
        within = [
            f"leaf_ = '{part.leaf}' AND ctid_ >= '({part.first},0)'::tid AND ctid_ < '({part.end},0)'::tid"
            for part in parts
        ] or ["false"]
        begin = f"{_ONE_MOMENT}; SET TRANSACTION SNAPSHOT '{self.id}'"
        url, properties = jdbc_address(self._settings, purpose="pipeline read")
        properties |= {"fetchsize": str(_FETCH_ROWS), "sessionInitStatement": begin}
        frame = spark.read.jdbc(url, f"({selected}) AS t", predicates=within, properties=properties)
        return frame.drop("leaf_", "ctid_")


@contextmanager
def snapshot(settings: Settings) -> Iterator[Snapshot]:
    """Hold a snapshot of the tables; leave the block soon, since the server keeps old row versions meanwhile.

    The snapshot needs a direct connection to the server, not through a pooler in transaction mode.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or another session is rewriting a table.
        ContractError: PostgreSQL refuses the user, a table is missing, or the tables are another context's.
    """
    with asyncio.Runner() as runner:
        connection = runner.run(_open(settings))
        try:
            [[identity, at]] = runner.run(_fetch(connection, "SELECT pg_export_snapshot(), now()"))
            held = Snapshot(identity, at, settings, connection, runner)
            for found in held.rows(load_queries("sessions")["owner"]):
                require_owner(found, settings.context)
            yield held
        finally:
            connection.terminate()


async def _open(settings: Settings) -> asyncpg.Connection:
    session = session_settings(settings.database_schema, "sea_mq_worker pipeline snapshot") | _UNLIMITED
    connection = await connect(settings.database_url.get_secret_value(), session)
    with translated():
        await connection.execute(f"BEGIN; {_ONE_MOMENT}; {_LOCK}")
    return connection


async def _fetch(connection: asyncpg.Connection, statement: str) -> list[Any]:
    with translated():
        return list(await connection.fetch(statement))


def jdbc_address(settings: Settings, *, purpose: str) -> tuple[str, dict[str, str]]:
    """Return JDBC's URL of the database, without a secret, and the connection's properties.

    Raises:
        PipelineError: the URL has a Unix socket, or a client certificate in a form that JDBC does not read.
    """
    url, password_file = split_password_file(settings.database_url.get_secret_value())
    rest, hosts = postgres_address(url)
    parts = urlsplit(rest)
    user, _, password = parts.netloc.removesuffix("@").partition(":")
    query = dict(parse_qsl(parts.query))
    named = ",".join(f"{host}:{port or _DEFAULT_PORT}" for host, port in hosts)
    if not named or "/" in named:
        raise PipelineError("Spark reads PostgreSQL by JDBC, which knows no Unix sockets: name host and port")
    session = session_settings(settings.database_schema, f"sea_mq_worker {purpose}") | _UNLIMITED
    options = " ".join(f"-c {name}={_escaped(value)}" for name, value in session.items())
    given = {name: query[name] for name in ("sslmode", "sslrootcert", "sslcert", "sslkey") if name in query}
    parameters = {"targetServerType": "primary", "connectTimeout": "10", "tcpKeepAlive": "true", **given}
    address = f"jdbc:postgresql://{named}/{quote(unquote(parts.path.removeprefix('/')), safe='')}"
    properties = {
        "driver": "org.postgresql.Driver",
        "user": unquote(user),
        "password": read_password(password_file) if password_file else unquote(password),
        "options": options,
        "stringtype": "unspecified",
    }
    return f"{address}?{urlencode(parameters, quote_via=quote)}", properties


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")

"""A PostgreSQL snapshot of outbox and inbox, shared by all tasks that read them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.pipeline.dataframes import read_all
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, Cursor, connected
from sea_mq_worker.pipeline.sources.tables.source import InboxSource, OutboxSource, TableReader, literal
from sea_mq_worker.postgres.migrations import require_owner
from sea_mq_worker.postgres.partitions import LEAVES, LeafPartition, PageRange, leaf_of, ranges
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings, config_file

Condition: TypeAlias = tuple[str, Literal["=", "<", "<=", ">", ">=", "in"], Any]
"""Column, operator and value (for ``in`` a sequence of values); a value of None sets no condition."""

PAGES_PER_PARTITION = 16384

_LOCK_MILLISECONDS = 10_000
_LOCK = "LOCK TABLE outbox_events, inbox_messages IN ACCESS SHARE MODE"
"""Prevents a rewrite or truncation of the tables, after which tasks would read other pages, or none."""
_EXPORT = "SELECT pg_export_snapshot(), now()"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that PostgreSQL keeps readable while its transaction is open.

    Attributes:
        id: the exported snapshot's ID, which tasks import.
        at: the server's time when the snapshot was taken.
        config: path of the tasks' settings file; None: settings from each node's environment.
    """

    id: str
    at: datetime
    config: str | None
    _cursor: Cursor

    def rows(self, statement: str, *args: object) -> list[dict[str, Any]]:
        """Run a statement in the driver, as of the snapshot.

        Raises:
            StoreUnavailableError: the connection was lost, and with it the snapshot.
        """
        self._cursor.execute(statement, args or None)
        table = self._cursor.fetch_arrow_table()
        return list(table.to_pylist())


@contextmanager
def snapshot(settings: Settings) -> Iterator[Snapshot]:
    """Hold a snapshot of the tables.

    Spark reads when an action needs rows, and may read them again, so leave the block after the last action.
    The server keeps old row versions in the meantime, so leave the block soon. The snapshot needs a direct
    connection to the server, not through a pooler in transaction mode.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or another session is rewriting a table.
        ContractError: PostgreSQL refuses the user, a table is missing, or the tables are another context's.
    """
    with connected(settings, purpose="pipeline snapshot") as cursor:
        cursor.execute(ONE_MOMENT)
        cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
        cursor.execute(_LOCK)
        cursor.execute(_EXPORT)
        identity, at = cursor.fetchone()
        held = Snapshot(identity, at, config_file(), cursor)
        for found in held.rows(load_queries("sessions")["owner"]):
            require_owner(found, settings.context)
        yield held


def read_outbox(spark: SparkSession, held: Snapshot, **options: Any) -> DataFrame:
    """Return events of the snapshot, to be held until the last action; options as of ``table_reader``."""
    reader = table_reader(held, OutboxSource, **options)
    return read_all(spark, reader, reader.ddl)


def read_inbox(spark: SparkSession, held: Snapshot, **options: Any) -> DataFrame:
    """Return messages of the snapshot; otherwise the same as ``read_outbox``."""
    reader = table_reader(held, InboxSource, **options)
    return read_all(spark, reader, reader.ddl)


def table_reader(
    held: Snapshot,
    source: type[OutboxSource | InboxSource],
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    pages: PageRange | None = None,
    pages_per_partition: int = PAGES_PER_PARTITION,
) -> TableReader:
    """Return a reader of the snapshot.

    Args:
        held: the snapshot.
        source: the data source.
        columns: the columns to return, in this order; default: all, of the outbox also ``payload_bytes``, the
            length of the payload's text as PostgreSQL measures it.
        where: conditions on the table's columns, which all rows meet.
        pages: only these pages of a leaf.
        pages_per_partition: number of pages per Spark task; 0: one task reads all, which is faster where an
            index finds few rows.
    """
    parts: list[PageRange | None] = [None]
    if pages:
        parts = [*ranges(LeafPartition(pages.leaf, pages.end), pages_per_partition, first=pages.first)]
    elif pages_per_partition:
        # The snapshot holds a lock, so no leaf is dropped; a page or leaf added later has no rows in it.
        leaves = map(leaf_of, held.rows(LEAVES, source.table))
        parts = [part for leaf in leaves for part in ranges(leaf, pages_per_partition)]
    conditions = [_sql(*condition) for condition in where if condition[2] is not None]
    return TableReader(
        table=source.table,
        columns=source.columns(columns),
        where=" AND ".join(conditions) or "true",
        config=held.config,
        snapshot=held.id,
        ranges=parts,
    )


def _sql(column: str, operator: str, value: Any) -> str:
    if operator != "in":
        return f"{column} {operator} {literal(value)}"
    return f"{column} IN ({', '.join(map(literal, value))})" if value else "false"

"""A PostgreSQL snapshot of outbox and inbox, shared by all tasks that read them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.adapters.postgres.schema.leaf_partitions import PageRange
from sea_mq_worker.pipeline.executor_settings import access_options
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, Cursor, connected
from sea_mq_worker.pipeline.sources.tables.source import PAGES_PER_PARTITION, literal
from sea_mq_worker.settings import Settings

Condition: TypeAlias = tuple[str, Literal["=", "<", "<=", ">", ">=", "in"], Any]
"""Column, operator and value (for ``in`` a sequence of values); a value of None sets no condition."""

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
    """

    id: str
    at: datetime
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
        ContractError: PostgreSQL refuses the user, or a table is missing.
    """
    with connected(settings, purpose="pipeline snapshot") as cursor:
        cursor.execute(ONE_MOMENT)
        cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
        cursor.execute(_LOCK)
        cursor.execute(_EXPORT)
        identity, at = cursor.fetchone()
        yield Snapshot(identity, at, cursor)


def read_outbox(
    spark: SparkSession,
    held: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    pages: PageRange | None = None,
    pages_per_partition: int = PAGES_PER_PARTITION,
) -> DataFrame:
    """Return the events of the snapshot that meet all conditions.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        columns: the columns to return, in this order; default: all, and ``payload_bytes``, the length of the
            payload's text as PostgreSQL measures it.
        where: conditions on the table's columns.
        pages: only these pages of a partition.
        pages_per_partition: number of pages per Spark task; 0: one task reads all, which is faster where an
            index finds few rows.
    """
    options = {"pagesPerPartition": str(pages_per_partition)}
    if pages is not None:
        options["pages"] = json.dumps(astuple(pages))
    return _read(spark, "outbox", held, columns=columns, where=where, options=options)


def read_inbox(
    spark: SparkSession,
    held: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
) -> DataFrame:
    """Return the messages of the snapshot that meet all conditions; the arguments are those of the outbox."""
    return _read(spark, "inbox", held, columns=columns, where=where, options={})


def _read(
    spark: SparkSession,
    source: str,
    held: Snapshot,
    *,
    columns: Sequence[str] | None,
    where: Sequence[Condition],
    options: Mapping[str, str],
) -> DataFrame:
    options = {**options, **source_options(held, columns=columns, where=where)}
    return spark.read.format(source).options(**options).load()


def source_options(
    held: Snapshot, *, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()
) -> dict[str, str]:
    """Return the options of the source ``outbox`` or ``inbox`` for a read of the snapshot."""
    options = {**access_options(), "snapshot": held.id}
    if columns is not None:
        options["columns"] = ",".join(columns)
    if conditions := [_sql(*condition) for condition in where if condition[2] is not None]:
        options["where"] = " AND ".join(conditions)
    return options


def _sql(column: str, operator: str, value: Any) -> str:
    if operator != "in":
        return f"{column} {operator} {literal(value)}"
    return f"{column} IN ({', '.join(map(literal, value))})" if value else "false"

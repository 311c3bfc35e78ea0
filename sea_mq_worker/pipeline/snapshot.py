"""A PostgreSQL snapshot of outbox and inbox, shared by all tasks that read them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.pipeline.executor_settings import access_options
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, Cursor, connected
from sea_mq_worker.settings import Settings

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
    states: Sequence[EventState] | None = None,
    published_before: datetime | None = None,
    created_since: datetime | None = None,
    created_before: datetime | None = None,
    event_types: Sequence[str] | None = None,
    ordering_keys: Sequence[str] | None = None,
    ids: Sequence[UUID | str] | None = None,
    partition: str | None = None,
    pages: tuple[int, int] | None = None,
    pages_per_partition: int | None = None,
) -> DataFrame:
    """Return the events of the snapshot that match all given filters.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        columns: the columns to return, in this order; default: all.
        states: only events in one of these states.
        published_before: only events published before this time.
        created_since: only events created at this time or later.
        created_before: only events created before this time.
        event_types: only events of these types.
        ordering_keys: only events with these ordering keys.
        ids: only events with these IDs, at most some thousands; found by the primary key.
        partition: only this partition of a partitioned table.
        pages: only this range of pages, without its end.
        pages_per_partition: number of pages per Spark task.
    """
    options = {
        "states": states,
        "publishedBefore": published_before,
        "createdSince": created_since,
        "createdBefore": created_before,
        "eventTypes": event_types,
        "orderingKeys": ordering_keys,
        "ids": ids,
        "partition": partition,
        "pagesPerPartition": pages_per_partition,
        "firstPage": pages[0] if pages else None,
        "endPage": pages[1] if pages else None,
    }
    return _read(spark, "outbox", held, columns=columns, given=options)


def read_inbox(
    spark: SparkSession,
    held: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    received_since: datetime | None = None,
    received_before: datetime | None = None,
    consumers: Sequence[str] | None = None,
    ids: Sequence[UUID | str] | None = None,
) -> DataFrame:
    """Return the messages of the snapshot that match all given filters.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        columns: the columns to return, in this order; default: all.
        received_since: only messages received at this time or later.
        received_before: only messages received before this time.
        consumers: only messages received by one of these consumers.
        ids: only messages with these IDs, at most some thousands; found by the primary key.
    """
    options = {
        "receivedSince": received_since,
        "receivedBefore": received_before,
        "consumers": consumers,
        "ids": ids,
    }
    return _read(spark, "inbox", held, columns=columns, given=options)


def _read(
    spark: SparkSession,
    source: str,
    held: Snapshot,
    *,
    columns: Sequence[str] | None,
    given: dict[str, Any],
) -> DataFrame:
    options = access_options() | {"snapshot": held.id}
    if columns is not None:
        options["columns"] = ",".join(columns)
    options |= {name: _option(value) for name, value in given.items() if value is not None}
    return spark.read.format(source).options(**options).load()


def _option(value: datetime | int | str | Sequence[Any]) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    return json.dumps([str(one) for one in value])

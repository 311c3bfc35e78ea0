"""One moment of outbox and inbox, shared by every task that reads them."""

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
# A table that is rewritten or emptied meanwhile would show the tasks other pages, or none.
_LOCK = "LOCK TABLE outbox_events, inbox_messages IN ACCESS SHARE MODE"
_EXPORT = "SELECT pg_export_snapshot(), now()"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment that PostgreSQL keeps readable as long as it is held.

    Attributes:
        id: what tasks take it up by.
        at: the server's clock when it was taken.
    """

    id: str
    at: datetime
    _cursor: Cursor

    def rows(self, statement: str, *args: object) -> list[dict[str, Any]]:
        """Run a statement on the driver, as of the same moment.

        Raises:
            StoreUnavailableError: PostgreSQL went away, and the snapshot with it.
        """
        self._cursor.execute(statement, args or None)
        table = self._cursor.fetch_arrow_table()
        return list(table.to_pylist())


@contextmanager
def snapshot(settings: Settings) -> Iterator[Snapshot]:
    """Hold one moment of the tables.

    Spark reads when an action needs rows, and may read again: leave the block after the last action.
    Meanwhile the server keeps old versions of rows, so do not stay longer than that. It takes a connection to
    the server itself; a pooler in transaction mode will not do.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached, or somebody rewrites a table just now.
        ContractError: it refuses the user, or a table is missing.
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
    """Return events as of the snapshot, those for which everything given holds.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        columns: which, in this order; all unless given.
        states: in one of these.
        published_before: earlier than this.
        created_since: then or later.
        created_before: earlier than this.
        event_types: of one of these.
        ordering_keys: of one of these.
        ids: some thousands at most; found by the primary key.
        partition: only this one of a partitioned table.
        pages: only those of it from the first on, the last not included.
        pages_per_partition: how many of them a task reads.
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
    """Return messages as of the snapshot, those for which everything given holds.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        columns: which, in this order; all unless given.
        received_since: then or later.
        received_before: earlier than this.
        consumers: received by one of these.
        ids: some thousands at most; found by the primary key.
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

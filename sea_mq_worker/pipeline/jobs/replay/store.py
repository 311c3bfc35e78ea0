"""Put events back into the outbox in batches, and record the progress."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from pyspark.sql import Row

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.operations.database import tables_pool
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.settings import Settings

_COLUMNS = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "seq", "created_at", "partition_key", "ordering_key", "headers"),
    *("metadata", "stream", "stream_seq"),
)
"""Parameters of the statement `restore`, in order."""

_UUIDS = frozenset({"id", "correlation_id", "causation_id"})
_TIMES = frozenset({"occurred_at", "created_at"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The record of a replay.

    Attributes:
        at: time when the replay began.
        selection: the filter.
        through: everything up to this seq is done.
        finished: whether the replay is complete.
        affected: events put back so far.
    """

    id: int
    at: datetime
    selection: Mapping[str, Any]
    through: int
    finished: bool
    affected: int


class ReplayStore:
    """The statements of a replay; each method raises the errors of ``translated``."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries(
            "pipeline_replay",
            *("begin", "latest", "advance", "requeue", "restore", "count", "finish"),
        )

    async def unfinished(self, as_given: str) -> Action | None:
        """Return the latest replay with this selection as written, if it was interrupted."""
        rows = await fetch(self._pool, self._sql["latest"], as_given)
        found = _action(rows[0]) if rows else None
        return None if found is None or found.finished else found

    async def begin(self, selection: str, as_given: str, *, actor: str, reason: str) -> Action:
        """Insert the audit record of a new replay."""
        rows = await fetch(self._pool, self._sql["begin"], actor, reason, selection, as_given)
        return _action(rows[0])

    async def put_back(self, action: int, rows: Sequence[Row], *, after: int) -> frozenset[str]:
        """Put a batch back in one transaction; return the IDs of the events that were put back.

        Args:
            action: the audit record.
            rows: rows of ``selection.select``, in the order of seq.
            after: the highest seq of the previous batch.

        Raises:
            PipelineError: another run continues the same replay.
        """
        here = [UUID(row.id) for row in rows if not row.archived]
        gone = [row for row in rows if row.archived]
        done: list[Any] = []
        with translated():
            async with self._pool.acquire() as connection, connection.transaction():
                if not await connection.fetch(self._sql["advance"], action, after, rows[-1].seq):
                    raise PipelineError(
                        f"another run is continuing replay {action}; wait until it ends, or stop it first"
                    )
                if here:
                    done += await connection.fetch(self._sql["requeue"], here)
                if gone:
                    done += await connection.fetch(self._sql["restore"], *_columns(gone))
                await connection.execute(self._sql["count"], action, len(done))
        return frozenset(row["id"] for row in done)

    async def finish(self, action: int) -> None:
        """Record that the replay is complete: the same selection then begins a new replay."""
        await fetch(self._pool, self._sql["finish"], action)


@asynccontextmanager
async def replay_store(settings: Settings) -> AsyncIterator[ReplayStore]:
    """Connect to the database for the length of a block."""
    async with tables_pool(settings, purpose="replay") as pool:
        yield ReplayStore(pool)


def _action(row: Any) -> Action:
    selection = json.loads(row["selection"])
    progress = selection.pop("progress")
    return Action(
        id=row["id"],
        at=row["at"],
        selection=selection,
        through=progress["through"],
        finished=progress["finished"],
        affected=row["affected"],
    )


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [[_value(name, row[name]) for row in rows] for name in _COLUMNS]


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _UUIDS:
        return UUID(value)
    return _EPOCH + timedelta(microseconds=value) if name in _TIMES else value

"""Put events back into the outbox in batches, and record the progress."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
from pyspark.sql import Row

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

RESTORED = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "seq", "created_at", "partition_key", "ordering_key", "headers"),
    *("metadata", "stream", "stream_seq"),
)
"""Columns of a restored event, the parameters of the statement `restore` in order."""

_SQL = load_queries("pipeline_replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The audit record of a replay.

    Attributes:
        at: time when the replay began.
        selection: the filter.
        through: everything up to this seq is done.
    """

    id: int
    at: datetime
    selection: Mapping[str, Any]
    through: int


@dataclass(frozen=True, slots=True)
class ReplayStore:
    """The statements of a replay; each method raises the errors of ``translated``."""

    pool: asyncpg.Pool

    async def unfinished(self, as_given: str) -> Action | None:
        """Return the latest replay with this selection as written, if it was interrupted."""
        return next(map(_action, await fetch(self.pool, _SQL["unfinished"], as_given)), None)

    async def begin(self, selection: str, as_given: str, *, actor: str, reason: str) -> Action:
        """Insert the audit record of a new replay."""
        rows = await fetch(self.pool, _SQL["begin"], actor, reason, selection, as_given)
        return _action(rows[0])

    async def put_back(self, action: int, rows: Sequence[Row], *, after: int) -> frozenset[str]:
        """Put rows of ``with_content`` back in one transaction; return the IDs of those that were put back.

        ``after`` is the highest seq of the previous batch.

        Raises:
            PipelineError: another run continues the same replay.
        """
        here = [row.id for row in rows if not row.archived]
        gone = [row for row in rows if row.archived]
        done: list[Any] = []
        with translated():
            async with self.pool.acquire() as connection, connection.transaction():
                if not await connection.fetch(_SQL["advance"], action, after, rows[-1].seq):
                    raise PipelineError(
                        f"another run is continuing replay {action}; wait until it ends, or stop it first"
                    )
                if here:
                    done += await connection.fetch(_SQL["requeue"], here)
                if gone:
                    columns = ([row[name] for row in gone] for name in RESTORED)
                    done += await connection.fetch(_SQL["restore"], *columns)
                await connection.execute(_SQL["count"], action, len(done))
        return frozenset(row["id"] for row in done)

    async def finish(self, action: int) -> None:
        """Record that the replay is complete: the same selection then begins a new replay."""
        await fetch(self.pool, _SQL["finish"], action)


def _action(row: Any) -> Action:
    return Action(**{**row, "selection": json.loads(row["selection"])})

"""PostgresOperations: operators' changes of outbox and inbox."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.operator.inspection import PostgresInspection
from sea_mq_worker.adapters.postgres.operator.pruning import PostgresPruning, ignore_progress
from sea_mq_worker.adapters.postgres.operator.replays import as_json
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.read_models import (
    ActionOutcome,
    OnPartition,
    OnProgress,
    PruneResult,
    Redrive,
    check_accountable,
)


class PostgresOperations(PostgresInspection):
    """Inspection and intervention (Open Outbox, operator).

    Every change names who makes it and why, and leaves a record in ``operator_actions`` of what was selected
    and how much was changed, also when it was cut short; see ``ports.operations.DeadLetterRecords``.
    Each method raises what ``translated`` raises.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``, since these statements read much and run rarely."""
        super().__init__(pool=pool)
        self._sql = load_queries("operations")
        self.pruning = PostgresPruning(pool=pool)

    async def mark_dead(self, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
        """Change events from PENDING to DEAD, by way of CLAIMED (Open Outbox, operator intervention).

        Returns the events that it ended; one that a relay holds right now is not among them.
        """
        selection = json.dumps({"ids": [str(event_id) for event_id in ids]})
        error = f"ended by {actor}: {reason}"
        with translated():
            async with self._pool.acquire() as connection, connection.transaction():
                args = _action_args("mark_dead", actor, reason, selection)
                action = await connection.fetchval(self._sql["begin_action"], *args)
                rows = await connection.fetch(self._sql["make_due"], ids)
                waiting = [row["id"] for row in rows]
                await connection.execute(self._sql["claim_as_operator"], waiting, actor)
                await connection.execute(self._sql["mark_dead"], waiting, error, action)
        return frozenset(waiting)

    async def discard(
        self, ids: Sequence[UUID], *, selection: OutboxFilter, actor: str, reason: str
    ) -> frozenset[UUID]:
        """Delete DEAD events for good; the audit keeps all about them except their contents.

        Returns the events that it deleted; one that was replayed meanwhile is not among them.
        """
        check_accountable(actor, reason)
        args = ids, actor, reason, as_json(selection)
        return frozenset(row["id"] for row in await fetch(self._pool, self._sql["discard"], *args))

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message before it is sent again, or the worker would skip it."""
        check_accountable(actor, reason)
        rows = await fetch(self._pool, self._sql["redriven"], message_id, actor, reason)
        return Redrive(open=rows[0]["open"], reopened=rows[0]["reopened"], action=rows[0]["action"])

    async def finish(self, action: int, outcome: ActionOutcome) -> None:
        await fetch(self._pool, self._sql["finish_action"], action, outcome)

    async def close(self, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
        """Close messages without an effect that no worker leases; return the closed ones."""
        selection = json.dumps({"ids": [str(message_id) for message_id in ids]})
        action = await self._begin("close", actor, reason, selection)
        note = f"closed by {actor}: {reason}"
        rows = await fetch(self._pool, self._sql["close_messages"], ids, note, action)
        return frozenset(row["message_id"] for row in rows)

    async def resume(self, event_type: str, *, actor: str, reason: str) -> int:
        """Record that workers shall end the slow pace of an event type; empty: of all types."""
        selection = json.dumps({"event_type": event_type})
        async with self.recorded("resume", actor, reason, selection) as action:
            return action

    async def begin_purge(self, selection: Mapping[str, Any], *, actor: str, reason: str) -> int:
        return await self._begin("purge", actor, reason, json.dumps(selection, default=str))

    async def record_purge(self, message_id: UUID | None, *, action: int, actor: str, reason: str) -> bool:
        note = f"purged by {actor}: {reason}"
        rows = await fetch(self._pool, self._sql["record_purge"], message_id, note, action)
        return bool(rows[0]["may_go"])

    async def prune(
        self,
        side: str,
        before: datetime,
        *,
        actor: str,
        reason: str,
        cap: int | None = None,
        on_progress: OnProgress = ignore_progress,
        on_partition: OnPartition = ignore_progress,
    ) -> PruneResult:
        """Delete events published, or messages processed or closed, before a time; others stay, however old.

        A message that is delivered again after its row is gone has its effect again: keep rows of the inbox
        longer than the streams keep messages.

        Args:
            side: ``outbox`` or ``inbox``.
            before: the time.
            actor: who does it.
            reason: why.
            cap: stop after this many rows plus at most a range of pages; no larger partition is dropped.
            on_progress: called after each range and each partition.
            on_partition: called for each partition whose time is over, dropped or kept.
        """
        selection = json.dumps({"before": before.isoformat()})
        async with self.recorded(f"prune_{side}", actor, reason, selection) as action:
            return await self.pruning.prune(
                side, before, action=action, cap=cap, on_progress=on_progress, on_partition=on_partition
            )

    @asynccontextmanager
    async def recorded(self, action: str, actor: str, reason: str, selection: str) -> AsyncIterator[int]:
        """Keep a record open for a block, and yield its number; close it as done or failed unless killed."""
        number = await self._begin(action, actor, reason, selection)
        try:
            yield number
        except WorkerError:
            with suppress(WorkerError):
                await self.finish(number, "failed")
            raise
        await self.finish(number, "done")

    async def _begin(self, action: str, actor: str, reason: str, selection: str) -> int:
        args = _action_args(action, actor, reason, selection)
        rows = await fetch(self._pool, self._sql["begin_action"], *args)
        return int(rows[0]["id"])


def _action_args(action: str, actor: str, reason: str, selection: str) -> tuple[str, str, str, str]:
    check_accountable(actor, reason)
    return actor, action, reason, selection

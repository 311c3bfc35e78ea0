"""PostgresOperations: what operators do to outbox and inbox."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.inspection import PostgresInspection
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.records import (
    OutboxFilter,
    Redrive,
    ReplayResult,
)
from sea_mq_worker.domain.events import EventState

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_BATCH_MAX = 1000
_PAGES = 500


OnProgress: TypeAlias = Callable[[int, int, int], None]
"""Is told how much is done, of how much, and how many rows were changed."""


def _nobody(_done: int, _total: int, _changed: int) -> None:
    pass


class PostgresOperations(PostgresInspection):
    """Inspection and intervention (Open Outbox, operator).

    Every change names who makes it and why, and leaves a record in ``operator_actions`` of what was selected
    and how much was changed, also when it was cut short. Each method raises what ``translated`` raises.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``NO_HINTS``: these statements read much, and seldom."""
        super().__init__(pool=pool)
        self._sql = load_queries(
            "operations",
            *("begin_action", "replay", "bury_due", "bury_claim", "bury", "redriven"),
            *("outbox_pages", "prune_outbox", "inbox_pages", "prune_inbox"),
        )

    async def replay(
        self,
        which: OutboxFilter,
        *,
        actor: str,
        reason: str,
        cap: int,
        dry_run: bool,
        duplicate_window_seconds: float,
        per_second: int = 1000,
        on_progress: OnProgress = _nobody,
    ) -> ReplayResult:
        """PUBLISHED or DEAD -> PENDING, the earliest first, so that each ordering key keeps its order.

        Args:
            which: states besides PUBLISHED and DEAD, and the limit, do not matter.
            actor: who asks for it.
            reason: why.
            cap: if more than this many match, none is replayed.
            dry_run: only count.
            duplicate_window_seconds: the stream's; a replay waits until it has forgotten the earlier copy.
            per_second: pace, so that a large replay does not delay what is new.
            on_progress: is called after each batch.
        """
        states = tuple(state for state in _TERMINAL if state in which.states)
        found = await self.list_outbox(replace(which, states=states, limit=cap + 1))
        if dry_run or not 0 < len(found) <= cap:
            return ReplayResult(matched=len(found), replayed=0)
        ids = [event.id for event in reversed(found)]
        action = await self._begin("replay", actor, reason, _selection(replace(which, states=states)))
        replayed = 0
        size = max(1, min(_BATCH_MAX, per_second))
        for start in range(0, len(ids), size):
            if start:
                await asyncio.sleep(size / per_second)
            batch = ids[start : start + size]
            rows = await fetch(self._pool, self._sql["replay"], batch, duplicate_window_seconds, action)
            replayed += rows[0]["count"]
            on_progress(start + len(batch), len(ids), replayed)
        return ReplayResult(matched=len(found), replayed=replayed)

    async def bury(self, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
        """PENDING -> DEAD, by way of CLAIMED (Open Outbox, explicit operator intervention).

        Returns the events that it ended; one that a relay holds right now is not among them.
        """
        selection = json.dumps({"ids": [str(event_id) for event_id in ids]})
        error = f"ended by {actor}: {reason}"
        with translated():
            async with self._pool.acquire() as connection, connection.transaction():
                args = _action_args("bury", actor, reason, selection)
                action = await connection.fetchval(self._sql["begin_action"], *args)
                rows = await connection.fetch(self._sql["bury_due"], ids)
                waiting = [row["id"] for row in rows]
                await connection.execute(self._sql["bury_claim"], waiting, actor)
                await connection.execute(self._sql["bury"], waiting, error, action)
        return frozenset(waiting)

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message, before it is sent again: one that came first would be skipped."""
        _check_who_and_why(actor, reason)
        rows = await fetch(self._pool, self._sql["redriven"], message_id, actor, reason)
        return Redrive(open=rows[0]["open"], reopened=rows[0]["reopened"])

    async def prune_outbox(
        self,
        published_before: datetime,
        *,
        actor: str,
        reason: str,
        on_progress: OnProgress = _nobody,
    ) -> int:
        """Delete events published before a time; return how many. Others stay, whatever their age."""
        action = await self._begin("prune_outbox", actor, reason, _before(published_before))
        return await self._prune("outbox", published_before, action, on_progress)

    async def prune_inbox(
        self,
        processed_before: datetime,
        *,
        actor: str,
        reason: str,
        on_progress: OnProgress = _nobody,
    ) -> int:
        """Delete messages processed before a time; return how many. Others stay, whatever their age.

        A message that is delivered again after its row is gone has its effect again: keep rows longer than
        the streams keep messages.
        """
        action = await self._begin("prune_inbox", actor, reason, _before(processed_before))
        return await self._prune("inbox", processed_before, action, on_progress)

    async def _begin(self, action: str, actor: str, reason: str, selection: str) -> int:
        args = _action_args(action, actor, reason, selection)
        rows = await fetch(self._pool, self._sql["begin_action"], *args)
        return int(rows[0]["id"])

    async def _prune(self, side: str, before: datetime, action: int, on_progress: OnProgress) -> int:
        rows = await fetch(self._pool, self._sql[f"{side}_pages"])
        total = rows[0]["count"]
        deleted = 0
        for first in range(0, total, _PAGES):
            rows = await fetch(self._pool, self._sql[f"prune_{side}"], first, first + _PAGES, before, action)
            deleted += rows[0]["count"]
            on_progress(min(first + _PAGES, total), total, deleted)
        return deleted


def _before(moment: datetime) -> str:
    return json.dumps({"before": moment.isoformat()})


def _action_args(action: str, actor: str, reason: str, selection: str) -> tuple[str, str, str, str]:
    _check_who_and_why(actor, reason)
    return actor, action, reason, selection


def _check_who_and_why(actor: str, reason: str) -> None:
    if not (actor.strip() and reason.strip()):
        raise ValueError("a change needs an actor and a reason, for the audit")


def _selection(which: OutboxFilter) -> str:
    given = {name: value for name, value in asdict(which).items() if value is not None and name != "limit"}
    return json.dumps(given, default=str)


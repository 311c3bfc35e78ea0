"""PostgresInspection: read-only queries of operators."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.operator.listings import PostgresLists
from sea_mq_worker.adapters.postgres.queries import load_named, load_queries
from sea_mq_worker.domain.dead_letters import Reason, conflict_detail
from sea_mq_worker.domain.error_fingerprint import MARKED, NUMBERS
from sea_mq_worker.domain.filters import AuditFilter
from sea_mq_worker.domain.read_models import (
    Depth,
    Discarded,
    EarlierEvent,
    Group,
    Match,
    OperatorAction,
    OutboxSummary,
)
from sea_mq_worker.domain.stored_messages import ConsumerState

_ALL = AuditFilter()


class PostgresInspection(PostgresLists):
    """Inspection (Open Outbox, operator), which changes nothing; see ``ports.operations.LookupTables``, too.

    Each method raises what ``translated`` raises.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``, since these statements read much and run rarely."""
        super().__init__(pool=pool)
        self._depth = load_queries("depth")
        self._asked = load_queries("inspection")
        self._audit = load_named("audit")["audit"]

    async def outbox_depth(self) -> Depth:
        """Return the exact depth of the outbox (QRY-050)."""
        return _depth_of(await fetch(self._pool, self._depth["outbox_depth"]))

    async def inbox_depth(self) -> Depth:
        """Return the exact depth of the inbox (QRY-051)."""
        return _depth_of(await fetch(self._pool, self._depth["inbox_depth"]))

    async def outbox_depth_capped(self, *, limit: int) -> Depth:
        """Return the depth of the outbox with numbers capped at ``limit``, at a constant cost."""
        return _depth_of(await fetch(self._pool, self._asked["outbox_depth_capped"], limit))

    async def inbox_depth_capped(self, *, limit: int) -> Depth:
        """Return the depth of the inbox with numbers capped at ``limit``, at a constant cost."""
        return _depth_of(await fetch(self._pool, self._asked["inbox_depth_capped"], limit))

    async def without_read_ahead(self, consumer: ConsumerState, *, limit: int) -> ConsumerState:
        """Leave out messages that the inbox has before their delivery; count them up to a limit."""
        if not consumer.pending:
            return consumer
        named = (consumer.stream, consumer.durable, consumer.delivered_seq, limit)
        [row] = await fetch(self._pool, self._asked["read_ahead"], *named, consumer.oldest_id or None)
        return consumer.without(row["count"], oldest=row["has_oldest"])

    async def outbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Group the oldest ``read_max`` unfinished events, the largest groups of each kind first."""
        rows = await fetch(self._pool, self._asked["outbox_summary"], read_max, groups_max, NUMBERS, MARKED)
        return [Group(**row) for row in rows]

    async def inbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Group the oldest ``read_max`` unprocessed messages in the same way."""
        rows = await fetch(self._pool, self._asked["inbox_summary"], read_max, groups_max, NUMBERS, MARKED)
        return [Group(**row) for row in rows]

    async def audit(self, which: AuditFilter = _ALL, *, limit: int) -> Sequence[OperatorAction]:
        """Return operators' actions, the latest first."""
        rows = await fetch(self._pool, *self._audit.bind(which, limit=limit))
        return [OperatorAction(**row) for row in rows]

    async def discarded(self, event_id: UUID) -> Discarded | None:
        rows = await fetch(self._pool, self._asked["discarded"], str(event_id))
        return Discarded(**rows[0]) if rows else None

    async def session_is_held(self, session: str) -> bool:
        [row] = await fetch(self._pool, self._asked["session_is_held"], session)
        return bool(row["exists"])

    async def ids_between(self, first: UUID, last: UUID, *, limit: int) -> Sequence[Match]:
        rows = await fetch(self._pool, self._asked["ids_between"], first, last, limit)
        return [Match(**row) for row in rows]

    async def earlier_of_key(
        self, event: OutboxSummary, *, limit: int, dead_hold: bool
    ) -> Sequence[EarlierEvent]:
        if event.ordering_key is None:
            return []
        rows = await fetch(
            self._pool, self._asked["earlier_of_key"], event.ordering_key, event.seq, limit, dead_hold
        )
        return [EarlierEvent(**row) for row in rows]

    async def conflicts(self, message_id: UUID, *, limit: int) -> Sequence[UUID]:
        reason = Reason.CONTENT_CONFLICT
        noted = f"{reason}: {conflict_detail(str(message_id))}"
        rows = await fetch(self._pool, self._asked["conflicts"], str(reason), noted, limit)
        return [row["message_id"] for row in rows]


def _depth_of(rows: Sequence[Any]) -> Depth:
    values = dict(rows[0])
    return Depth(**values | {"waiting_seconds": max(0.0, values["waiting_seconds"] or 0.0)})

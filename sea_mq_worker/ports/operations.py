"""Servers as operators' commands use them."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from sea_mq_worker.domain.read_models import (
    AuditFilter,
    Group,
    InboxFilter,
    InboxRecord,
    OperatorAction,
    OutboxDetail,
    OutboxFilter,
    OutboxSummary,
    Page,
)


class Listings(Protocol):
    """Reads outbox, inbox and audit for lists; changes nothing."""

    async def outbox_page(self, which: OutboxFilter, *, read_max: int | None = ...) -> Page[OutboxSummary]:
        """List events, the latest first; read at most ``read_max`` rows (None: no limit)."""
        ...

    async def inbox_page(self, which: InboxFilter, *, read_max: int | None = ...) -> Page[InboxRecord]:
        """List messages, the latest first; read at most ``read_max`` rows (None: no limit)."""
        ...

    async def outbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Count unfinished events by state, type, key and error, the most frequent first."""
        ...

    async def inbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Count unprocessed messages by state, subject, consumer and error, the most frequent first."""
        ...

    async def show_outbox(self, event_id: UUID) -> OutboxDetail | None:
        """Return one event with its payload; None: no such event."""
        ...

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return one message; None: never received, or pruned."""
        ...

    async def audit(self, which: AuditFilter = ..., *, limit: int) -> Sequence[OperatorAction]:
        """List what operators did, the latest first."""
        ...

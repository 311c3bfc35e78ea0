"""Filters of events, messages and records of the audit: every field is a condition."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import ActionName, InboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFilter:
    """Filter of events; None means any.

    Attributes:
        since: this time or later; compared with the time of occurrence in a list, of creation in a replay.
        until: before this time.
        error_like: part of the last error, ignoring case.
        before_id: id of the last event of the previous page.
    """

    states: tuple[EventState, ...] = tuple(EventState)
    ids: tuple[UUID, ...] | None = None
    event_type: str | None = None
    ordering_key: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    error_like: str | None = None
    before_id: UUID | None = None
    limit: int = 100

    @property
    def by_index(self) -> bool:
        """Whether an index selects little more than the wanted rows: ids, a correlation, dead events."""
        dead = self.states == (EventState.DEAD,)
        return dead or self.ids is not None or self.correlation_id is not None

    @property
    def finished(self) -> bool:
        """Whether the filter includes published events."""
        return EventState.PUBLISHED in self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Filter of messages; None means any.

    Attributes:
        reason: dead-lettered for this reason.
        since: received at this time or later.
        until: received before this time.
        error_like: part of the last error, ignoring case.
        before_id: id of the last message of the previous page.
    """

    states: tuple[InboxState, ...] = tuple(InboxState)
    ids: tuple[UUID, ...] | None = None
    consumer: str | None = None
    subject: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error_like: str | None = None
    before_id: UUID | None = None
    limit: int = 100

    @property
    def by_index(self) -> bool:
        """Whether an index selects little more than the wanted rows: ids."""
        return self.ids is not None

    @property
    def finished(self) -> bool:
        """Whether the filter includes processed messages."""
        return InboxState.PROCESSED in self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Filter of the audit's records; None means any.

    Attributes:
        actor_like: part of the actor, ignoring case.
        before_id: id of the last record of the previous page.
    """

    actor_like: str | None = None
    action: ActionName | None = None
    since: datetime | None = None
    until: datetime | None = None
    before_id: int | None = None

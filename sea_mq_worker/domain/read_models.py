"""What operators ask for and are shown: filters, rows as records, results of actions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from sea_mq_worker.domain.events import EventState

ActionOutcome: TypeAlias = Literal["done", "refused", "failed"]
"""How an operator's action ended."""


READ_MAX = 20_000
"""Rows that a page reads at most by default: PostgreSQL reads them in some hundredths of a second."""

RowT = TypeVar("RowT")


def check_accountable(actor: str, reason: str) -> None:
    """Make sure that a change names who makes it and why.

    Raises:
        ValueError: it does not.
    """
    if not (actor.strip() and reason.strip()):
        raise ValueError("a change needs an actor and a reason, for the audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[RowT]):
    """A part of a list.

    Attributes:
        rows: what fits, the latest first.
        goes_on: the id behind which the next page begins; None: the list ends here.
        read: so many rows were looked at without finding a page full; None: the page is full, or all were.
        reached: the time back to which they go, where ``read`` is told.
    """

    rows: Sequence[RowT]
    goes_on: UUID | None
    read: int | None = None
    reached: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """QRY-050 or QRY-051, and the backlog without what no worker has anything to do with now.

    Attributes:
        count: not published or not processed, whether waiting, scheduled or dead.
        oldest_at: when the oldest of them occurred or was received; None where there is none.
        waiting: ``count`` without the scheduled and the dead.
        waiting_seconds: for how long the oldest waiting one has, by the database's clock: an event since it
            was due, or first tried where it has failed, a message since its receipt; 0 where there is none.
        scheduled: events that are not due yet and have not failed; no message is ever.
        dead: dead events or dead-lettered messages.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_seconds: float
    scheduled: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFilter:
    """Which events; None means any.

    Attributes:
        since: at this time or later: occurred, in a list, or created, where events are chosen for a replay.
        until: before this time.
        error_like: part of the last error, capitals and small letters alike.
        before_id: the last event's id of the page before.
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
        """Whether an index has little more than what is asked for: ids, a correlation, dead events."""
        dead = self.states == (EventState.DEAD,)
        return dead or self.ids is not None or self.correlation_id is not None

    @property
    def finished(self) -> bool:
        """Whether published events are among them."""
        return EventState.PUBLISHED in self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSummary:
    """An event without its content."""

    id: UUID
    seq: int
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: int
    ordering_key: str | None
    correlation_id: UUID | None
    state: str
    attempts: int
    failures: int
    created_at: datetime
    occurred_at: datetime
    available_at: datetime
    claimed_at: datetime | None
    claimed_by: str | None
    published_at: datetime | None
    stream: str | None
    stream_seq: int | None
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxDetail(OutboxSummary):
    """All of an event; payload, headers and metadata as JSON texts."""

    causation_id: UUID | None
    partition_key: str | None
    first_attempt_at: datetime | None
    payload: str
    headers: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEvent:
    """An event that another one of its ordering key waits for."""

    id: UUID
    state: str
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Unfinished events or messages that have something in common: ``kind`` says what, ``name`` which."""

    kind: str
    name: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An event or message that an id may mean: its side, what it is of, and since when it is there."""

    side: str
    id: UUID
    state: str
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """What the audit keeps of an event that an operator gave up."""

    at: datetime
    actor: str
    reason: str
    event_type: str
    error: str | None


class InboxState(StrEnum):
    """Where a message is."""

    WAITING = "WAITING"
    """Nobody has it; it is handled when the stream delivers it again."""
    HANDLING = "HANDLING"
    """A worker has it."""
    PROCESSED = "PROCESSED"
    DEAD_LETTERED = "DEAD_LETTERED"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Which messages; None means any.

    Attributes:
        reason: dead-lettered for this reason.
        since: received at this time or later.
        until: received before this time.
        error_like: part of the last error, capitals and small letters alike.
        before_id: the last message id of the page before.
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
        """Whether an index has little more than what is asked for: ids."""
        return self.ids is not None

    @property
    def finished(self) -> bool:
        """Whether processed messages are among them."""
        return InboxState.PROCESSED in self.states


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRecord:
    """What the inbox knows of a message; it keeps no payload."""

    message_id: UUID
    subject: str
    consumer: str | None
    stream: str | None
    stream_seq: int | None
    received_at: datetime
    processed_at: datetime | None
    attempts: int
    last_error: str | None
    locked_until: datetime | None
    locked_by: str | None
    dead_letter_reason: str | None
    dead_letter_begun_at: datetime | None
    dead_lettered_at: datetime | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """What a prune would delete, as far as was looked: ``pages`` of the table's ``pages_of``.

    Attributes:
        count: rows.
        partitions: that would be dropped whole, their rows among ``count``.
    """

    count: int
    pages: int
    pages_of: int
    partitions: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartition:
    """A partition that was dropped whole, with this many events."""

    name: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition:
    """A partition that was not dropped, although its time is over, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What a prune has deleted.

    Attributes:
        deleted: rows, those of dropped partitions among them.
        dropped: partitions that went whole.
    """

    deleted: int
    dropped: Sequence[DroppedPartition] = ()


OnProgress: TypeAlias = Callable[[int, int, int], None]
"""Receives the pages that are done, the pages in all, and the rows changed so far."""

OnPartition: TypeAlias = Callable[[DroppedPartition | KeptPartition], None]
"""Receives each partition whose time is over, dropped or kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Whether a message is handled when it comes again.

    Attributes:
        open: it is; False: it was processed meanwhile, and must not be sent.
        reopened: it was dead-lettered until now.
        action: its record, to be finished with what came of it.
    """

    open: bool
    reopened: bool
    action: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which records of the audit; None means any.

    Attributes:
        actor_like: part of who did it, capitals and small letters alike.
        before_id: the last record's id of the page before.
    """

    actor_like: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """One record of the audit.

    Attributes:
        selection: the filter as JSON text.
        outcome: done; refused: nothing was changed, or the handler did not take it; failed: an error ended
            it; open: it is under way, or was cut short.
    """

    id: int
    at: datetime
    actor: str
    action: str
    reason: str
    selection: str
    affected: int
    outcome: str

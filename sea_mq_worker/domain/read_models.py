"""Records and results of actions for operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

ActionOutcome: TypeAlias = Literal["done", "refused", "failed"]
"""End of an operator's action."""

ActionName: TypeAlias = Literal[
    "archive",
    "close",
    "discard",
    "erase",
    "mark_dead",
    "partition_outbox",
    "prune_inbox",
    "prune_outbox",
    "purge",
    "redrive",
    "replay",
    "resume",
]


READ_MAX = 20_000
"""Cap on rows that a page reads by default: PostgreSQL reads them in some hundredths of a second."""

RowT = TypeVar("RowT")


def check_accountable(actor: str, reason: str) -> None:
    """Require an actor and a reason for a change.

    Raises:
        ValueError: one of them is blank.
    """
    if not (actor.strip() and reason.strip()):
        raise ValueError("a change needs an actor and a reason, for the audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[RowT]):
    """A part of a list.

    Attributes:
        rows: the rows of this page, latest first.
        next_after: the next page begins after this id; None: the list ends here.
        read: number of rows read without filling the page; None: the page is full, or all rows were read.
        reached: time of the earliest row read, if ``read`` is set.
    """

    rows: Sequence[RowT]
    next_after: UUID | None
    read: int | None = None
    reached: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """QRY-050 or QRY-051, and the backlog that workers can process now.

    Attributes:
        count: not published or not processed, whether waiting, scheduled, dead or closed.
        oldest_at: when the oldest of them occurred or was received; None: there is none.
        waiting: ``count`` without the scheduled, the dead and the closed.
        waiting_seconds: age of the oldest waiting one, by the database's clock: for an event since it was
            due (for a failed event: since its first attempt), for a message since its receipt; 0: there is
            none.
        scheduled: events that are not due yet and have not failed; always 0 for messages.
        dead: dead events, or dead-lettered messages that no operator closed.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_seconds: float
    scheduled: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadReason:
    """Number of DEAD events or dead letters with one reason."""

    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Reasons by side, the most frequent first, and the number of workers on the database."""

    reasons: Mapping[str, Sequence[DeadReason]]
    workers: int


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
class DeadEvent:
    """A DEAD event without its content."""

    id: UUID
    seq: int
    event_type: str
    ordering_key: str | None
    failures: int
    created_at: datetime
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxDetail(OutboxSummary):
    """An event with its content; payload, headers and metadata are JSON texts, cut on request."""

    causation_id: UUID | None
    partition_key: str | None
    first_attempt_at: datetime | None
    payload: str
    payload_bytes: int
    headers: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEvent:
    """An event for which another event of its ordering key waits."""

    id: UUID
    state: str
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Unfinished events or messages with a common property: ``kind`` is the property, ``name`` its value."""

    kind: str
    name: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An event or message that matches an id: its side, its type or subject, and its time."""

    side: str
    id: UUID
    state: str
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The audit's record of an event that an operator discarded."""

    at: datetime
    actor: str
    reason: str
    event_type: str
    error: str | None


class InboxState(StrEnum):
    """State of a message in the inbox."""

    WAITING = "WAITING"
    """No worker has the message; a redelivery handles it."""
    HANDLING = "HANDLING"
    """A worker has the message."""
    PROCESSED = "PROCESSED"
    DEAD_LETTERED = "DEAD_LETTERED"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRecord:
    """The inbox's record of a message; the inbox stores no payload."""

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
class Referenced:
    """Finished rows that stay because foreign keys reference them: their number, and the constraints."""

    count: int = 0
    by: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.count} stay, referenced by {', '.join(self.by)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """Rows that a prune would delete, counted in ``pages`` of the table's ``pages_of``.

    Attributes:
        count: number of rows.
        stay: finished rows that it would not delete.
        partitions: partitions that would be dropped whole; ``count`` includes their rows.
    """

    count: int
    pages: int
    pages_of: int
    partitions: Sequence[str] = ()
    stay: Referenced = Referenced()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartition:
    """A partition that was dropped whole, with its number of events."""

    name: str
    events: int

    def __str__(self) -> str:
        return f"dropped partition {self.name}, {self.events:,} events"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition:
    """A partition that was not dropped although its time is over, with the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"partition {self.name} is deleted row by row: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """Result of a prune.

    Attributes:
        deleted: number of rows, including those of dropped partitions.
        dropped: partitions that were dropped whole.
        stay: finished rows that it did not delete.
    """

    deleted: int
    dropped: Sequence[DroppedPartition] = ()
    stay: Referenced = Referenced()


OnProgress: TypeAlias = Callable[[int, int, int], None]
"""Receives the number of finished pages, of all pages, and of rows changed so far."""

OnPartition: TypeAlias = Callable[[DroppedPartition | KeptPartition], None]
"""Receives each partition whose time is over, dropped or kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Start of a redrive.

    Attributes:
        open: the message will be handled; False: it was processed meanwhile and must not be sent.
        reopened: the message was dead-lettered until now.
        action: id of its record in the audit, to be finished with the outcome.
    """

    open: bool
    reopened: bool
    action: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """One record of the audit.

    Attributes:
        selection: the filter as JSON text.
        outcome: done; refused: nothing was changed, or the handler did not accept the message; failed: an
            error ended the action; open: the action is running or was interrupted.
        login: database login that opened the record; None: an earlier version of the schema did not note it.
    """

    id: int
    at: datetime
    actor: str
    action: str
    reason: str
    selection: str
    affected: int
    outcome: str
    login: str | None = None

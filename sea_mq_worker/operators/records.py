"""Rows of outbox, inbox and audit as operators see them, and the filters of lists.

Commands print these types with ``--json``; docs/reference/cli.schema.json is made from them. This module
imports no driver, so that `--help` needs none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from sea_mq_worker.outbox.event import EventState

Side: TypeAlias = Literal["outbox", "inbox"]
"""A table, and its direction."""

READ_MAX = 20_000
"""Rows that a page reads by default: PostgreSQL reads them in some hundredths of a second."""

# Errors that differ only in ids and numbers form one group. Error codes are kept: the HTTP status of the
# handler's answer, and SQLSTATE of PostgreSQL.
_CODE = "(answered [0-9]{3}|SQLSTATE [0-9A-Z]{5})"
NUMBERS = f"{_CODE}|[0-9a-f]{{8}}-[0-9a-f-]{{27}}|[0-9]+"
r"""Each match becomes ``\1#``: a code stays, followed by a #. Used by Python and by PostgreSQL."""
MARKED = f"{_CODE}#"
r"""Each match then becomes ``\1``, which removes that #."""


def mask_ids(text: str) -> str:
    """Replace each id, and each number that is no error code, by a #."""
    return re.sub(MARKED, r"\1", re.sub(NUMBERS, r"\1#", text))


# --- Rows and filters. In a filter, None means any; ``before_id`` is the last id of the page before.


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
    """An event with its content; payload, headers and metadata are JSON texts, cut on request."""

    causation_id: UUID | None
    partition_key: str | None
    first_attempt_at: datetime | None
    payload: str
    payload_bytes: int
    headers: str | None
    metadata: str | None


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
class OutboxFilter:
    """Filter of events, by the time of occurrence in a list, and by that of creation in a replay.

    ``error_like`` is part of the last error, in any case.
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
        return EventState.PUBLISHED in self.states


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
class InboxFilter:
    """Filter of messages, by the time of receipt; ``reason`` is that of the dead letter."""

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
        return self.ids is not None

    @property
    def finished(self) -> bool:
        return InboxState.PROCESSED in self.states


RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[RowT]):
    """A part of a list, the latest row first.

    Attributes:
        next_after: the next page begins after this id; None: the list ends here.
        read: number of rows read without filling the page; None: the page is full, or all rows were read.
        reached: time of the earliest row read, if ``read`` is set.
    """

    rows: Sequence[RowT]
    next_after: UUID | None
    read: int | None = None
    reached: datetime | None = None


# --- Depth, groups, and what the page samples.


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
class Group:
    """Unfinished events or messages with a common property: ``kind`` is the property, ``name`` its value."""

    kind: str
    name: str
    count: int
    oldest_at: datetime


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


# --- The audit.

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


# --- Messages in streams, and consumers.


class DeliveryState(StrEnum):
    """State of a message for a consumer."""

    TO_COME = "TO_COME"
    """The consumer has not delivered the message yet."""
    DELIVERED = "DELIVERED"
    """The consumer has delivered it; the server does not report whether it or an earlier one is pending."""
    DONE = "DONE"
    """The message is acknowledged, or the consumer was created to start after it."""
    NOT_FOR_IT = "NOT_FOR_IT"
    """The consumer's filter excludes the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDelivery:
    """State for one consumer; ``before``: cap on messages delivered before this one, if it is TO_COME."""

    consumer: str
    reading: DeliveryState
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message stored in a stream, without its content."""

    stream: str
    seq: int
    subject: str
    stored_at: datetime
    consumers: tuple[ConsumerDelivery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A consumer's backlog, for operators.

    Attributes:
        pending: messages still to deliver for the first time.
        delivered_seq: sequence up to which the consumer has delivered.
        ack_pending: delivered and unacknowledged messages.
        redelivered: those of ``ack_pending`` that were delivered more than once.
        paused_seconds: time left of a pause; 0 if the consumer is not paused.
        oldest_seconds: age of the oldest message of ``pending``; None: none, or the stream cannot be read.
        oldest_id: ID under which the inbox records that message.
    """

    stream: str
    durable: str
    pending: int
    ack_pending: int
    ack_pending_max: int
    redelivered: int
    paused_seconds: float
    delivered_seq: int
    oldest_seconds: float | None = None
    oldest_id: str = ""

"""Rows of outbox, inbox, dead letters and audit as operators see them, and the filters of commands.

Commands print these types with ``--json``. This module imports no driver, so that `--help` needs none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from sea_mq_worker.inbox.dead_letter import original_headers
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.subjects import event_type_of
from sea_mq_worker.outbox.event import EventState

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


# --- Rows, as ``--json`` prints them, and their filters. In a filter, None means any.


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
    """Filter of events.

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
    """Filter of messages.

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


# --- Pages, depth and groups.

RowT = TypeVar("RowT")


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


class PublishedRow(NamedTuple):
    """The id, place and time that a PUBLISHED row has of its message."""

    id: str
    seq: int
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStanding:
    """Progress of a consumer in its stream, as the server reports it.

    Attributes:
        delivered: sequence of the last delivered message, or the one to which a purge moved the consumer.
        deliveries: number of deliveries, including repeats.
        pending: number of messages still to be delivered.
        takes_all: the filters match every subject of the stream, so every stored message is for the consumer.
        replaces: the stream drops older messages of a subject for newer ones.
    """

    stream_created: str
    consumer_created: str
    first_seq: int
    last_seq: int
    delivered: int
    deliveries: int
    pending: int
    takes_all: bool
    replaces: bool


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

    def without(self, ahead: int, *, oldest: bool) -> "ConsumerState":
        """Count no message twice: the inbox counts the ``ahead`` that it has behind ``delivered_seq``.

        ``oldest``: the inbox has the oldest, so that the worker reads ahead and it does not wait.
        """
        pending = max(0, self.pending - ahead)
        oldest_seconds = None if oldest or not pending else self.oldest_seconds
        return replace(self, pending=pending, oldest_seconds=oldest_seconds)


# --- Dead letters.

_DIGITS_MAX = 18
"""Digits of a number that fits 64 bits; Python parses no number of thousands of digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSummary:
    """EVT-047-002 as it is stored, without the original's content.

    Attributes:
        seq: sequence in the dead-letter stream.
        stored_at: when the dead-letter stream stored it.
        stream_sequence: current or former sequence of the original in ``stream``.
        body_bytes: size of the original's body.
        body_omitted: whether the original was too large to be dead-lettered whole.
        headers_omitted: number of the original's headers that could not be dead-lettered.
    """

    seq: int
    stored_at: datetime
    message_id: str
    original_subject: str
    reason: str
    attempts: int
    detail: str
    stream: str
    stream_sequence: int
    consumer: str
    body_bytes: int
    body_omitted: bool
    headers_omitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterEntry(DeadLetterSummary):
    """A dead letter with the original's content.

    Attributes:
        headers: the original's headers.
        payload: the original's body; empty where ``body_omitted``.
    """

    headers: Mapping[str, str]
    payload: bytes = field(repr=False)

    def summary(self) -> DeadLetterSummary:
        """Return it without the original's content."""
        return DeadLetterSummary(
            **{each.name: getattr(self, each.name) for each in fields(DeadLetterSummary)}
        )

    def restored(self) -> InboundMessage:
        """Return the original as far as the dead letter contains it."""
        return InboundMessage(
            stream=self.stream,
            seq=self.stream_sequence,
            consumer=self.consumer,
            subject=self.original_subject,
            payload=self.payload,
            headers=self.headers,
            stored_at=self.stored_at,
            deliveries=self.attempts,
            reply="",
        )


def parse_dead_letter(message: InboundMessage) -> DeadLetterEntry:
    """Read a message of the dead-letter stream; one of another origin has empty fields."""
    headers = message.headers
    omitted = headers.get("Dlq-Body-Omitted", "")
    return DeadLetterEntry(
        seq=message.seq,
        stored_at=message.stored_at,
        message_id=headers.get("Dlq-Message-Id", ""),
        original_subject=headers.get("Dlq-Original-Subject", ""),
        reason=headers.get("Dlq-Reason", ""),
        attempts=_number(headers.get("Dlq-Attempts", "")),
        detail=headers.get("Dlq-Detail", ""),
        stream=headers.get("Dlq-Stream", ""),
        stream_sequence=_number(headers.get("Dlq-Stream-Sequence", "")),
        consumer=headers.get("Dlq-Consumer", ""),
        headers=original_headers(headers),
        payload=message.payload,
        body_bytes=_number(omitted) or len(message.payload),
        body_omitted=bool(omitted),
        headers_omitted=_number(headers.get("Dlq-Headers-Omitted", "")),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Filter of dead letters; None means any.

    Attributes:
        subject: exact subject of the original.
        event_type: event type of the original.
        since: dead-lettered at this time or later.
        until: dead-lettered before this time.
        error: part of the detail, ignoring case.
        after_seq: only sequences above this one.
    """

    reason: str | None = None
    subject: str | None = None
    event_type: str | None = None
    consumer: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    after_seq: int = 0

    def matches(self, entry: DeadLetterSummary) -> bool:
        """Return whether a dead letter matches, apart from its times and ``after_seq``."""
        exact = (
            (self.reason, entry.reason),
            (self.subject, entry.original_subject),
            (self.event_type, event_type_of(entry.original_subject)),
            (self.consumer, entry.consumer),
        )
        is_exact = all(wanted in {None, found} for wanted, found in exact)
        return is_exact and (self.error or "").lower() in entry.detail.lower()


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

"""Dead letters as operators see them: filter, summary, and the whole entry."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime

from sea_mq_worker.domain.dead_letters import original_headers
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.subjects import event_type_of

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

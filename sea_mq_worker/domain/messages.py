"""Messages to the stream and messages from it."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from sea_mq_worker.domain.subjects import event_subject

_HEADER_BYTES = 100
"""Bytes of a header in memory besides its text."""


class OutboundMessage(NamedTuple):
    """A message to publish, ready for the wire; a tuple for the same reason as an event."""

    id: str
    """``Nats-Msg-Id``: the stream drops a repeat of it inside the deduplication window."""
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    repeated: bool = False
    """An earlier attempt or lifecycle may have stored it, so it needs an acknowledgement of its own."""
    waited_seconds: float = 0.0
    """Seconds in the outbox, from creation to claim; 0 for messages from elsewhere."""
    earlier_seq: int = 0
    """Stream sequence of an earlier lifecycle's copy, which does not count; 0: no copy."""


class InboundMessage(NamedTuple):
    """One delivery of a durable consumer; a tuple, because creating it costs half as much.

    Two deliveries of a message are equal in everything but ``deliveries`` and ``reply``.
    """

    stream: str
    seq: int
    """Stream sequence."""
    consumer: str
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    stored_at: datetime
    """When the stream stored it, by the server's clock."""
    deliveries: int
    """Number of deliveries by the server; only a hint, because a restart of the server can lower it."""
    reply: str
    """Subject for acknowledgements of this delivery."""

    @property
    def size(self) -> int:
        """Return the bytes that body and headers take in memory: 64 KB of short headers become a megabyte."""
        headers = self.headers
        texts = sum(map(len, headers)) + sum(map(len, headers.values()))
        return len(self.payload) + texts + _HEADER_BYTES * len(headers)


class HandlerRequest(NamedTuple):
    """The request to the handler (SDS-047, handler contract); ``payload`` is the JSON text as received.

    ``consumer`` and ``stored_at`` of the message are for traces.
    """

    message_id: str
    subject: str
    event_type: str
    event_version: int
    occurred_at: str
    correlation_id: str | None
    causation_id: str | None
    payload: bytes
    trace_headers: Mapping[str, str] = MappingProxyType({})
    consumer: str = ""
    stored_at: datetime | None = None
    batch_max: int = 0
    """Most messages in its request, itself included; 0: the handler client decides."""

    @classmethod
    def new(cls, event_type: str, payload: bytes) -> "HandlerRequest":
        """Make the request of a message that comes from no stream: with a new id, version 1, and of now."""
        now = datetime.now(UTC)
        return cls(
            message_id=str(uuid.uuid4()),
            subject=event_subject("local", event_type, 1),
            event_type=event_type,
            event_version=1,
            occurred_at=now.isoformat().replace("+00:00", "Z"),
            correlation_id=None,
            causation_id=None,
            payload=payload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """EVT-047-002 (MessageDeadLettered), with all data needed to redrive the message."""

    message_id: str
    original_subject: str
    reason: str
    attempts: int
    detail: str
    source: InboundMessage

"""What travels: messages to the stream and messages from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple


class OutboundMessage(NamedTuple):
    """One publish: subject, body and headers, ready for the wire; a tuple for the same reason as an event."""

    id: str
    """``Nats-Msg-Id``, by which the stream drops a repeat inside its duplicate window."""
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    repeated: bool = False
    """An earlier attempt or lifecycle may have stored it: it needs an answer of its own."""
    waited_seconds: float = 0.0
    """In the outbox, from its creation to its claim; 0 for what comes from elsewhere."""
    earlier_seq: int = 0
    """Where the stream has the copy of an earlier lifecycle, which does not count; 0: nowhere."""


class InboundMessage(NamedTuple):
    """One delivery of a durable consumer; a tuple, because to make one costs half as much.

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
    """How often the server delivered it; a hint only, it can fall when the server restarts."""
    reply: str
    """Where acknowledgements of this delivery go."""


class HandlerRequest(NamedTuple):
    """What the handler is sent (SDS-047, handler contract); ``payload`` is the JSON text as received.

    ``consumer`` and ``stored_at``, of the message, are for traces.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """EVT-047-002 (MessageDeadLettered), with all that is needed to send the message again."""

    message_id: str
    original_subject: str
    reason: str
    attempts: int
    detail: str
    source: InboundMessage

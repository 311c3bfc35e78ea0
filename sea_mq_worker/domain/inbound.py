"""Turn a received message into the handler's request (SDS-047, handler contract).

A CloudEvent comes in binary mode, with its attributes in headers, or in structured mode, inside a JSON
object. Structured mode is known by its content type. CloudEvents' NATS binding 1.0 has no headers: a message
without a content type and without attributes in headers is structured if its body has all attributes that an
event must have.
"""

import base64
import binascii
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sea_mq_worker.domain.errors import InvalidMessageError
from sea_mq_worker.domain.headers import CorrelationContext, NatsMsgId, rfc3339, valid_trace_context
from sea_mq_worker.domain.json_text import is_json, members
from sea_mq_worker.domain.messages import HandlerRequest, InboundMessage
from sea_mq_worker.domain.subjects import parse_subject

_STRUCTURED = "application/cloudevents+json"
_BATCH = "application/cloudevents-batch+json"
_TRACE = ("traceparent", "tracestate")
"""Extension attributes that binary mode has as headers of their own."""
_REQUIRED = ("id", "source", "specversion", "type")
_NAMESPACE = uuid.UUID("6f0f6cc5-6f0e-5d0c-9a53-0f1f5b7d2f47")

MARKER, SCHEDULE, COUNTER = "Nats-Marker-Reason", "Nats-Schedule", "Nats-Incr"
_OF_THE_SERVER = frozenset({MARKER, SCHEDULE, COUNTER})


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """A message that must be dead-lettered; ``message_id`` is its own or made from its stream position."""

    message_id: str
    reason: str
    detail: str


def identify(message: InboundMessage) -> str | InvalidMessage:
    """Return a message's own id, or why it has no valid id; the payload is not checked."""
    try:
        return NatsMsgId.of(_event(message)[0]).value
    except InvalidMessageError as error:
        return InvalidMessage(storage_id(message), error.reason, str(error))


def carries_no_event(message: InboundMessage) -> bool:
    """Whether the server made the message, or keeps it for itself.

    It marks deleted messages, publishes a scheduled message at its time as another one, and puts a counter's
    total into a message; these have no id, but a producer can give one to a message that also counts.
    """
    if _OF_THE_SERVER.isdisjoint(message.headers):
        return False
    if MARKER in message.headers:
        return not message.payload
    return SCHEDULE in message.headers or isinstance(identify(message), InvalidMessage)


def recorded_as(message: InboundMessage) -> str:
    """Return the id under which a message is recorded: its own, or one made from its stream position."""
    identity = identify(message)
    return identity.message_id if isinstance(identity, InvalidMessage) else identity


def parse_message(message: InboundMessage) -> HandlerRequest | InvalidMessage:
    """Validate a message and build the handler's request."""
    message_id = ""
    try:
        headers, payload = _event(message)
        message_id = NatsMsgId.of(headers).value
        return _request(message, headers, payload, message_id)
    except InvalidMessageError as error:
        return InvalidMessage(message_id or storage_id(message), error.reason, str(error))


def storage_id(message: InboundMessage) -> str:
    """Make an id from a message's stream position; every delivery gives the same id."""
    return str(uuid.uuid5(_NAMESPACE, f"{message.stream}\0{message.seq}\0{message.stored_at.timestamp()}"))


def content_hash(message: InboundMessage) -> bytes:
    """Return SHA-256 over a message's subject and body."""
    return hashlib.sha256(message.subject.encode() + b"\0" + message.payload).digest()


def _event(message: InboundMessage) -> tuple[Mapping[str, str], bytes]:
    """Return headers, in lower case, and payload; in structured mode with what the event inside has."""
    headers = {name.lower(): value for name, value in message.headers.items()}
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == _BATCH:
        raise InvalidMessageError(
            "INVALID_PAYLOAD", "a batch of CloudEvents: each event has to be a message of its own"
        )
    if content_type != _STRUCTURED:
        has_attributes = any(name.startswith("ce-") for name in headers)
        if content_type or has_attributes or b'"specversion"' not in message.payload:
            return headers, message.payload
    inside = members(message.payload)
    if inside is None or not all(inside.get(name, b"").startswith(b'"') for name in _REQUIRED):
        if content_type == _STRUCTURED:
            raise InvalidMessageError("INVALID_PAYLOAD", "the body is no CloudEvent in JSON")
        return headers, message.payload
    payload, encoded = inside.pop("data", b"null"), inside.pop("data_base64", None)
    if encoded is not None:
        try:
            payload = base64.b64decode(json.loads(encoded), validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InvalidMessageError("INVALID_PAYLOAD", "data_base64 is not Base64") from None
    attributes = {
        f"ce-{name.lower()}": _attribute(value) for name, value in inside.items() if value != b"null"
    }
    trace = {name: attributes[f"ce-{name}"] for name in _TRACE if f"ce-{name}" in attributes}
    return trace | headers | attributes, payload


def _attribute(value: bytes) -> str:
    return str(json.loads(value)) if value.startswith(b'"') else value.decode()


def _request(
    message: InboundMessage, headers: Mapping[str, str], payload: bytes, message_id: str
) -> HandlerRequest:
    subject = parse_subject(message.subject)
    correlation = CorrelationContext.of(headers)
    if not is_json(payload):  # only checked: unchanged bytes lose no digit
        raise InvalidMessageError("INVALID_PAYLOAD", "the body is not JSON")
    return HandlerRequest(
        message_id=message_id,
        subject=subject.value,
        event_type=subject.event_type,
        event_version=subject.event_version,
        occurred_at=_occurred_at(headers, message),
        correlation_id=correlation.correlation_id,
        causation_id=correlation.causation_id,
        payload=payload,
        trace_headers=valid_trace_context(headers),
        consumer=message.consumer,
        stored_at=message.stored_at,
    )


def _occurred_at(headers: Mapping[str, str], message: InboundMessage) -> str:
    given = headers.get("ce-time")
    if not given:
        return rfc3339(message.stored_at)
    try:
        moment = datetime.fromisoformat(given)
        return rfc3339(moment if moment.tzinfo else message.stored_at)
    except (ValueError, OverflowError):  # an offset can lead out of datetime's range of years
        return rfc3339(message.stored_at)

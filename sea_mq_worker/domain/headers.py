"""Headers of a published event: message id, CloudEvents 1.0 in binary mode, trace context, the row's own.

The row's own headers are delivered as they are (Open Outbox, headers). A header that cannot be delivered
unaltered, or that the server would take for the worker's, is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from sea_mq_worker.domain.encoding import (
    HEADER_BYTES_MAX,
    HeaderBlock,
    header_block,
    header_lines,
    header_problem,
)
from sea_mq_worker.domain.errors import InvalidEventError, InvalidMessageError
from sea_mq_worker.domain.events import OutboxEvent
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.subjects import event_subject

MSG_ID = "Nats-Msg-Id"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EVENT_HEADER_BYTES_MAX = HEADER_BYTES_MAX - 2047
"""Cap on ``event_header_bytes``; the rest of the block is for ids, times, trace context and source."""
_CORRELATION_HEADERS = ("ce-correlationid", "ce-causationid")
_CONTENT_TYPE = "ce-datacontenttype"
_IDENTITY_HEADERS = ("ce-type", "ce-subject")
_OF_THE_EVENT = frozenset(
    f"ce-{name}"
    for name in (
        *("id", "type", "source", "specversion", "time", "subject"),
        *("eventversion", "correlationid", "causationid", "partitionkey"),
    )
)
"""Attributes set from the event's columns; a header of the row could only contradict them."""
_TRACE = frozenset({"traceparent", "tracestate"})
_TRACESTATE_CHARS_MAX = 512
"""Length that W3C requires everybody to propagate; the handler may refuse a longer value."""
_TRACESTATE = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,256}")
"""One list member (W3C Trace Context 3.3.1)."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_PLAIN = re.compile(r"[!#$&-~]*")
"""Visible ASCII except the quotation mark and the per cent sign."""
_PRINTABLE_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class NatsMsgId(NamedTuple):
    """ID of a message, which is the UUID of its event (SDS-047): the stream drops a repeat of it."""

    value: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "NatsMsgId":
        """Read ``Nats-Msg-Id``, or else ``ce-id``; the names of ``headers`` are in lower case.

        Raises:
            InvalidMessageError: neither is there, or it is not a UUID.
        """
        found = headers.get(MSG_ID.lower()) or headers.get("ce-id")
        if not found:
            raise InvalidMessageError("INVALID_MESSAGE_ID", "neither Nats-Msg-Id nor ce-id is there")
        if not _UUID.fullmatch(found.lower()):
            raise InvalidMessageError("INVALID_MESSAGE_ID", "Nats-Msg-Id or ce-id is not a UUID")
        return cls(found.lower())


class CorrelationContext(NamedTuple):
    """IDs of an event's request and of its cause (SDS-047); either may be missing."""

    correlation_id: str | None
    causation_id: str | None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "CorrelationContext":
        """Read the headers, whose names are in lower case; what is not a UUID counts as missing."""
        return cls(*(_uuid_or_none(headers.get(name)) for name in _CORRELATION_HEADERS))

    def lines(self) -> list[str]:
        """Return the header lines."""
        return [f"{name}: {value}" for name, value in zip(_CORRELATION_HEADERS, self, strict=True) if value]


def _uuid_or_none(text: str | None) -> str | None:
    return text.lower() if text and _UUID.fullmatch(text.lower()) else None


def outbound_message(event: OutboxEvent, *, context: str, source: str) -> OutboundMessage:
    """Build the message of an event; its body is exactly the payload's JSON.

    The headers are encoded at once, in a third of the time: all their values are visible ASCII. Only a row
    with own headers needs a mapping, which is validated before sending.

    Args:
        event: the event to send.
        context: first token of the subject.
        source: CloudEvents source, visible ASCII.

    Raises:
        InvalidEventError: the row can never be published as it is.
    """
    if event.occurred_at is None:
        raise InvalidEventError("INVALID_OUTBOX: occurred_at is not within the years 1 to 9999")
    subject, common = _of_type(event.event_type, event.event_version, context, source)
    lines = [
        f"{MSG_ID}: {event.id}",
        f"ce-id: {event.id}",
        f"ce-time: {rfc3339(event.occurred_at)}",
        f"ce-subject: {_cloudevents_value(f'{event.aggregate_type}/{event.aggregate_id}')}",
        *common,
    ]
    if event.correlation_id or event.causation_id:
        lines += CorrelationContext(event.correlation_id, event.causation_id).lines()
    if event.partition_key:
        lines.append(f"ce-partitionkey: {_cloudevents_value(event.partition_key)}")
    if event.metadata:
        lines += header_lines(trace_context(event.metadata))
    headers: Mapping[str, str] = HeaderBlock(header_block(lines))
    if event.headers:
        headers = _with_own(headers, _own_headers(event.headers))
    repeated = event.attempts > 1 or event.earlier_stream_seq > 0
    earlier = event.earlier_stream_seq
    # not by name, which would take twice as long
    return OutboundMessage(event.id, subject, event.payload, headers, repeated, event.age_seconds, earlier)


@lru_cache(maxsize=1024)
def _of_type(event_type: str, version: int, context: str, source: str) -> tuple[str, Sequence[str]]:
    """Return the subject and the header lines that all events of a type and version share."""
    return event_subject(context, event_type, version), (
        "ce-specversion: 1.0",
        f"{_CONTENT_TYPE}: application/json",
        f"ce-source: {source}",
        f"ce-type: {_cloudevents_value(event_type)}",
        f"ce-eventversion: {version}",
    )


def event_header_bytes(names: Sequence[str], own: Mapping[str, str]) -> int:
    """Return the bytes that an event's names and own headers take in its header block."""
    lines = [*map(_cloudevents_value, names), *header_lines(own), ""]
    return len("\r\n".join(lines).encode())


def is_same_message(
    message: OutboundMessage, subject: str, payload: bytes, headers: Mapping[str, str]
) -> bool:
    """Return whether the message stored under an id is this message.

    The service itself, or another relay, may have published the event: then the JSON may be written in
    another way, and CloudEvents headers may be missing. Without the type, the subject counts, which a stream
    may store under another name.
    """
    if "ce-type" not in headers and subject != message.subject:
        return False
    own = {name: message.headers[name] for name in _IDENTITY_HEADERS if name in message.headers}
    return all(headers.get(name, value) == value for name, value in own.items()) and (
        payload == message.payload or _is_same_json(payload, message.payload)
    )


def _is_same_json(*texts: bytes) -> bool:
    """Return whether texts are the same JSON value: 1.50 is 1.5, and 1 is not true."""
    try:
        one, other = (
            json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number) for text in texts
        )
        return bool(one == other)
    except (ValueError, ArithmeticError, RecursionError):
        return False


class _Number:
    """A number of a JSON text, of any size and precision; equal to no other type."""

    def __init__(self, text: str) -> None:
        self._value = Decimal(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and self._value == other._value

    __hash__ = None  # type: ignore[assignment]


def trace_context(metadata: str) -> dict[str, str]:
    """Return the valid W3C ``traceparent`` and ``tracestate`` of ``metadata`` (a JSON text)."""
    return valid_trace_context(_object(metadata) or {})


def valid_trace_context(carrier: Mapping[str, object]) -> dict[str, str]:
    """Return only the well-formed trace headers of ``carrier``; others are untrusted text."""
    parent = carrier.get("traceparent")
    if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
        return {}
    state = carrier.get("tracestate")
    if not isinstance(state, str) or not _is_tracestate(state):
        return {"traceparent": parent}
    return {"traceparent": parent, "tracestate": state.strip()}


def _is_tracestate(state: str) -> bool:
    if not state.strip() or len(state) > _TRACESTATE_CHARS_MAX:
        return False
    members = (member.strip(" \t") for member in state.split(","))
    return all(not member or _TRACESTATE.fullmatch(member) for member in members)


@lru_cache(maxsize=256)  # events of one transaction share their moment
def rfc3339(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC with a ``Z``."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _cloudevents_value(text: str) -> str:
    """Percent-encode everything but visible ASCII in a CloudEvents attribute value."""
    if _PLAIN.fullmatch(text):
        return text
    return quote(text, safe=_PRINTABLE_SAFE)


def _object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text or excessive depth. Numbers may have any length."""
    try:
        parsed = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _own_headers(text: str) -> dict[str, str]:
    parsed = _object(text)
    if parsed is None:
        raise InvalidEventError("INVALID_OUTBOX: headers is not a JSON object")
    for name, value in parsed.items():
        problem = own_header_problem(name, value)
        if problem:
            raise InvalidEventError(f"INVALID_OUTBOX: header {name[:64]!r} {problem}")
    return parsed


def own_header_problem(name: str, value: object) -> str:
    """Return why a row's own header cannot be delivered as it is; empty: it can be."""
    if reserved := _reserved(name):
        return reserved
    return header_problem(name, value) if isinstance(value, str) else "has a value that is not a string"


def _reserved(name: str) -> str:
    if speaks_to_broker(name):
        return "is reserved for the broker"
    if name.lower() in _OF_THE_EVENT:
        return "is reserved for the event's own attributes, which its columns tell"
    return ""


def speaks_to_broker(name: str) -> bool:
    """Return whether the server or a client would interpret a header.

    Clients take ``Status`` and ``Description`` for the server's headers, and end a subscription on them.
    """
    lower = name.lower()
    return lower.startswith("nats-") or lower in {"status", "description"}


def _with_own(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Add the row's own headers, among them a content type.

    A valid trace context among them replaces the one of the metadata. An invalid one is left out: a broken
    trace must not prevent the event.
    """
    trace = valid_trace_context({name.lower(): value for name, value in own.items()})
    kept = {n: v for n, v in own.items() if n.lower() not in _TRACE or trace.get(n.lower()) == v}
    replaced = (_TRACE if trace else frozenset()) | ({_CONTENT_TYPE} & {name.lower() for name in own})
    return {n: v for n, v in headers.items() if n.lower() not in replaced} | kept

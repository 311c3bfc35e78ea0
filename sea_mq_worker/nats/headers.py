"""Headers of an event in one table, and their form on the wire.

An event has a message id, CloudEvents 1.0 in binary mode, a trace context, and the row's own headers, which
are delivered as they are (Open Outbox, headers). A header that cannot be delivered unaltered, or that the
server would take for the worker's, is refused.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from sea_mq_worker.errors import InvalidMessageError
from sea_mq_worker.nats.message import OutboundMessage

# --- Encode messages for the wire, and validate them before they are sent.
#
# A NATS server closes the connection if body and headers exceed max_payload, or if a control line exceeds
# 4 KiB. Clients silently alter some headers. One message must cause neither.

SUBJECT_BYTES_MAX = 3072
"""Leaves room on the control line of 4096 bytes for the reply subject and the sizes."""

HEADER_BYTES_MAX = 65_535
"""Limit of the server on the header block of a stored message, in bytes."""
_BAD_SUBJECT = re.compile(r"[\s\x00-\x1f\x7f*>]|\.\.|^\.|\.$|^$")
_is_token = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch


class EncodedMessage(NamedTuple):
    """A message that can be sent unaltered; its headers are encoded only once."""

    subject: str
    head: bytes
    """The header block, including the blank line after it."""
    payload: bytes
    size: int
    """Bytes of header block and payload."""
    repeated: bool

    def ending(self, lines: bytes) -> "EncodedMessage":
        """Add header lines, with the blank line after them; the limits must leave room."""
        head = self.head[:-2] + lines
        return EncodedMessage(self.subject, head, self.payload, len(head) + len(self.payload), self.repeated)


class HeaderBlock(Mapping[str, str]):
    """Headers that are already encoded, with values that need no validation.

    Nearly every event has one, and almost none is read by name.
    """

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def __getitem__(self, name: str) -> str:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @cached_property
    def _by_name(self) -> Mapping[str, str]:
        lines = self.encoded.decode().split("\r\n")[1:-2]
        return dict(line.split(": ", 1) for line in lines)


def encode(message: OutboundMessage, max_payload: int) -> EncodedMessage | str:
    """Encode a message, or return why it can never be sent unaltered."""
    if why := subject_problem(message.subject):
        return why
    headers = message.headers
    head = headers.encoded if isinstance(headers, HeaderBlock) else _encoded(headers)
    if isinstance(head, str):
        return head
    size = len(head) + len(message.payload)
    if size > max_payload:
        return too_large(size, max_payload)
    if len(head) > HEADER_BYTES_MAX:
        return f"{len(head)} bytes of headers are more than {HEADER_BYTES_MAX}"
    return EncodedMessage(message.subject, head, message.payload, size, message.repeated)


def too_large(size: int, max_payload: int) -> str:
    return f"{size} bytes with headers are more than the server's max_payload of {max_payload}"


def validation_error(message: OutboundMessage, max_payload: int) -> str:
    """Return why a message can never be sent unaltered; empty: it can be sent."""
    ready = encode(message, max_payload)
    return ready if isinstance(ready, str) else ""


def header_lines(headers: Mapping[str, str]) -> list[str]:
    """Format headers, one line each."""
    return [f"{name}: {value}" for name, value in headers.items()]


def _encoded(headers: Mapping[str, str]) -> bytes | str:
    """Encode headers, or return the error; check all at once, and each alone only after a failure."""
    values = list(headers.values())
    text = "".join(values)
    breaks = "\r" in text or "\n" in text or "\0" in text
    if breaks or not all(map(_is_token, headers)) or list(map(str.strip, values)) != values:
        problems = ((name, header_problem(name, value)) for name, value in headers.items())
        return next(f"header {name[:64]!r} {problem}" for name, problem in problems if problem)
    try:
        return "\r\n".join(["NATS/1.0", *header_lines(headers), "\r\n"]).encode()
    except UnicodeEncodeError:
        return "a header has a character that UTF-8 cannot encode"


def header_problem(name: str, value: str) -> str:
    """Return why a header can never be sent unaltered; empty: it can be sent."""
    if not _is_token(name):
        return "has a name that is blank or holds other than letters, digits and !#$%&'*+-.^_`|~"
    if any(character in value for character in "\r\n\0"):
        return "has a value with CR, LF or NUL"
    if value != value.strip():
        return "has a value with leading or trailing white space, which the protocol cannot carry"
    return ""


@lru_cache(maxsize=1024)
def subject_problem(subject: str) -> str:
    """Return why a subject cannot be published to; empty: it can be."""
    if _BAD_SUBJECT.search(subject):
        return "the subject has a wildcard, an empty token, white space or a control character"
    if len(subject.encode(errors="replace")) > SUBJECT_BYTES_MAX:
        return f"the subject is longer than {SUBJECT_BYTES_MAX} bytes"
    return "" if subject.encode(errors="ignore").decode() == subject else "the subject is not UTF-8"


# --- The headers of an event: encoder, parser, reserved names, AsyncAPI and the pipeline read this table.

MSG_ID = "Nats-Msg-Id"
_PLAIN = re.compile(r"[!#$&-~]*")
"""Visible ASCII except the quotation mark and the per cent sign."""
_PRINTABLE_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def percent_encoded(text: str) -> str:
    """Percent-encode everything but visible ASCII in a CloudEvents attribute value."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_PRINTABLE_SAFE)


@lru_cache(maxsize=256)  # events of one transaction share their moment
def rfc3339(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC with a ``Z``."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


class EventHeader(NamedTuple):
    """A header of an event; without column and ``made`` it comes only from the row's own headers."""

    name: str
    meaning: str
    column: str = ""
    """The column of the row that is sent, if it is not empty."""
    made: Callable[[Any], str] | None = None
    """Makes the value from the column; if ``of_type`` from type, version and source."""
    of_type: bool = False
    """All events of a type and version have the same value."""
    own: bool = False
    """A row's own header may say it."""
    required: bool = False
    field: str = ""
    """The field of the CorrelationContext that a consumer reads it into."""


AGGREGATE = "aggregate_type/aggregate_id"
"""Two columns in one value."""

# fmt: off
EVENT_HEADERS = (
    EventHeader(MSG_ID, "ID of the event, a UUID", "id", required=True),
    EventHeader("ce-id", "ID of the event, a UUID", "id", required=True),
    EventHeader("ce-source", "CloudEvents source",
                made=lambda kind: kind.source, of_type=True, required=True),
    EventHeader("ce-specversion", "1.0",
                made=lambda _kind: "1.0", of_type=True, required=True),
    EventHeader("ce-type", "type of the event",
                made=lambda kind: percent_encoded(kind.event_type), of_type=True, required=True),
    EventHeader("ce-subject", "aggregate type and ID, as type/ID", AGGREGATE, made=percent_encoded),
    EventHeader("ce-time", "time of the event (RFC 3339)", "occurred_at", made=rfc3339, required=True),
    EventHeader("ce-eventversion", "version of the event's schema",
                made=lambda kind: str(kind.event_version), of_type=True),
    EventHeader("ce-correlationid", "ID of the business process", "correlation_id", field="correlation_id"),
    EventHeader("ce-causationid", "ID of the message that caused the event", "causation_id",
                field="causation_id"),
    EventHeader("ce-partitionkey", "routing hint", "partition_key", made=percent_encoded),
    EventHeader("ce-datacontenttype", "application/json",
                made=lambda _kind: "application/json", of_type=True, own=True),
    EventHeader("ce-dataschema", "URI of the payload's schema", own=True),
    EventHeader("traceparent", "W3C trace context", own=True),
    EventHeader("tracestate", "W3C trace context", own=True),
)
# fmt: on

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IDENTITY_HEADERS = ("ce-type", "ce-subject")
_TRACESTATE_CHARS_MAX = 512
"""Length that W3C requires everybody to propagate; the handler may refuse a longer value."""
_TRACESTATE = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,256}")
"""One list member (W3C Trace Context 3.3.1)."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class NatsMsgId(NamedTuple):
    """ID of a message, which is the UUID of its event (SDS-047): the stream drops a repeat of it."""

    value: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "NatsMsgId":
        """Read ``Nats-Msg-Id`` or ``ce-id`` by names in lower case; raise InvalidMessageError for none."""
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
        return cls(**{field: _uuid_or_none(headers.get(name)) for field, name in _CORRELATION})


def _uuid_or_none(text: str | None) -> str | None:
    return text.lower() if text and _UUID.fullmatch(text.lower()) else None


_CORRELATION = tuple((header.field, header.name) for header in EVENT_HEADERS if header.field)


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
    return valid_trace_context(parse_object(metadata) or {})


def valid_trace_context(carrier: Mapping[str, object]) -> dict[str, str]:
    """Return the well-formed trace headers of ``carrier``; others are untrusted text."""
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


def parse_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text or excessive depth. Numbers may have any length."""
    try:
        parsed = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def speaks_to_broker(name: str) -> bool:
    """Return whether the server or a client would interpret a header.

    Clients take ``Status`` and ``Description`` for the server's headers, and end a subscription on them.
    """
    lower = name.lower()
    return lower.startswith("nats-") or lower in {"status", "description"}

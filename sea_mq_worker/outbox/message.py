"""Headers of a published event: message id, CloudEvents 1.0 in binary mode, trace context, the row's own.

The row's own headers are delivered as they are (Open Outbox, headers). A header that cannot be delivered
unaltered, or that the server would take for the worker's, is refused.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.nats.headers import (
    AGGREGATE,
    EVENT_HEADERS,
    HEADER_BYTES_MAX,
    HeaderBlock,
    header_lines,
    header_problem,
    parse_object,
    percent_encoded,
    speaks_to_broker,
    trace_context,
    valid_trace_context,
)
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.nats.subjects import event_subject
from sea_mq_worker.outbox.event import OutboxEvent

EVENT_HEADER_BYTES_MAX = HEADER_BYTES_MAX - 2047
"""Cap on ``event_header_bytes``; the rest of the block is for ids, times, trace context and source."""
_CONTENT_TYPE = "ce-datacontenttype"
_OF_TYPE = [(header.name, header.made) for header in EVENT_HEADERS if header.made and header.of_type]
_COLUMNS = [header for header in EVENT_HEADERS if header.column and header.column != AGGREGATE]
_OF_ROW = [
    (header.name, header.made)
    for header in [*(header for header in EVENT_HEADERS if header.column == AGGREGATE), *_COLUMNS]
]
_columns = attrgetter(*(header.column for header in _COLUMNS))
_RESERVED = frozenset(header.name for header in EVENT_HEADERS if not header.own)
"""Set from the event's columns; a header of the row could only contradict them."""
_TRACE = frozenset({"traceparent", "tracestate"})


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
    subject, text = _of_type(event.event_type, event.event_version, context, source)
    values = (f"{event.aggregate_type}/{event.aggregate_id}", *_columns(event))
    for (name, make), value in zip(_OF_ROW, values, strict=True):
        if value:
            text += f"{name}: {make(value) if make else value}\r\n"
    if event.metadata:
        for line in header_lines(trace_context(event.metadata)):
            text += f"{line}\r\n"
    headers: Mapping[str, str] = HeaderBlock(f"{text}\r\n".encode())
    if event.headers:
        headers = _with_own(headers, _own_headers(event.headers))
    repeated = event.attempts > 1 or event.earlier_stream_seq > 0
    earlier = event.earlier_stream_seq
    # not by name, which would take twice as long
    return OutboundMessage(event.id, subject, event.payload, headers, repeated, event.age_seconds, earlier)


class _Kind(NamedTuple):
    event_type: str
    event_version: int
    source: str


@lru_cache(maxsize=1024)
def _of_type(event_type: str, version: int, context: str, source: str) -> tuple[str, str]:
    """Return the subject, and the begin of the header block, that all events of a type and version share."""
    kind = _Kind(event_type, version, source)
    subject = event_subject(context, event_type, version)
    return subject, "".join(["NATS/1.0\r\n", *(f"{name}: {make(kind)}\r\n" for name, make in _OF_TYPE)])


def event_header_bytes(names: Sequence[str], own: Mapping[str, str]) -> int:
    """Return the bytes that an event's names and own headers take in its header block."""
    lines = [*map(percent_encoded, names), *header_lines(own), ""]
    return len("\r\n".join(lines).encode())


def _own_headers(text: str) -> dict[str, str]:
    parsed = parse_object(text)
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
    if name.lower() in _RESERVED:
        return "is reserved for the event's own attributes, which its columns tell"
    return ""


def _with_own(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Add the row's own headers, among them a content type.

    A valid trace context among them replaces the one of the metadata. An invalid one is left out: a broken
    trace must not prevent the event.
    """
    trace = valid_trace_context({name.lower(): value for name, value in own.items()})
    kept = {n: v for n, v in own.items() if n.lower() not in _TRACE or trace.get(n.lower()) == v}
    replaced = (_TRACE if trace else frozenset()) | ({_CONTENT_TYPE} & {name.lower() for name in own})
    return {n: v for n, v in headers.items() if n.lower() not in replaced} | kept

"""Put events into the outbox, in the same transaction as the change that the events describe.

``enqueue`` accepts an asyncpg connection, a psycopg AsyncConnection or AsyncCursor, an AsyncConnection or
AsyncSession of SQLAlchemy or SQLModel, and a Tortoise transaction. ``enqueue_sync`` accepts a connection or
cursor of psycopg or psycopg2, a Connection or Session of SQLAlchemy or SQLModel, and Django's connection or
cursor. This module imports none of these libraries.

Both functions send one statement and never commit. They refuse a connection in autocommit mode, which would
commit the events separately from the change. A plain INSERT into ``outbox_events`` works as well.
"""

import json
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.nats.subjects import event_subject
from sea_mq_worker.outbox.message import EVENT_HEADER_BYTES_MAX, event_header_bytes, own_header_problem
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.producer.transaction import execute, execute_sync, in_schema

__all__ = ["Event", "InvalidEventError", "enqueue", "enqueue_sync", "uuid7"]

_VERSION_MAX = 2**31 - 1
ORDERING_KEY_BYTES_MAX = 2048
"""Cap on an ordering key in bytes of UTF-8: an index entry of PostgreSQL holds little more."""
NUMBER_DIGITS_MAX = 4300
"""Cap on the digits of a number, which PostgreSQL writes without an exponent: Python reads no longer one."""
_NOT_STORABLE = re.compile(
    r"(?<!\\)(?:\\\\)*\\u(?:0000|[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F])"
)
"""An escaped NUL, or half of an escaped surrogate pair."""


def uuid7() -> UUID:
    """Return a new UUID of version 7 (RFC 9562). Later IDs are greater, which keeps indexes compact."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | secrets.randbits(62))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event to publish.

    Attributes:
        aggregate_type: the kind of thing that changed, such as ``order``.
        aggregate_id: the ID of the thing that changed.
        event_type: the name of the event, such as ``order.created``; it becomes part of the subject.
        payload: a value for ``json.dumps``, a pydantic model, or JSON text as ``str`` or ``bytes``. JSON text
            keeps every digit of its numbers, at most 4300 for each, written without an exponent.
        event_version: the version of the payload's schema; it becomes part of the subject.
        occurred_at: a time with a time zone, not in the future. None: the start of the transaction.
        correlation_id: the ID shared by all messages of one business process.
        causation_id: the ID of the message that caused this event.
        ordering_key: events with the same key are published in the order of their insertion. At most 2048
            bytes of UTF-8. None: no order.
        partition_key: delivered to consumers as ``ce-partitionkey``; it does not affect publishing.
        headers: delivered to consumers unchanged. With the names above, at most 63,488 bytes as sent.
        metadata: stays in the database, except a W3C trace context, which is delivered as headers. Without a
            ``traceparent`` here, the context of the active OpenTelemetry span is added.
        dataschema: the URI of the payload's schema, delivered as ``ce-dataschema``.
        available_at: the event is not published before this time. None: publish immediately.
        id: created with the event, so a retried transaction inserts the same ID.
    """

    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: Any
    event_version: int = 1
    occurred_at: datetime | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    ordering_key: str | None = None
    partition_key: str | None = None
    headers: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    dataschema: str | None = None
    available_at: datetime | None = None
    id: UUID = field(default_factory=uuid7)


def _class_of(hint: Any) -> type:
    """Return the class to check: ``X`` of a hint ``X | None``, without its arguments."""
    kind: Any = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    found: type = get_origin(kind) or kind
    return found


_TYPES = {name: _class_of(hint) for name, hint in get_type_hints(Event).items() if name != "payload"}
_OPTIONAL = {own.name for own in fields(Event) if own.default is None}


async def enqueue(connection: Any, *events: Event, schema: str | None = None) -> list[UUID]:
    """Insert events in the connection's transaction and return their IDs.

    Args:
        connection: an open connection, cursor or session of a supported library; the module lists them.
        events: events with the same ordering key are published in this order.
        schema: the schema that contains ``outbox_events``. None: the first one in the search path.

    Raises:
        InvalidEventError: an event can never be published (INVALID_OUTBOX); no statement was sent.
        TypeError: the connection's type is not supported.
        ValueError: the connection is not in a transaction.
    """
    await execute(connection, _statement(schema), _document(events))
    return [event.id for event in events]


def enqueue_sync(connection: Any, *events: Event, schema: str | None = None) -> list[UUID]:
    """Insert events over a synchronous connection or session; otherwise the same as ``enqueue``."""
    execute_sync(connection, _statement(schema), _document(events))
    return [event.id for event in events]


@cache
def _statement(schema: str | None) -> str:
    return in_schema(load_queries("producer")["enqueue"], "outbox_events", schema)


# --- events


def _document(events: Sequence[Event]) -> str:
    """Return all events as one JSON text, which every library can pass without changing a number."""
    context = _trace_context()
    return f"[{', '.join([_member(event, context) for event in events])}]"


def _member(event: Event, context: Mapping[str, str]) -> str:
    if not isinstance(event, Event):
        raise TypeError(f"expected an Event, not {type(event)}")
    _check_types(event)
    own = _headers(event)
    _check_values(event, own)
    metadata = dict(event.metadata or {})
    if "traceparent" not in metadata:
        metadata |= context
    columns = {name: getattr(event, name) for name in _TYPES if name != "dataschema"}
    columns |= {"metadata": metadata or None, "headers": own or None}
    columns |= {name: _in_utc(name, columns[name]) for name in ("occurred_at", "available_at")}
    known = {name: value for name, value in columns.items() if value is not None}
    member = f'{_json("metadata", known, default=_as_text)[:-1]}, "payload": {payload_json(event.payload)}}}'
    if "\\u" in member and _NOT_STORABLE.search(member):
        raise _invalid("the event contains NUL or half of a surrogate pair, which PostgreSQL cannot store")
    _check_header_size(event, own)
    return member


def _check_types(event: Event) -> None:
    for name, kind in _TYPES.items():
        value = getattr(event, name)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits and not (value is None and name in _OPTIONAL):
            raise _invalid(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def _check_values(event: Event, own: Mapping[str, str]) -> None:
    event_subject("context", event.event_type, event.event_version)
    if event.event_version > _VERSION_MAX:
        raise _invalid(f"event_version {event.event_version} is above {_VERSION_MAX}")
    for name in ("aggregate_type", "aggregate_id"):
        if not getattr(event, name).strip():
            raise _invalid(f"{name} is blank")
    if len((event.ordering_key or "").encode(errors="surrogatepass")) > ORDERING_KEY_BYTES_MAX:
        raise _invalid(f"ordering_key is longer than {ORDERING_KEY_BYTES_MAX} bytes; use a hash of it")
    for header, value in own.items():
        problem = own_header_problem(str(header), value)
        if problem:
            raise _invalid(f"header {header!r:.64} {problem}")


def _check_header_size(event: Event, own: Mapping[str, str]) -> None:
    names = (f"{event.aggregate_type}/{event.aggregate_id}", event.event_type, event.partition_key or "")
    size = event_header_bytes(names, own)
    if size > EVENT_HEADER_BYTES_MAX:
        raise _invalid(f"{size} bytes of headers and names are more than {EVENT_HEADER_BYTES_MAX}")


def _in_utc(name: str, moment: datetime | None) -> datetime | None:
    """Return a time in UTC, because PostgreSQL refuses offsets of 16 hours or more."""
    if moment is None:
        return None
    if moment.utcoffset() is None:
        raise _invalid(f"{name} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise _invalid(f"{name} is outside the years 1 to 9999 in UTC") from None


def _headers(event: Event) -> dict[str, str]:
    own = dict(event.headers or {})
    return own | {"ce-dataschema": event.dataschema} if event.dataschema else own


def payload_json(payload: Any) -> str:
    """Return a payload as the JSON text that ``enqueue`` stores.

    Raises:
        InvalidEventError: the payload is not JSON.
    """
    if hasattr(payload, "model_dump_json"):
        return str(payload.model_dump_json())
    if not isinstance(payload, str | bytes):
        return _json("payload", payload)
    try:
        text = payload if isinstance(payload, str) else payload.decode()
        text.encode()
        json.loads(text, parse_int=_check_number, parse_float=_check_number, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"payload is text, but not JSON: {error}") from error
    return text


def _json(name: str, value: Any, **options: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, **options)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"{name} is not JSON: {error}") from error


def _as_text(value: object) -> str:
    if isinstance(value, UUID | datetime):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _check_number(text: str) -> None:
    digits, _, exponent = text.lower().partition("e")
    if len(digits) + abs(int(exponent or 0)) > NUMBER_DIGITS_MAX:
        raise _invalid(f"the number {text:.20} has more than {NUMBER_DIGITS_MAX} digits")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _invalid(problem: str) -> InvalidEventError:
    return InvalidEventError(f"INVALID_OUTBOX: {problem}")


def _trace_context() -> dict[str, str]:
    """Return the trace context of the active span, if the program uses OpenTelemetry."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - only where it is in use

        tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier

"""Turn a received message into the handler's request (SDS-047, handler contract).

A CloudEvent comes in binary mode, with its attributes in headers, or in structured mode, inside a JSON
object. Structured mode is known by its content type. CloudEvents' NATS binding 1.0 has no headers: a message
without a content type and without attributes in headers is structured if its body has all attributes that an
event must have.
"""

import base64
import binascii
import codecs
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal, NamedTuple, assert_never

import msgspec

from sea_mq_worker.errors import InvalidMessageError
from sea_mq_worker.nats.headers import CorrelationContext, NatsMsgId, rfc3339, valid_trace_context
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.subjects import event_subject, parse_subject

# --- Validate JSON without building a tree, so that memory does not grow with the text.

_CHUNK_BYTES = 65_536
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Start of an escaped lone surrogate, which JSON allows and the validator refuses."""
_VALIDATOR = msgspec.json.Decoder(msgspec.Raw)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON in UTF-8; False for JSON nested deeper than the interpreter allows.

    Python allows about a thousand levels, from 3.14 on a few hundred thousand.
    """
    try:
        if not text.isascii():
            _check_utf8(memoryview(text))
        if b"\\ud" in text or b"\\uD" in text:
            text = _SURROGATE.sub(rb"\\u00", text)  # as long, and as valid, as before
        _VALIDATOR.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def members(text: bytes) -> dict[str, bytes] | None:
    """Return the members of a JSON object, their values as written; None for any other text."""
    try:
        return {name: bytes(value) for name, value in _MEMBERS.decode(text).items()}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _check_utf8(text: memoryview) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(text), _CHUNK_BYTES):
        decoder.decode(text[start : start + _CHUNK_BYTES])
    decoder.decode(b"", final=True)


# --- Messages to the stream and messages from it.


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


# --- Closed unions: the results of a handler call, and what becomes of a message.
#
# Every ``match`` on one ends with ``assert_never``, so a new outcome is a type error until each loop
# decides on it.


@dataclass(frozen=True, slots=True)
class Accepted:
    """200, 409 or a status that the settings add: the effect is there (POL-047-005): mark, then ACK."""

    status: int


@dataclass(frozen=True, slots=True)
class Poison:
    """422: the handler can never accept this message (POL-047-006)."""

    error: str


@dataclass(frozen=True, slots=True)
class Retry:
    """5xx, time-out or any other answer (POL-047-007); ``after_seconds``: no sooner, as the handler asked.

    ``answered``: there was a whole answer, so the handler can be reached. ``about``: more probable cause.
    """

    error: str
    after_seconds: float = 0.0
    answered: bool = True
    about: Literal["", "deployment", "size"] = ""


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The handler was unreachable: it has not seen the message, and the next call would fail too."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The message's batch failed, and which message is the cause is unknown: call again at once.

    ``batch_max``: size of the next batch, half of the failed one; ``answered``: as in ``Retry``.
    """

    error: str
    batch_max: int
    answered: bool


HandlerResult = Accepted | Poison | Retry | NotDelivered | BatchFailed


@dataclass(frozen=True, slots=True)
class GivenBack:
    """No effect: record the error, then NAK with a delay; ``counted``: it costs an attempt.

    ``event_type``: a slow type; when its slow pace ends, the message comes sooner, but not before
    ``least_seconds``.
    """

    error: str
    delay_seconds: float = 0.0
    event_type: str = ""
    least_seconds: float = 0.0
    counted: bool = False


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The dead-letter stream has it and the inbox knows: ACK."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker has the message: send nothing, because that worker settles it."""


# --- Meaning of a handler's HTTP status (SDS-047, handler contract; POL-047-005, POL-047-006, POL-047-007).
#
# Only the contract's statuses settle a message. Any other status is a Retry that names the status: its
# cause is more often the deployment (a wrong URL, a proxy, a missing login) than the message.

ACCEPT_STATUSES = frozenset({200, 409})
"""POL-047-005: processed now or earlier."""

_POISON = 422
_ASKS_TO_WAIT = frozenset({429, 503})
_SERVER_ERRORS = range(500, 600)
_UNAVAILABLE = 503
_TOO_LARGE = 413
_DEPLOYMENT = frozenset({*range(300, 400), 401, 403, 404, 405})
"""Statuses of a wrong path, slash, scheme, method or token."""
_MAY_BE_ONE_MESSAGE = frozenset({400, 409, 413, 422})


def result_for_status(
    status: int, *, accept_statuses: frozenset[int], after_seconds: float = 0.0, detail: str = ""
) -> HandlerResult:
    """Decide by the status alone; ``after_seconds`` is the answer's Retry-After (0: no such header).

    ``detail`` may give the answer's size or kind of problem, never its text, which could repeat the payload.
    """
    if status in accept_statuses:
        return Accepted(status)
    if status == _POISON:
        return Poison(f"the handler answered 422{detail}")
    wait = after_seconds if status in _ASKS_TO_WAIT else 0.0
    if status in _SERVER_ERRORS or status in _ASKS_TO_WAIT:
        return Retry(f"the handler answered {status}{detail}", wait)
    if status == _TOO_LARGE:
        error = f"the handler answered 413{detail}: it, or a proxy before it, takes no request of this size"
        return Retry(error, about="size")
    return Retry(
        f"the handler answered {status}{detail}, which its contract does not know: "
        f"check the handler's URL, its token and what is deployed there",
        about="deployment" if status in _DEPLOYMENT else "",
    )


def may_be_one_message(status: int, *, accept_statuses: frozenset[int]) -> bool:
    """Return whether a batch's status other than 200 may be due to one of its messages.

    400, 409, 413, 422 and errors of the server such as 500 may. 503, 429, 401, 404 and the like concern the
    handler or the way to it, so they hold for every message. An accepting status alone confirms no effect.
    """
    may_be_one = status in _SERVER_ERRORS and status != _UNAVAILABLE
    return may_be_one or status in _MAY_BE_ONE_MESSAGE | accept_statuses


# --- Results of recording a message in the inbox (CMD-051): leased, or the reason why not.

LEASE_SECONDS = 60.0
"""Length of a lease that does not say how long."""


class InboxMessage(NamedTuple):
    """A received message as the inbox records it (SDS-047 2.2); a tuple, as one is made for every message.

    An empty or zero field means that the value is unknown. A row without a content hash fits any content.
    """

    message_id: str
    subject: str
    consumer: str = ""
    stream: str = ""
    stream_seq: int = 0
    content_hash: bytes = b""
    reply: str = ""
    """Reply subject of the delivery; empty for a message that was read and not delivered."""


class AbandonedDelivery(NamedTuple):
    """A leased delivery whose worker has ended; ``attempts`` includes the one that ended with it."""

    stream: str
    consumer: str
    reply: str
    attempts: int


class Lease(NamedTuple):
    """The right, and the duty, to handle one message until it ends.

    Attributes:
        token: fences every later write.
        attempts: this one included.
        dead_letter_begun_seconds_ago: since an earlier attempt began to dead-letter it, of which nobody
            knows whether it reached the stream; 0 where none did, below 0 after the database's clock was
            set back.
    """

    message_id: str
    token: str
    attempts: int = 1
    dead_letter_begun_seconds_ago: float = 0.0


NOT_LEASED = Lease("", "", attempts=0)
"""Stands for the lease of a message that has none; no row has its token."""


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """Processed or dead-lettered before: acknowledge without calling the handler.

    ``consumer``: the durable that brought it then, where that is known.
    """

    consumer: str = field(default="", compare=False)


Outcome = Accepted | GivenBack | DeadLettered | AlreadySettled | LeaseLost
"""What becomes of a message; AlreadySettled, where another worker ended it meanwhile: ACK."""


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """Another worker handles it now, or it came twice in one batch.

    ``attempts``: how often it was taken for handling so far, where that is known.
    """

    attempts: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """The id is known with another content."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """PostgreSQL refuses to record it, for example by a trigger: it is delivered again later."""


Receipt = Lease | AlreadySettled | LeasedElsewhere | ContentConflict | Unwritable


def deduplicate(entries: Sequence[InboxMessage]) -> list[InboxMessage]:
    """Leave out the entries whose message id came before in the batch."""
    first: dict[str, InboxMessage] = {}
    for entry in entries:
        first.setdefault(entry.message_id, entry)
    return list(first.values())


def expand_duplicates(entries: Sequence[InboxMessage], receipts: Mapping[str, Receipt]) -> list[Receipt]:
    """Make one receipt for each entry from those that the first of each message id got.

    A repeat that is undecided until the first is settled gets LeasedElsewhere: it comes again.
    """
    contents: dict[str, bytes] = {}
    answers = []
    for entry in entries:
        receipt = receipts[entry.message_id]
        if entry.message_id in contents:
            is_same = contents[entry.message_id] == entry.content_hash
            match receipt:
                case Lease():
                    receipt = LeasedElsewhere() if is_same else ContentConflict()
                case AlreadySettled() | ContentConflict():
                    receipt = receipt if is_same else LeasedElsewhere()
                case LeasedElsewhere() | Unwritable():
                    pass
                case _:
                    assert_never(receipt)
        contents.setdefault(entry.message_id, entry.content_hash)
        answers.append(receipt)
    return answers


# --- From the message to the request: its event, whichever way the CloudEvent came.

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

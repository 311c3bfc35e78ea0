"""Facts that happened in a worker, named in the past tense; logs and metrics are derived from them.

Facts carry ids, counts, sizes and reasons, never payloads or credentials.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPublished:
    """EVT-047-001 (OutboxEventPublished)."""

    outbox_id: str
    event_type: str
    subject: str
    published_at: datetime
    """By the database's clock: time of the claim plus the time until the settlement."""
    duplicate: bool
    latency_seconds: float
    """From the due time, or the first attempt if earlier, to the broker's acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPublished:
    """Events of one claim were published; one fact for all, because this is the most frequent fact.

    Attributes:
        latencies: latency of each event, in seconds.
        duplicates: number of events that the stream already had.
        each: makes one fact per event.
    """

    latencies: Sequence[float]
    duplicates: int
    each: Callable[[], Iterable[EventPublished]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPostponed:
    """A publish attempt was not confirmed; the event is retried later."""

    outbox_id: str
    event_type: str
    error: str
    delay_seconds: float
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDied:
    """The event is DEAD: it is not retried automatically."""

    outbox_id: str
    event_type: str
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRelayed:
    """All events of one claim were settled or released."""

    claimed: int
    published: int
    released: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesLost:
    """Another worker took over rows that this worker was too slow to settle."""

    side: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesReaped:
    """Leases of workers that died or stalled were ended."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTakenOver:
    """Leases of a worker that ended without settling them were ended; ``side`` is outbox or inbox."""

    worker: str
    side: str
    count: int


class MessageProcessed(NamedTuple):
    """The handler had its effect and the inbox recorded it; a tuple, because one is made per message."""

    message_id: str
    consumer: str
    subject: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSkipped:
    """A duplicate of a settled message was acknowledged without a call of the handler.

    ``brought_by``: the consumer that delivered it then, if this worker does not have that consumer.
    """

    message_id: str
    consumer: str
    brought_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMessageSkipped:
    """A message that the server made itself was acknowledged: it carries no event."""

    consumer: str
    subject: str
    stream_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesMissed:
    """At least ``count`` messages of a range were never delivered to the consumer, and will not be."""

    consumer: str
    stream: str
    first_seq: int
    last_seq: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetried:
    """A handling had no effect; the message is redelivered."""

    message_id: str
    consumer: str
    error: str
    attempts: int
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGivenBack:
    """A handling had no effect and counts as no attempt; the message is redelivered."""

    message_id: str
    consumer: str
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSlowed:
    """Different messages of one event type failed in a row: the type continues at a low rate."""

    event_type: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResumed:
    """The event type continues at full rate."""

    event_type: str
    why: str
    slow_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered:
    """A message was dead-lettered (EVT-047-002)."""

    message_id: str
    original_subject: str
    reason: str
    attempts: int
    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened:
    """One side pauses because a dependency is unavailable or answers wrongly."""

    circuit: str
    reason: str
    retry_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitClosed:
    """The dependency works again."""

    circuit: str
    paused_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """All loops run."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped:
    """All loops have ended; ``unfinished`` names the loops cancelled at the end of the grace period."""

    name: str
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """An operator should look at something that no other fact covers; ``event`` is its stable key."""

    event: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A step of the worker's lifecycle succeeded; ``event`` is its stable key."""

    event: str
    text: str


Fact: TypeAlias = (
    EventsPublished
    | EventPostponed
    | EventDied
    | BatchRelayed
    | LeasesLost
    | LeasesReaped
    | WorkerTakenOver
    | MessageProcessed
    | MessageSkipped
    | ServerMessageSkipped
    | MessagesMissed
    | MessageRetried
    | MessageGivenBack
    | TypeSlowed
    | TypeResumed
    | MessageDeadLettered
    | CircuitOpened
    | CircuitClosed
    | WorkerStarted
    | WorkerStopped
    | Noticed
    | Progressed
)

"""The vocabulary of what can happen, in the past tense; logs and metrics are made of it.

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
    """By the database's clock: the moment of the claim there, and what passed until the settlement."""
    duplicate: bool
    latency_seconds: float
    """From the event's creation to the broker's acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPublished:
    """Events of one claim were published: told together, because they are what the worker does most.

    Attributes:
        latencies: of each event, in seconds.
        duplicates: how many of them the stream already had.
        each: makes one fact an event, for who wants them that exactly.
    """

    latencies: Sequence[float]
    duplicates: int
    each: Callable[[], Iterable[EventPublished]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPostponed:
    """An attempt brought no confirmation; the event is due again later."""

    outbox_id: str
    event_type: str
    error: str
    delay_seconds: float
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDied:
    """The event is DEAD: it is never tried again by itself."""

    outbox_id: str
    event_type: str
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRelayed:
    """One claim was worked off."""

    claimed: int
    published: int
    released: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesLost:
    """Another worker has taken over what this one was too slow to settle."""

    side: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesReaped:
    """Leases of workers that died or stalled were ended."""

    count: int


class MessageProcessed(NamedTuple):
    """The handler has the effect and the inbox knows it; a tuple, because it is made for every message."""

    message_id: str
    consumer: str
    subject: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSkipped:
    """A duplicate: settled before, acknowledged without asking the handler.

    ``brought_by``: the consumer that had brought it then, if that is none of this worker's.
    """

    message_id: str
    consumer: str
    brought_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesMissed:
    """At least ``count`` messages of a range left their stream before the consumer was given them."""

    consumer: str
    stream: str
    first_seq: int
    last_seq: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetried:
    """A handling without an effect; the message comes again."""

    message_id: str
    consumer: str
    error: str
    attempts: int
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGivenBack:
    """A handling without an effect that spends no attempt; the message comes again."""

    message_id: str
    consumer: str
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSlowed:
    """Different messages of one event type in a row had no effect: it goes on at a slow pace."""

    event_type: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResumed:
    """The event type goes on at full speed."""

    event_type: str
    why: str
    slow_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered:
    """EVT-047-002, as a fact."""

    message_id: str
    original_subject: str
    reason: str
    attempts: int
    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened:
    """Work on one side pauses because a dependency is away or answers wrongly."""

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
    """All loops have ended; ``unfinished`` names those that the grace period cut off."""

    name: str
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Something an operator should look at that no other fact names; ``event`` is its stable key."""

    event: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A step of the worker's life that went well; ``event`` is its stable key."""

    event: str
    text: str


Fact: TypeAlias = (
    EventsPublished
    | EventPostponed
    | EventDied
    | BatchRelayed
    | LeasesLost
    | LeasesReaped
    | MessageProcessed
    | MessageSkipped
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

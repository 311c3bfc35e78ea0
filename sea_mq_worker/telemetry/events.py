"""Catalog of the log's ``event`` keys: facts by their type, all others by name."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, get_type_hints

# --- Facts that happened in a worker, named in the past tense; logs and metrics are derived from them.
#
# Facts carry ids, counts, sizes and reasons, never payloads or credentials.


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


LoggedFact: TypeAlias = Fact | EventPublished
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One kind of log line.

    Attributes:
        meaning: what happened, and the operator's next step.
        fields: fields beyond those of every line.
    """

    key: str
    level: Level
    meaning: str
    fields: tuple[str, ...] = ("text",)


_FACTS: tuple[tuple[type[LoggedFact], Level, str], ...] = (
    (EventPublished, "debug", "The stream acknowledged an event (EVT-047-001)."),
    (
        EventPostponed,
        "warning",
        "A publish got no acknowledgement; the worker retries it after the delay.",
    ),
    (EventDied, "error", "An event is DEAD: run `outbox show`, fix the cause, run `outbox replay`."),
    (BatchRelayed, "debug", "The worker has settled one claim."),
    (
        LeasesLost,
        "warning",
        "A lease was lost before settlement, in an outage or because this worker stalls.",
    ),
    (LeasesReaped, "warning", "A worker died or stalled with events in flight; they are due again."),
    (
        WorkerTakenOver,
        "warning",
        "A worker died, and this one took its work over: read the dead worker's last log.",
    ),
    (MessageProcessed, "debug", "The handler confirmed the effect, and the inbox recorded it."),
    (MessageSkipped, "debug", "The worker acknowledged a duplicate without calling the handler."),
    (
        ServerMessageSkipped,
        "debug",
        "The worker acknowledged a message that carries no event, such as the server's delete marker.",
    ),
    (
        MessagesMissed,
        "warning",
        "Messages will never be delivered: have their sender replay them.",
    ),
    (
        MessageRetried,
        "warning",
        "The handler did not take a message; the server redelivers it after the delay.",
    ),
    (
        MessageGivenBack,
        "warning",
        "A message was given back without an attempt; the server redelivers it.",
    ),
    (
        TypeSlowed,
        "warning",
        "Consecutive messages of one event type had no effect: fix the handler, run `inbox resume`.",
    ),
    (TypeResumed, "info", "The event type continues at full speed."),
    (
        MessageDeadLettered,
        "error",
        "A message was dead-lettered (EVT-047-002): run `dlq show`, fix the cause, run `dlq redrive`.",
    ),
    (
        CircuitOpened,
        "warning",
        "A circuit breaker opened: work pauses, and the worker probes the dependency.",
    ),
    (CircuitClosed, "info", "A circuit breaker closed: the dependency works again."),
    (WorkerStarted, "info", "All loops of the worker are running."),
    (
        WorkerStopped,
        "info",
        "All loops ended; `unfinished` names those that the grace period cancelled.",
    ),
)


def _line(kind: type[LoggedFact], level: Level, meaning: str) -> LogEvent:
    key = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return LogEvent(key, level, meaning, tuple(get_type_hints(kind)))


FACTS: Mapping[type[LoggedFact], LogEvent] = {kind: _line(kind, level, text) for kind, level, text in _FACTS}

LEVELS: Mapping[type[LoggedFact], Level] = {kind: event.level for kind, event in FACTS.items()} | {
    EventsPublished: FACTS[EventPublished].level,
    Noticed: "warning",
    Progressed: "info",
}

FATAL_NOTICES = frozenset({"contract_broken", "loop_died"})
"""Notices after which the worker exits; they are errors, the others are warnings."""

_NOTICES = {
    "waiting": "At startup: a server does not answer yet; the worker waits for it.",
    "contract_broken": (
        "A schema, own stream or permission is not as required: the worker exits with code 3."
    ),
    "setting_deprecated": "A setting is deprecated, and works: set the one that the text names.",
    "streams_differ": "Streams or consumers differ from their definitions: run `streams check`.",
    "duplicate_window_short": "The deduplication window is shorter than a lease: raise duplicate_window.",
    "backlog_left": "A worker with `--until-empty` ended before the outbox was empty.",
    "partitions_not_made": "The worker may not create partitions: run `sql/roles.sql` again.",
    "events_lost": "The stream has lost events of PUBLISHED rows: run `pipeline reconcile --requeue`.",
    "search_unfinished": (
        "Events wait until the stream is searched for earlier copies: fix the cause in the text."
    ),
    "clock_set_back": (
        "The database's clock was set back; events with later times are sent now: check its time server."
    ),
    "event_not_attempted": (
        "An event was claimed 16, 32, 64, ... times and released unsent: check circuits and time-outs."
    ),
    "session_lost": ("The worker lost its session in PostgreSQL, often by a restart, and opens another."),
    "session_refused": (
        "PostgreSQL refuses the worker's session: if the worker dies, its leases end only by expiry."
    ),
    "lane_not_served": (
        "Another session holds the lane of events with ordering keys and publishes none: look at the session."
    ),
    "connections_short": "PostgreSQL allows fewer connections than a worker may open: raise the limit.",
    "migration_altered": "A migration was applied with other content than its file has: run `doctor`.",
    "plaintext_connection": "A connection leaves the machine unencrypted: use TLS.",
    "secret_file_exposed": "Every user of the machine may read a file with a secret: run `chmod o-rwx`.",
    "loop_died": "A loop of the worker died; the worker exits.",
    "row_refused": "PostgreSQL refuses a write to one row; the others continue: fix the cause in the text.",
    "missed_messages_unknown": (
        "The worker may not look for missed messages: grant STREAM.INFO, CONSUMER.INFO and STREAM.MSG.GET."
    ),
    "consumers_overlap": (
        "Another worker's consumer delivered the message before: give each handler its own schema."
    ),
    "message_undeliverable": "The worker handles a message that its consumer will not deliver again.",
    "message_lost": "A message had no effect, and its stream no longer stores it: send it again.",
    "undeliverable_not_readable": (
        "The worker may not read the stream and misses messages not redelivered: grant STREAM.MSG.GET."
    ),
    "resume_not_readable": "The worker may not read resume requests: run `sql/roles.sql` again.",
    "read_ahead_failed": (
        "The worker may not read the stream; messages behind given back ones wait: grant STREAM.MSG.GET."
    ),
    "handler_rejects": (
        "The handler answers like a wrong URL or token and has accepted no message lately: check both."
    ),
    "handler_batch_failed": (
        "A batch had no usable answer; the worker sends it again in halves: check the handler."
    ),
    "advisory_unreadable": "A message of the advisory stream is no advisory; the worker skips it.",
    "exhausted_message_lost": "A message reached max_deliver, and the stream has dropped it: send it again.",
    "consumer_filter_changed": (
        "Somebody changed the filter of a consumer, which passes messages that do not match for good: run"
        " `pipeline reconcile`."
    ),
    "consumer_paused": "The consumer is paused and delivers nothing: run `nats consumer resume`.",
    "nats_disconnected": "The connection is down; the worker reconnects.",
    "nats_error": "The server or the connection reported an error.",
    "nats_denied": "The server denied a subject: grant the permission to the user.",
    "nats_stream": "The stream was recreated, lost acknowledged messages, or takes no publish.",
}
_PROGRESS = {
    "admin_listening": "The admin server listens at this address.",
    "nats_connected": "A side is connected to this server.",
    "nats_reconnected": "A side is connected again.",
    "partitions_made": "The worker created outbox partitions for these days.",
    "session_ended": "PostgreSQL ended the worker's session while the worker was stopping.",
    "streams_not_compared": "The worker could not compare the definitions with the server.",
}
NOTICES = tuple(
    LogEvent(key, "error" if key in FATAL_NOTICES else "warning", meaning)
    for key, meaning in _NOTICES.items()
)
PROGRESS = tuple(LogEvent(key, "info", meaning) for key, meaning in _PROGRESS.items())
RECORDS = (
    LogEvent(
        "log_lines_lost",
        "warning",
        "`count` lines could not be written, such as for a reader of the log that is too slow.",
        ("count",),
    ),
    LogEvent(
        "observer_failed",
        "error",
        "Logs, metrics or status could not record a fact; logged once each.",
        ("message", "exception"),
    ),
    LogEvent(
        "admin_request_failed",
        "error",
        "The admin server could not answer a request.",
        ("message", "exception"),
    ),
    LogEvent("logged", "warning", "A library logged a warning or error; `logger` is its name.", ("message",)),
)
LOG_EVENTS = (*FACTS.values(), *NOTICES, *PROGRESS, *RECORDS)
"""All log events, grouped by subject."""

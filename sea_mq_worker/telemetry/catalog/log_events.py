"""Every ``event`` of the log: facts by their type, all else by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_type_hints

from sea_mq_worker.domain.facts import (
    BatchRelayed,
    CircuitClosed,
    CircuitOpened,
    EventDied,
    EventPostponed,
    EventPublished,
    EventsPublished,
    Fact,
    LeasesLost,
    LeasesReaped,
    MessageDeadLettered,
    MessageGivenBack,
    MessageProcessed,
    MessageRetried,
    MessageSkipped,
    MessagesMissed,
    Noticed,
    Progressed,
    TypeResumed,
    TypeSlowed,
    WorkerStarted,
    WorkerStopped,
)

Told: TypeAlias = Fact | EventPublished
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One kind of line.

    Attributes:
        meaning: what happened, and what an operator does about it.
        fields: beside those of every line.
    """

    key: str
    level: Level
    meaning: str
    fields: tuple[str, ...] = ("text",)


_FACTS: tuple[tuple[type[Told], Level, str], ...] = (
    (EventPublished, "debug", "EVT-047-001: the stream acknowledged an event."),
    (EventPostponed, "warning", "A publish brought no acknowledgement; it is repeated after the delay."),
    (EventDied, "error", "An event is DEAD: `outbox show` it, mend the cause, `outbox replay`."),
    (BatchRelayed, "debug", "One claim was worked off."),
    (
        LeasesLost,
        "warning",
        "Settled too late: another worker took over, or an outage lost the answer. Often: this one stalls.",
    ),
    (LeasesReaped, "warning", "A worker died or stalled with events in hand; they are due again."),
    (MessageProcessed, "debug", "The handler has the effect, and the inbox knows it."),
    (MessageSkipped, "debug", "A duplicate was acknowledged without asking the handler."),
    (
        MessagesMissed,
        "warning",
        "Messages left their stream before they were delivered: have their sender replay them.",
    ),
    (MessageRetried, "warning", "The handler did not take a message; it comes again after the delay."),
    (MessageGivenBack, "warning", "A message had no effect, which spends no attempt; it comes again."),
    (
        TypeSlowed,
        "warning",
        "Different messages of one event type in a row had no effect: mend the handler, `inbox resume`.",
    ),
    (TypeResumed, "info", "The event type goes on at full speed."),
    (
        MessageDeadLettered,
        "error",
        "EVT-047-002: a message is in the dead-letter stream: `dlq show` it, mend the cause, `dlq redrive`.",
    ),
    (CircuitOpened, "warning", "Work pauses for a dependency; it is probed until it works again."),
    (CircuitClosed, "info", "The dependency works again."),
    (WorkerStarted, "info", "All loops run."),
    (WorkerStopped, "info", "All loops ended; `unfinished` names those that the grace period cut off."),
)


def _line(kind: type[Told], level: Level, meaning: str) -> LogEvent:
    key = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return LogEvent(key, level, meaning, tuple(get_type_hints(kind)))


FACTS: Mapping[type[Told], LogEvent] = {kind: _line(kind, level, text) for kind, level, text in _FACTS}

LEVELS: Mapping[type[Told], Level] = {kind: event.level for kind, event in FACTS.items()} | {
    EventsPublished: FACTS[EventPublished].level,
    Noticed: "warning",
    Progressed: "info",
}

FATAL_NOTICES = frozenset({"contract_broken", "loop_died", "nats_connection_closed"})
"""Notices that tell why the worker ends: errors, the others are warnings."""

NOTICES = tuple(
    LogEvent(key, "error" if key in FATAL_NOTICES else "warning", meaning)
    for key, meaning in (
        ("waiting", "At the start: a server is not there yet; the worker waits for it."),
        ("contract_broken", "A schema, stream, consumer or permission is not as it must be: exit code 3."),
        ("streams_differ", "Streams or consumers differ from their definitions: `streams check`."),
        ("duplicate_window_short", "The stream forgets ids sooner than a lease ends: lengthen its window."),
        (
            "partitions_not_made",
            "The worker may not make partitions ahead: run `sql/roles.sql` again.",
        ),
        (
            "events_lost",
            "The stream has lost events that rows call PUBLISHED: `pipeline reconcile --requeue`.",
        ),
        (
            "search_unfinished",
            "Events wait for a search of the stream for their earlier copies; the text names the remedy.",
        ),
        (
            "clock_set_back",
            "The database's clock was set back; what was written ahead of it is sent now: see its time.",
        ),
        (
            "event_not_attempted",
            "An event was claimed 16, 32, 64, ... times and given back unsent: see the gates and time-outs.",
        ),
        ("plaintext_connection", "A connection leaves the machine unencrypted: use TLS."),
        ("secret_file_exposed", "Every user of the machine may read a file with a secret."),
        ("loop_died", "A loop of the worker died; the worker ends, so that it is started anew."),
        (
            "row_refused",
            "PostgreSQL refuses what the worker writes to one row; the others go on: mend what refuses it.",
        ),
        (
            "missed_messages_unknown",
            "A stream or consumer cannot be asked how far it is: grant STREAM.INFO and CONSUMER.INFO.",
        ),
        (
            "consumers_overlap",
            "Another worker's consumer brought a message before: two handlers need a schema each.",
        ),
        ("message_undeliverable", "A message whose delivery nothing would bring again is handled after all."),
        ("message_lost", "A message had no effect, and its stream no longer holds it: send it again."),
        (
            "undeliverable_not_readable",
            "The worker may not read the stream: what was left behind is not found.",
        ),
        (
            "resume_not_readable",
            "The worker may not read what operators resume: run `sql/roles.sql` again.",
        ),
        (
            "read_ahead_failed",
            "The worker may not read the stream: what waits behind given back messages waits on.",
        ),
        ("advisory_unreadable", "The stream of advisories holds something else; it is passed over."),
        ("exhausted_message_lost", "The server gave a message up, and the stream has dropped it since."),
        ("consumer_paused", "Somebody paused the consumer: it delivers nothing until it is resumed."),
        ("nats_disconnected", "The connection is down; it is made again by itself."),
        ("nats_error", "The server or the connection told an error."),
        ("nats_denied", "The server denied a subject: give the user the permission."),
        (
            "nats_connection_closed",
            "The connection is lost for good; the worker ends, so that it is started anew.",
        ),
        ("nats_stream", "The stream was made anew, lost acknowledged messages, or cannot be published to."),
    )
)
PROGRESS = tuple(
    LogEvent(key, "info", meaning)
    for key, meaning in (
        ("admin_listening", "Health, metrics and the page are at this address."),
        ("nats_connected", "A side is connected, to this server."),
        ("nats_reconnected", "A side is connected again."),
        ("partitions_made", "The outbox has got partitions of these days."),
        ("streams_not_compared", "The definitions could not be compared with what the server has."),
    )
)
RECORDS = (
    LogEvent(
        "log_lines_lost", "warning", "Whoever reads the log is too slow: so many are missing.", ("count",)
    ),
    LogEvent(
        "observer_failed",
        "error",
        "Logs, metrics or status could not take a fact; told once each.",
        ("message", "exception"),
    ),
    LogEvent(
        "admin_request_failed",
        "error",
        "A page of the admin server could not be made.",
        ("message", "exception"),
    ),
    LogEvent(
        "logged", "warning", "A line of a library, warning or error; its name is the `logger`.", ("message",)
    ),
)
LOG_EVENTS = (*FACTS.values(), *NOTICES, *PROGRESS, *RECORDS)
"""All of them, by what they are about."""

"""The one table of what happens in a worker: each event's log line and metrics; all else is made from it.

``emit(key, **fields)`` reports an event. Its listeners write a log line, count metrics and feed the page.
Events carry ids, counts, sizes and reasons, never payloads or credentials.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from sea_mq_worker.ports import Events

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Fields: TypeAlias = Mapping[str, Any]
Each: TypeAlias = Callable[[], Iterable[Fields]]
"""The field ``each`` of an event that is emitted once per batch: makes the fields of every single event."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    unit: str
    """A UCUM unit or, in braces, the counted thing."""
    meaning: str
    """The counted or measured quantity; also the help text of the exposition."""
    conclusion: str
    """How an operator reads the value."""
    labels: tuple[str, ...] = ()
    """None holds an id, an event type or free text. An event has fields of these names."""
    by: str = ""
    """The event's field to count, or to observe: a number, numbers, or a text, which counts as 1 unless it is
    empty. Without it each event counts as 1."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event."""

    key: str
    level: Level
    fields: tuple[str, ...]
    """Fields of the log line, beyond those of every line."""
    meaning: str
    """What happened, and the operator's next step."""
    metrics: tuple[Metric, ...]
    emitted: tuple[str, ...]
    """Fields that ``emit`` takes; other than ``fields`` for an event that is emitted per batch."""


def _metric(
    kind: Kind, name: str, unit: str, meaning: str, conclusion: str, *, labels: str = "", by: str = ""
) -> Metric:
    return Metric(f"sea_mq_{name}", kind, unit, meaning, conclusion, tuple(labels.split()), by)


_counter = partial(_metric, "counter")
_gauge = partial(_metric, "gauge")
_histogram = partial(_metric, "histogram")


def _event(
    key: str, level: Level, fields: str, meaning: str, *metrics: Metric, emitted: str = ""
) -> EventKind:
    return EventKind(key, level, tuple(fields.split()), meaning, metrics, tuple((emitted or fields).split()))


def _texts(level: Level, meanings: Mapping[str, str], *metrics: Metric) -> list[EventKind]:
    return [_event(key, level, "text", meaning, *metrics) for key, meaning in meanings.items()]


# A row of a table is two to four lines.
# fmt: off

_NOTICES_TOTAL = _counter("notices_total", "{notice}", "Notices for operators, by their `event` in the log.",
                          "Search the log for it.", labels="event")
_FATAL = _texts("error", {
        "contract_broken":
            "A schema, own stream or permission is not as required: the worker exits with code 3.",
        "loop_died": "A loop of the worker died; the worker exits.",
    }, _NOTICES_TOTAL)
_WARNINGS = _texts("warning", {
        "waiting": "At startup: a server does not answer yet; the worker waits for it.",
        "setting_deprecated": "A setting is deprecated, and works: set the one that the text names.",
        "streams_differ": "Streams or consumers differ from their definitions: run `streams check`.",
        "duplicate_window_short":
            "The deduplication window is shorter than a lease: raise duplicate_window.",
        "backlog_left": "A worker with `--until-empty` ended before the outbox was empty.",
        "partitions_not_made": "The worker may not create partitions: run `sql/roles.sql` again.",
        "events_lost": "The stream has lost events of PUBLISHED rows: run `pipeline reconcile --requeue`.",
        "search_unfinished":
            "Events wait until the stream is searched for earlier copies: fix the cause in the text.",
        "clock_set_back":
            "The database's clock was set back; events with later times are sent now: check its time server.",
        "event_not_attempted":
            "An event was claimed 16, 32, 64, ... times and released unsent: check circuits and time-outs.",
        "session_lost": "The worker lost its session in PostgreSQL, often by a restart, and opens another.",
        "session_refused":
            "PostgreSQL refuses the worker's session: if the worker dies, its leases end only by expiry.",
        "connections_short": "PostgreSQL allows fewer connections than a worker may open: raise the limit.",
        "migration_altered": "A migration was applied with other content than its file has: run `doctor`.",
        "plaintext_connection": "A connection leaves the machine unencrypted: use TLS.",
        "secret_file_exposed": "Every user of the machine may read a file with a secret: run `chmod o-rwx`.",
        "row_refused":
            "PostgreSQL refuses a write to one row; the others continue: fix the cause in the text.",
        "missed_messages_unknown":
            "The worker may not look for missed messages: grant STREAM.INFO, CONSUMER.INFO and "
            "STREAM.MSG.GET.",
        "consumers_overlap":
            "Another worker's consumer delivered the message before: give each handler its own schema.",
        "message_undeliverable": "The worker handles a message that its consumer will not deliver again.",
        "message_lost": "A message had no effect, and its stream no longer stores it: send it again.",
        "undeliverable_not_readable":
            "The worker may not read the stream and misses messages not redelivered: grant STREAM.MSG.GET.",
        "resume_not_readable": "The worker may not read resume requests: run `sql/roles.sql` again.",
        "read_ahead_failed":
            "The worker may not read the stream; messages behind given back ones wait: grant STREAM.MSG.GET.",
        "handler_rejects":
            "The handler answers like a wrong URL or token and has accepted no message lately: check both.",
        "handler_batch_failed":
            "A batch had no usable answer; the worker sends it again in halves: check the handler.",
        "advisory_unreadable": "A message of the advisory stream is no advisory; the worker skips it.",
        "exhausted_message_lost":
            "A message reached max_deliver, and the stream has dropped it: send it again.",
        "consumer_filter_changed":
            "Somebody changed the filter of a consumer, which passes messages that do not match for good: "
            "run `pipeline reconcile`.",
        "consumer_paused": "The consumer is paused and delivers nothing: run `nats consumer resume`.",
        "nats_disconnected": "The connection is down; the worker reconnects.",
        "nats_error": "The server or the connection reported an error.",
        "nats_denied": "The server denied a subject: grant the permission to the user.",
        "nats_stream": "The stream was recreated, lost acknowledged messages, or takes no publish.",
    }, _NOTICES_TOTAL)
TABLE = (
    # With fields of their own.
    _event("event_published", "debug", "outbox_id event_type subject published_at duplicate latency_seconds",
           "The stream acknowledged an event (EVT-047-001).",
           _counter("outbox_published_total", "{event}",
                    "Events that the stream acknowledged (EVT-047-001).",
                    "The outbound rate; 0 while depth grows: check the circuits.", by="count"),
           _counter("outbox_duplicates_total", "{event}", "Published events that the stream already stored.",
                    "Replies were lost, or a worker died before settlement.", by="duplicates"),
           _histogram("outbox_latency_seconds", "s",
                      "Time from an event's due time, or first attempt if earlier, to the stream's "
                      "acknowledgement.",
                      "The delay that readers see; high with a low batch time: events wait for a claim.",
                      by="latencies"),
           emitted="count latencies duplicates each"),
    _event("event_postponed", "warning", "outbox_id event_type error delay_seconds attempts",
           "A publish got no acknowledgement; the worker retries it after the delay.",
           _counter("outbox_postponed_total", "{attempt}", "Publish attempts without an acknowledgement.",
                    "The broker refuses or replies late; the worker retries each event.")),
    _event("event_died", "error", "outbox_id event_type error attempts",
           "An event is DEAD: run `outbox show`, fix the cause, run `outbox replay`.",
           _counter("outbox_died_total", "{event}", "Events that became DEAD.",
                    "The worker never retries them: run `outbox list --state DEAD`.")),
    _event("batch_relayed", "debug", "claimed published released seconds",
           "The worker has settled one claim.",
           _counter("outbox_released_total", "{event}", "Claimed events released without an attempt.",
                    "An outage, a stop or an earlier event of the key ended the claim early.",
                    by="released"),
           _histogram("outbox_batch_seconds", "s", "Time from a claim to its settlement.",
                      "The speed of broker and database; near the lease: the worker will lose leases.",
                      by="seconds")),
    _event("leases_lost", "warning", "side count",
           "A lease was lost before settlement, in an outage or because this worker stalls.",
           _counter("leases_lost_total", "{lease}", "Leases lost to another worker before settlement.",
                    "This worker stalls, or its lease is too short; work is done twice.", labels="side",
                    by="count")),
    _event("leases_reaped", "warning", "count",
           "A worker died or stalled with events in flight; they are due again.",
           _counter("outbox_leases_reaped_total", "{event}",
                    "Expired leases of events that a worker removed.",
                    "A worker died or stalled with events in flight.", by="count")),
    _event("worker_taken_over", "warning", "worker side count",
           "A worker died, and this one took its work over: read the dead worker's last log.",
           _counter("leases_taken_over_total", "{lease}",
                    "Leases that this worker ended because their worker had died.",
                    "A worker was killed or crashed with events or messages in flight.", labels="side",
                    by="count")),
    _event("message_processed", "debug", "message_id consumer subject status seconds",
           "The handler confirmed the effect, and the inbox recorded it.",
           _counter("inbox_processed_total", "{message}", "Messages that the handler accepted.",
                    "The inbound rate; 409 means that the effect already existed.", labels="consumer status",
                    by="count"),
           _histogram("inbox_message_seconds", "s", "Time from a message's receipt to its recorded effect.",
                      "The handler's duration and the wait for a free slot.", labels="consumer",
                      by="durations"),
           emitted="consumer status count durations each"),
    _event("message_skipped", "debug", "message_id consumer brought_by",
           "The worker acknowledged a duplicate without calling the handler.",
           _counter("inbox_skipped_total", "{message}",
                    "Messages settled before and acknowledged without a handler call.",
                    "Redeliveries: acknowledgements are lost or late.", labels="consumer"),
           _counter("inbox_overlapping_total", "{message}",
                    "Messages that another worker's consumer delivered before, skipped.",
                    "Above 0: give each handler its own schema.", labels="consumer", by="brought_by")),
    _event("server_message_skipped", "debug", "consumer subject stream_seq",
           "The worker acknowledged a message that carries no event, such as the server's delete marker.",
           _counter("inbox_server_messages_total", "{message}",
                    "Messages of the server itself, such as delete markers, acknowledged without a "
                    "handler call.", "They carry no event.", labels="consumer")),
    _event("messages_missed", "warning", "consumer stream first_seq last_seq count",
           "Messages will never be delivered: have their sender replay them.",
           _counter("inbox_missed_total", "{message}", "Messages that the consumer is known to have missed.",
                    "Above 0: have their sender replay them, and raise the stream's limits.",
                    labels="consumer", by="count")),
    _event("message_retried", "warning", "message_id consumer error attempts delay_seconds",
           "The handler did not take a message; the server redelivers it after the delay.",
           _counter("inbox_retried_total", "{attempt}",
                    "Handling attempts without an effect, to be retried.",
                    "The handler fails; the log event message_retried has its errors.", labels="consumer")),
    _event("message_given_back", "warning", "message_id consumer error delay_seconds",
           "A message was given back without an attempt; the server redelivers it.",
           _counter("inbox_given_back_total", "{message}",
                    "Messages given back without an attempt: of a slow event type, or at a stop of the "
                    "worker.", "As for sea_mq_inbox_slow_types.", labels="consumer")),
    _event("type_slowed", "warning", "event_type reason",
           "Consecutive messages of one event type had no effect: fix the handler, run `inbox resume`.",
           _gauge("inbox_slow_types", "{type}",
                  "Event types slowed because consecutive messages had no effect.",
                  "Above 0: fix the handler of the type in the log event type_slowed, run `inbox resume`.")),
    _event("type_resumed", "info", "event_type why slow_seconds", "The event type continues at full speed."),
    _event("message_dead_lettered", "error", "message_id original_subject reason attempts consumer",
           "A message was dead-lettered (EVT-047-002): run `dlq show`, fix the cause, run `dlq redrive`.",
           _counter("inbox_dead_lettered_total", "{message}", "Dead-lettered messages (EVT-047-002).",
                    "The worker never retries them: run `dlq list`.", labels="consumer reason")),
    _event("circuit_opened", "warning", "circuit reason retry_seconds",
           "A circuit breaker opened: work pauses, and the worker probes the dependency.",
           _gauge("circuit_open", "{circuit}",
                  "1 while the circuit breaker of a dependency is open and its work pauses.",
                  "The dependency is unreachable or fails; `/readyz` has the reason.", labels="circuit"),
           _counter("circuit_opened_total", "{opening}", "Openings of the circuit breaker of a dependency.",
                    "Rising every minute: the dependency is unstable.", labels="circuit")),
    _event("circuit_closed", "info", "circuit paused_seconds",
           "A circuit breaker closed: the dependency works again."),
    _event("worker_started", "info", "name version", "All loops of the worker are running.",
           _gauge("worker_info", "{worker}", "Always 1.", "The running version; absent: no worker runs.",
                  labels="name version")),
    _event("worker_stopped", "info", "name unfinished",
           "All loops ended; `unfinished` names those that the grace period cancelled."),
    # With a text alone, about something that no other event covers: after the first two the worker exits.
    *_FATAL,
    *_WARNINGS,
    # With a text alone: a step of the worker's lifecycle succeeded.
    *_texts("info", {
        "admin_listening": "The admin server listens at this address.",
        "nats_connected": "A side is connected to this server.",
        "nats_reconnected": "A side is connected again.",
        "partitions_made": "The worker created outbox partitions for these days.",
        "session_ended": "PostgreSQL ended the worker's session while the worker was stopping.",
        "streams_not_compared": "The worker could not compare the definitions with the server.",
    }),
    # Written to the log alone.
    _event("log_lines_lost", "warning", "count",
           "`count` lines could not be written, such as for a reader of the log that is too slow."),
    _event("observer_failed", "error", "message exception",
           "Logs, metrics or status could not record an event; logged once each."),
    _event("admin_request_failed", "error", "message exception",
           "The admin server could not answer a request."),
    _event("logged", "warning", "message", "A library logged a warning or error; `logger` is its name."),
)

SAMPLED = (
    _gauge("outbox_depth", "{event}",
           "Events that are due and not finished, up to 100,000: `waiting` of `depth`. The `count` of "
           "QRY-050 also has the dead and the scheduled ones.",
           "The outbound backlog; growing: producers outpace the worker, or the worker pauses."),
    _gauge("outbox_oldest_seconds", "s",
           "Time since the oldest event of the depth was due; for a failed event, since its first attempt.",
           "The lag of the stream behind the database."),
    _gauge("outbox_scheduled", "{event}",
           "Events that are not due yet and have not failed, counted up to 100,000.",
           "The depth excludes them."),
    _gauge("outbox_dead", "{event}", "DEAD events in the table.",
           "Above 0, an operator has to decide: `outbox replay` or leave them."),
    _gauge("outbox_events_lost", "{stream}",
           "1 while a sample shows that the stream lacks events of PUBLISHED rows.",
           "The stream was recreated, restored or purged: `pipeline reconcile --requeue` sends them again."),
    _gauge("inbox_depth", "{message}",
           "Messages received and not finished, up to 100,000: `waiting` of `depth`. The `count` of "
           "QRY-051 also has the dead-lettered ones, until they are redriven or pruned.",
           "The backlog of the handler."),
    _gauge("inbox_oldest_seconds", "s", "Time since the receipt of the oldest unfinished message.",
           "Growing: a message keeps failing; `inbox list` names it."),
    _gauge("inbox_dead", "{message}", "Dead-lettered messages in the table that no operator closed.",
           "Above 0, an operator has to decide: `dlq redrive` or `dlq purge`."),
    _gauge("consumer_pending", "{message}", "Messages not yet delivered to the durable, sampled every 15 s.",
           "The inbound backlog; growing: producers outpace the handler, or pulling pauses.",
           labels="consumer"),
    _gauge("consumer_oldest_seconds", "s",
           "Age of the oldest message not yet delivered to the durable, sampled every 15 s.",
           "Growing: as for sea_mq_consumer_pending. 0 without the right to read the stream.",
           labels="consumer"),
    _gauge("consumer_ack_pending", "{message}",
           "Messages delivered and not acknowledged yet, sampled every 15 s.",
           "In-flight messages; at max_ack_pending for long: the handler is the bottleneck.",
           labels="consumer"),
    _gauge("backlog_sample_age_seconds", "s",
           "Age of the samples depth, oldest, scheduled and dead of a side, taken every 15 s.",
           "Above 60: the database does not answer, and these numbers are outdated.", labels="side"),
)
"""Metrics that no event changes: samples of the tables and of the consumers."""

PIPELINE_METRICS = (
    _gauge("pipeline_last_success_timestamp_seconds", "s",
           "When the job last succeeded, in seconds since 1970.",
           "An old value: the job fails, or its schedule has stopped.", labels="task stream"),
    _gauge("pipeline_rows", "{message}", "Messages of the last batch.",
           "0 while the lag grows: the query is stuck.", labels="task stream"),
    _gauge("pipeline_lag_sequences", "{message}",
           "Sequences of the stream that were not in the lake after the last batch.",
           "Growing: messages arrive faster than they are landed.", labels="task stream"),
    _gauge("pipeline_seconds", "s", "Duration of the last batch.",
           "Above the interval of --every: give the job more processors.",
           labels="task stream"),
)
"""Served by `pipeline land --metrics`; ``task`` is the job, as Prometheus has a label ``job`` of its own."""
# fmt: on

EVENTS: Mapping[str, EventKind] = {event.key: event for event in TABLE}
FATAL_NOTICES = frozenset(event.key for event in _FATAL)
NOTICES = (*FATAL_NOTICES, *(event.key for event in _WARNINGS))
METRICS: Sequence[Metric] = tuple(
    {metric.name: metric for metric in (*(m for event in TABLE for m in event.metrics), *SAMPLED)}.values()
)
"""All metrics of a worker; a producer has none, because ``enqueue`` records none."""


class Listeners:
    """Emits every event to each listener; logs the first exception of each, and continues."""

    def __init__(self, listeners: Sequence[Events]) -> None:
        self._listeners = tuple(listeners)
        self._failed: set[int] = set()

    def emit(self, key: str, /, **fields: Any) -> None:
        for number, listener in enumerate(self._listeners):
            try:
                listener.emit(key, **fields)
            except Exception:
                if number not in self._failed:
                    self._failed.add(number)
                    logging.getLogger("sea_mq_worker").exception(
                        "%s raised on an event", type(listener).__name__, extra={"event": "observer_failed"}
                    )

"""Catalog of the metrics of the worker and of the pipeline's jobs; there are no others.

A producer's process has no metrics, because ``enqueue`` records none.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        unit: a UCUM unit or, in braces, the counted thing.
        meaning: the counted or measured quantity; also the help text of the exposition.
        conclusion: how an operator reads the value.
        labels: none holds an id, an event type or free text.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    conclusion: str
    labels: tuple[str, ...] = ()


_Rows: TypeAlias = tuple[tuple[tuple[str, Kind, str, *tuple[str, ...]], str, str], ...]
"""For each metric its name, kind, unit and labels; then its meaning and its conclusion."""


def _metrics(rows: _Rows) -> tuple[Metric, ...]:
    return tuple(
        Metric(name, kind, unit, meaning, conclusion, tuple(labels))
        for (name, kind, unit, *labels), meaning, conclusion in rows
    )


METRICS = _metrics(
    (
        (
            ("sea_mq_outbox_published_total", "counter", "{event}"),
            "Events that the stream acknowledged (EVT-047-001).",
            "The outbound rate; 0 while depth grows: check the circuits.",
        ),
        (
            ("sea_mq_outbox_duplicates_total", "counter", "{event}"),
            "Published events that the stream already stored.",
            "Replies were lost, or a worker died before settlement.",
        ),
        (
            ("sea_mq_outbox_postponed_total", "counter", "{attempt}"),
            "Publish attempts without an acknowledgement.",
            "The broker refuses or replies late; the worker retries each event.",
        ),
        (
            ("sea_mq_outbox_died_total", "counter", "{event}"),
            "Events that became DEAD.",
            "The worker never retries them: run `outbox list --state DEAD`.",
        ),
        (
            ("sea_mq_outbox_released_total", "counter", "{event}"),
            "Claimed events released without an attempt.",
            "An outage, a stop or an earlier event of the key ended the claim early.",
        ),
        (
            ("sea_mq_outbox_leases_reaped_total", "counter", "{event}"),
            "Expired leases of events that a worker removed.",
            "A worker died or stalled with events in flight.",
        ),
        (
            ("sea_mq_outbox_latency_seconds", "histogram", "s"),
            "Time from an event's due time, or first attempt if earlier, to the stream's acknowledgement.",
            "The delay that readers see; high with a low batch time: events wait for a claim.",
        ),
        (
            ("sea_mq_outbox_batch_seconds", "histogram", "s"),
            "Time from a claim to its settlement.",
            "The speed of broker and database; near the lease: the worker will lose leases.",
        ),
        (
            ("sea_mq_outbox_depth", "gauge", "{event}"),
            (
                "Events that are due and not finished, up to 100,000: `waiting` of `depth`. The `count` of "
                "QRY-050 also has the dead and the scheduled ones."
            ),
            "The outbound backlog; growing: producers outpace the worker, or the worker pauses.",
        ),
        (
            ("sea_mq_outbox_oldest_seconds", "gauge", "s"),
            "Time since the oldest event of the depth was due; for a failed event, since its first attempt.",
            "The lag of the stream behind the database.",
        ),
        (
            ("sea_mq_outbox_scheduled", "gauge", "{event}"),
            "Events that are not due yet and have not failed, counted up to 100,000.",
            "The depth excludes them.",
        ),
        (
            ("sea_mq_outbox_dead", "gauge", "{event}"),
            "DEAD events in the table.",
            "Above 0, an operator has to decide: `outbox replay` or leave them.",
        ),
        (
            ("sea_mq_outbox_events_lost", "gauge", "{stream}"),
            "1 while a sample shows that the stream lacks events of PUBLISHED rows.",
            "The stream was recreated, restored or purged: `pipeline reconcile --requeue` sends them again.",
        ),
        (
            ("sea_mq_inbox_processed_total", "counter", "{message}", "consumer", "status"),
            "Messages that the handler accepted.",
            "The inbound rate; 409 means that the effect already existed.",
        ),
        (
            ("sea_mq_inbox_skipped_total", "counter", "{message}", "consumer"),
            "Messages settled before and acknowledged without a handler call.",
            "Redeliveries: acknowledgements are lost or late.",
        ),
        (
            ("sea_mq_inbox_server_messages_total", "counter", "{message}", "consumer"),
            "Messages of the server itself, such as delete markers, acknowledged without a handler call.",
            "They carry no event.",
        ),
        (
            ("sea_mq_inbox_overlapping_total", "counter", "{message}", "consumer"),
            "Messages that another worker's consumer delivered before, skipped.",
            "Above 0: give each handler its own schema.",
        ),
        (
            ("sea_mq_inbox_missed_total", "counter", "{message}", "consumer"),
            "Messages that the consumer is known to have missed.",
            "Above 0: have their sender replay them, and raise the stream's limits.",
        ),
        (
            ("sea_mq_inbox_retried_total", "counter", "{attempt}", "consumer"),
            "Handling attempts without an effect, to be retried.",
            "The handler fails; the log event message_retried has its errors.",
        ),
        (
            ("sea_mq_inbox_given_back_total", "counter", "{message}", "consumer"),
            "Messages given back without an attempt: of a slow event type, or at a stop of the worker.",
            "As for sea_mq_inbox_slow_types.",
        ),
        (
            ("sea_mq_inbox_slow_types", "gauge", "{type}"),
            "Event types slowed because consecutive messages had no effect.",
            "Above 0: fix the handler of the type in the log event type_slowed, run `inbox resume`.",
        ),
        (
            ("sea_mq_inbox_dead_lettered_total", "counter", "{message}", "consumer", "reason"),
            "Dead-lettered messages (EVT-047-002).",
            "The worker never retries them: run `dlq list`.",
        ),
        (
            ("sea_mq_inbox_message_seconds", "histogram", "s", "consumer"),
            "Time from a message's receipt to its recorded effect.",
            "The handler's duration and the wait for a free slot.",
        ),
        (
            ("sea_mq_inbox_depth", "gauge", "{message}"),
            (
                "Messages received and not finished, up to 100,000: `waiting` of `depth`. The `count` of "
                "QRY-051 also has the dead-lettered ones, until they are redriven or pruned."
            ),
            "The backlog of the handler.",
        ),
        (
            ("sea_mq_inbox_oldest_seconds", "gauge", "s"),
            "Time since the receipt of the oldest unfinished message.",
            "Growing: a message keeps failing; `inbox list` names it.",
        ),
        (
            ("sea_mq_inbox_dead", "gauge", "{message}"),
            "Dead-lettered messages in the table that no operator closed.",
            "Above 0, an operator has to decide: `dlq redrive` or `dlq purge`.",
        ),
        (
            ("sea_mq_consumer_pending", "gauge", "{message}", "consumer"),
            "Messages not yet delivered to the durable, sampled every 15 s.",
            "The inbound backlog; growing: producers outpace the handler, or pulling pauses.",
        ),
        (
            ("sea_mq_consumer_oldest_seconds", "gauge", "s", "consumer"),
            "Age of the oldest message not yet delivered to the durable, sampled every 15 s.",
            "Growing: as for sea_mq_consumer_pending. 0 without the right to read the stream.",
        ),
        (
            ("sea_mq_consumer_ack_pending", "gauge", "{message}", "consumer"),
            "Messages delivered and not acknowledged yet, sampled every 15 s.",
            "In-flight messages; at max_ack_pending for long: the handler is the bottleneck.",
        ),
        (
            ("sea_mq_backlog_sample_age_seconds", "gauge", "s", "side"),
            "Age of the samples depth, oldest, scheduled and dead of a side, taken every 15 s.",
            "Above 60: the database does not answer, and these numbers are outdated.",
        ),
        (
            ("sea_mq_leases_lost_total", "counter", "{lease}", "side"),
            "Leases lost to another worker before settlement.",
            "This worker stalls, or its lease is too short; work is done twice.",
        ),
        (
            ("sea_mq_leases_taken_over_total", "counter", "{lease}", "side"),
            "Leases that this worker ended because their worker had died.",
            "A worker was killed or crashed with events or messages in flight.",
        ),
        (
            ("sea_mq_circuit_open", "gauge", "{circuit}", "circuit"),
            "1 while the circuit breaker of a dependency is open and its work pauses.",
            "The dependency is unreachable or fails; `/readyz` has the reason.",
        ),
        (
            ("sea_mq_circuit_opened_total", "counter", "{opening}", "circuit"),
            "Openings of the circuit breaker of a dependency.",
            "Rising every minute: the dependency is unstable.",
        ),
        (
            ("sea_mq_notices_total", "counter", "{notice}", "event"),
            "Notices for operators, by their `event` in the log.",
            "Search the log for it.",
        ),
        (
            ("sea_mq_worker_info", "gauge", "{worker}", "name", "version"),
            "Always 1.",
            "The running version; absent: no worker runs.",
        ),
    )
)

_PIPELINE_LABELS = ("task", "stream")
PIPELINE_METRICS = _metrics(
    (
        (
            ("sea_mq_pipeline_last_success_timestamp_seconds", "gauge", "s", *_PIPELINE_LABELS),
            "When the job last succeeded, in seconds since 1970.",
            "An old value: the job fails, or its schedule has stopped.",
        ),
        (
            ("sea_mq_pipeline_rows", "gauge", "{message}", *_PIPELINE_LABELS),
            "Messages of the last run.",
            "0 while the lag grows: the job stops early.",
        ),
        (
            ("sea_mq_pipeline_lag_sequences", "gauge", "{message}", *_PIPELINE_LABELS),
            "Sequences that the stream had at the start of the last run and that are not in the lake.",
            "More than 0 after a run: it was stopped, and the next one continues.",
        ),
        (
            ("sea_mq_pipeline_seconds", "gauge", "s", *_PIPELINE_LABELS),
            "Duration of the last run.",
            "Close to the period of the job's schedule: run it less often, or with more processors.",
        ),
    )
)
"""Written by `--metrics-file`. ``task`` is the job's name, as Prometheus has a label ``job`` of its own."""

"""Every metric of the worker; it can count nothing else."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        unit: as UCUM or, in braces, what is counted.
        meaning: what is counted or measured; also the exposition's help.
        conclusion: what an operator makes of it.
        labels: none holds an id, an event type or free text.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    conclusion: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric(
        "sea_mq_outbox_published_total",
        "counter",
        "{event}",
        "Events that the stream acknowledged (EVT-047-001).",
        "The outbound rate; none while depth grows: look at the gates.",
    ),
    Metric(
        "sea_mq_outbox_duplicates_total",
        "counter",
        "{event}",
        "Published events that the stream already had.",
        "Answers were lost, or a worker died between publish and settlement; no second copy was made.",
    ),
    Metric(
        "sea_mq_outbox_postponed_total",
        "counter",
        "{attempt}",
        "Publish attempts without an acknowledgement.",
        "The broker refuses or answers late; each event is tried again.",
    ),
    Metric(
        "sea_mq_outbox_died_total",
        "counter",
        "{event}",
        "Events that went DEAD.",
        "Never tried again by themselves: `outbox list --state DEAD`.",
    ),
    Metric(
        "sea_mq_outbox_released_total",
        "counter",
        "{event}",
        "Claimed events given back without an attempt.",
        "Claims that an outage, a stop or a head of their key cut short; they cost nothing else.",
    ),
    Metric(
        "sea_mq_outbox_leases_reaped_total",
        "counter",
        "{event}",
        "Leases of events ended because they had run out.",
        "A worker died or stalled while it had events in hand.",
    ),
    Metric(
        "sea_mq_outbox_latency_seconds",
        "histogram",
        "s",
        "From when an event was due, or first tried if that was earlier, to the stream's acknowledgement.",
        "What a reader of the stream waits for; high with a low batch time: events wait to be claimed.",
    ),
    Metric(
        "sea_mq_outbox_batch_seconds",
        "histogram",
        "s",
        "From a claim to its settlement.",
        "The broker's and the database's speed; near the lease: leases are going to be lost.",
    ),
    Metric(
        "sea_mq_outbox_depth",
        "gauge",
        "{event}",
        "Events that are due and not finished (of QRY-050), counted up to 100,000.",
        "What waits; growing: producers are faster than the worker, or it pauses.",
    ),
    Metric(
        "sea_mq_outbox_oldest_seconds",
        "gauge",
        "s",
        "For how long the oldest of them is due; for one that has failed, since it was first tried.",
        "How far the stream is behind the database.",
    ),
    Metric(
        "sea_mq_outbox_scheduled",
        "gauge",
        "{event}",
        "Events that are not due yet and have not failed, counted up to 100,000.",
        "Written for later; not in the depth.",
    ),
    Metric(
        "sea_mq_outbox_dead",
        "gauge",
        "{event}",
        "DEAD events in the table.",
        "Above 0 an operator has to decide: replay or leave them.",
    ),
    Metric(
        "sea_mq_outbox_events_lost",
        "gauge",
        "{stream}",
        "1 while the stream lacks events whose rows are PUBLISHED, as far as a sample shows.",
        "The stream was made anew or set back: `pipeline reconcile --requeue` sends them again.",
    ),
    Metric(
        "sea_mq_inbox_processed_total",
        "counter",
        "{message}",
        "Messages that the handler has taken, by its status.",
        "The inbound rate; 409 says that the handler had the effect before.",
        ("consumer", "status"),
    ),
    Metric(
        "sea_mq_inbox_skipped_total",
        "counter",
        "{message}",
        "Messages settled before and acknowledged without asking the handler.",
        "Redeliveries: acknowledgements are lost or late.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_overlapping_total",
        "counter",
        "{message}",
        "Messages that another worker's consumer had brought before; the handler was not asked.",
        "Above 0: two durables take the same messages; with two handlers, give each a schema of its own.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_missed_total",
        "counter",
        "{message}",
        "Messages that left their stream before the consumer was given them, as far as that can be known.",
        "Above 0: have their sender replay them, and raise the stream's limits.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_retried_total",
        "counter",
        "{attempt}",
        "Handlings without an effect, to be repeated.",
        "The handler fails; the log's message_retried has its errors.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_given_back_total",
        "counter",
        "{message}",
        "Messages given back without an attempt: of a slow event type, or because the worker stopped.",
        "An event type fails: the log's type_slowed names it; mend the handler, then `inbox resume`.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_slow_types",
        "gauge",
        "{type}",
        "Event types that have a slow pace, because different messages in a row had no effect.",
        "Above 0: mend the handler; the log's type_slowed names the type and what to do.",
    ),
    Metric(
        "sea_mq_inbox_dead_lettered_total",
        "counter",
        "{message}",
        "Messages put into the dead-letter stream (EVT-047-002), by reason.",
        "Never handled by themselves again: `dlq list`.",
        ("consumer", "reason"),
    ),
    Metric(
        "sea_mq_inbox_message_seconds",
        "histogram",
        "s",
        "From a message's receipt to its recorded effect.",
        "The handler's speed and the wait for a place.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_inbox_depth",
        "gauge",
        "{message}",
        "Messages received and not finished (QRY-051), counted up to 100,000.",
        "What the handler owes; what still waits in the stream is `sea_mq_consumer_pending`.",
    ),
    Metric(
        "sea_mq_inbox_oldest_seconds",
        "gauge",
        "s",
        "Age of the oldest unfinished message since its receipt.",
        "Growing: one message is retried again and again, `inbox list` names it.",
    ),
    Metric(
        "sea_mq_inbox_dead",
        "gauge",
        "{message}",
        "Dead-lettered messages in the table.",
        "Above 0 an operator has to decide: `dlq redrive` or leave them.",
    ),
    Metric(
        "sea_mq_consumer_pending",
        "gauge",
        "{message}",
        "Messages that the stream has still to deliver to the durable, asked every 15 s.",
        "What waits inbound; growing: the handler is slower than the producers, or pulling pauses.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_consumer_ack_pending",
        "gauge",
        "{message}",
        "Messages delivered to workers and not acknowledged yet, asked every 15 s.",
        "In hand; at max_ack_pending for long: the handler is the bottleneck.",
        ("consumer",),
    ),
    Metric(
        "sea_mq_backlog_sample_age_seconds",
        "gauge",
        "s",
        "Age of depth, oldest, scheduled and dead of a side, which are sampled every 15 s.",
        "Above a minute: the database does not answer, and these numbers are old.",
        ("side",),
    ),
    Metric(
        "sea_mq_leases_lost_total",
        "counter",
        "{lease}",
        "Settled too late: another worker had taken over.",
        "This worker stalls, or its lease is too short; nothing is lost, but work is done twice.",
        ("side",),
    ),
    Metric(
        "sea_mq_circuit_open",
        "gauge",
        "{gate}",
        "1 while work pauses for a dependency.",
        "The dependency is away or answers wrongly; `/readyz` has the reason.",
        ("circuit",),
    ),
    Metric(
        "sea_mq_circuit_opened_total",
        "counter",
        "{pause}",
        "How often work began to pause for a dependency.",
        "Rising by the minute: the dependency comes and goes.",
        ("circuit",),
    ),
    Metric(
        "sea_mq_notices_total",
        "counter",
        "{notice}",
        "Whatever else an operator should look at, by its key in the log.",
        "Search the log for that `event`.",
        ("event",),
    ),
    Metric(
        "sea_mq_worker_info",
        "gauge",
        "{worker}",
        "Always 1; the labels tell the worker and its version.",
        "Which versions run; absent: none does.",
        ("name", "version"),
    ),
)

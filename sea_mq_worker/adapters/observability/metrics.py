"""Metrics in Prometheus' format, and the running numbers of the status page.

| name | labels | what |
|---|---|---|
| sea_mq_outbox_published_total | | events that the stream acknowledged (EVT-047-001) |
| sea_mq_outbox_duplicates_total | | of these, those that the stream already had |
| sea_mq_outbox_postponed_total | | attempts without an acknowledgement |
| sea_mq_outbox_buried_total | | events that went DEAD |
| sea_mq_outbox_released_total | | events given back without an attempt |
| sea_mq_outbox_leases_reaped_total | | leases ended because they had run out |
| sea_mq_outbox_latency_seconds | | creation to acknowledgement |
| sea_mq_outbox_batch_seconds | | time to work off one claim |
| sea_mq_leases_lost_total | side | settled too late: another worker had taken over |
| sea_mq_inbox_processed_total | consumer, status | messages whose effect is there |
| sea_mq_inbox_skipped_total | consumer | duplicates acknowledged unasked |
| sea_mq_inbox_retried_total | consumer | handlings without an effect |
| sea_mq_inbox_dead_lettered_total | consumer, reason | messages in the dead-letter stream (EVT-047-002) |
| sea_mq_inbox_message_seconds | consumer | receipt to recorded effect |
| sea_mq_gate_paused | gate | 1 while work pauses for a dependency |
| sea_mq_gate_pauses_total | gate | how often it began to pause |
| sea_mq_notices_total | event | what else an operator should look at |
| sea_mq_outbox_depth, sea_mq_inbox_depth | | unfinished rows (QRY-050, QRY-051) |
| sea_mq_outbox_oldest_seconds, sea_mq_inbox_oldest_seconds | | age of the oldest of them |
| sea_mq_outbox_dead, sea_mq_inbox_dead | | DEAD events; dead-lettered messages |
| sea_mq_backlog_sample_age_seconds | side | how old the six numbers above are |
| sea_mq_worker_info | name, version | always 1 |

No label holds an id, an event type or free text; one that could grow without end ends in ``other``.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from sea_mq_worker.adapters.observability.rates import Rate
from sea_mq_worker.domain.facts import (
    BatchRelayed,
    EventBuried,
    EventPostponed,
    EventsPublished,
    Fact,
    GatePaused,
    GateResumed,
    LeasesLost,
    LeasesReaped,
    MessageDeadLettered,
    MessageProcessed,
    MessageRetried,
    MessageSkipped,
    Noticed,
    Progressed,
    WorkerStarted,
    WorkerStopped,
)

Side: TypeAlias = Literal["outbox", "inbox"]

_LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
_VALUES_MAX = 64
"""Of a label; a worker with more consumers, gates or reasons than that does not exist."""
_RENDER_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """One sample of QRY-050 or QRY-051."""

    depth: int
    oldest_seconds: float
    """0 where nothing waits."""
    dead: int


class MetricsObserver:
    """Counts facts; ``render`` is what a scrape gets, ``numbers`` what the status page shows.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._rendered = b""
        self._rendered_at = float("-inf")
        self._totals: Tally[str] = Tally()
        self._rates = {"published": Rate(clock), "processed": Rate(clock)}
        self._gates: dict[str, tuple[str, float]] = {}
        self._backlogs: dict[Side, tuple[Backlog, float]] = {}
        self._known: dict[str, set[str]] = {}
        self._processed_labels: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._make_outbox_metrics()
        self._make_inbox_metrics()
        self._make_worker_metrics()

    def observe(self, fact: Fact) -> None:  # noqa: C901, PLR0912  (one line a fact: the list is the point)
        match fact:
            case EventsPublished():
                self._events_published(fact)
            case MessageProcessed():
                self._message_processed(fact)
            case BatchRelayed():
                self._batch_relayed(fact)
            case MessageSkipped():
                self._count("skipped", self._skipped.labels(self._bounded("consumer", fact.consumer)))
            case EventPostponed():
                self._count("postponed", self._postponed)
            case EventBuried():
                self._count("buried", self._buried)
            case MessageRetried():
                self._count("retried", self._retried.labels(self._bounded("consumer", fact.consumer)))
            case MessageDeadLettered():
                self._message_dead_lettered(fact)
            case LeasesLost():
                self._count("leases_lost", self._leases_lost.labels(fact.side), fact.count)
            case LeasesReaped():
                self._count("leases_reaped", self._leases_reaped, fact.count)
            case GatePaused():
                self._gate_paused(fact)
            case GateResumed():
                self._gates.pop(fact.gate, None)
                self._gate.labels(self._bounded("gate", fact.gate)).set(0)
            case Noticed():
                self._count("notices", self._notices.labels(self._bounded("event", fact.event)))
            case WorkerStarted():
                self._info.labels(fact.name, fact.version).set(1)
            case WorkerStopped() | Progressed():
                pass
            case _:
                assert_never(fact)

    def set_backlog(self, side: Side, backlog: Backlog) -> None:
        """Take a sample of what waits in the database."""
        self._backlogs[side] = (backlog, self._clock())
        self._depth[side].set(backlog.depth)
        self._oldest[side].set(backlog.oldest_seconds)
        self._dead[side].set(backlog.dead)
        self._sample_age.labels(side).set_function(lambda: self._clock() - self._backlogs[side][1])

    def render(self) -> bytes:
        """Return the exposition; made anew at most once a second, because it takes milliseconds."""
        now = self._clock()
        if now - self._rendered_at >= _RENDER_SECONDS:
            self._rendered, self._rendered_at = generate_latest(self._registry), now
        return self._rendered

    def numbers(self) -> Mapping[str, object]:
        """Return totals since the start, recent rates, backlogs and paused gates, as JSON data."""
        now = self._clock()
        return {
            "totals": dict(self._totals),
            "per_second": {name: round(rate.per_second(), 1) for name, rate in self._rates.items()},
            "backlog": {
                side: asdict(backlog) | {"sample_age_seconds": round(now - at, 1)}
                for side, (backlog, at) in self._backlogs.items()
            },
            "paused": {
                gate: {"reason": reason, "seconds": round(now - since, 1)}
                for gate, (reason, since) in self._gates.items()
            },
        }

    def _events_published(self, fact: EventsPublished) -> None:
        self._count("published", self._published, len(fact.events))
        self._rates["published"].add(len(fact.events))
        for event in fact.events:
            self._latency.observe(event.latency_seconds)
        if duplicates := sum(event.duplicate for event in fact.events):
            self._count("duplicates", self._duplicates, duplicates)

    def _batch_relayed(self, fact: BatchRelayed) -> None:
        self._batch.observe(fact.seconds)
        if fact.released:
            self._count("released", self._released, fact.released)

    def _message_processed(self, fact: MessageProcessed) -> None:
        processed, seconds = self._processed_by(fact.consumer, fact.status)
        self._count("processed", processed)
        self._rates["processed"].add()
        seconds.observe(fact.seconds)

    def _processed_by(self, consumer: str, status: int) -> tuple[Counter, Histogram]:
        """Look the labels up once: there are few, and this is asked for each message."""
        found = self._processed_labels.get((consumer, status))
        if found is None:
            label = self._bounded("consumer", consumer)
            counter = self._processed.labels(label, self._bounded("status", str(status)))
            found = self._processed_labels[consumer, status] = (counter, self._message.labels(label))
        return found

    def _message_dead_lettered(self, fact: MessageDeadLettered) -> None:
        consumer, reason = self._bounded("consumer", fact.consumer), self._bounded("reason", fact.reason)
        self._count("dead_lettered", self._dead_lettered.labels(consumer, reason))

    def _gate_paused(self, fact: GatePaused) -> None:
        gate = self._bounded("gate", fact.gate)
        since = self._gates[fact.gate][1] if fact.gate in self._gates else self._clock()
        if fact.gate not in self._gates:
            self._pauses.labels(gate).inc()
        self._gates[fact.gate] = (fact.reason, since)
        self._gate.labels(gate).set(1)

    def _count(self, name: str, counter: Counter, amount: int = 1) -> None:
        self._totals[name] += amount
        counter.inc(amount)

    def _bounded(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= _VALUES_MAX:
            return "other"
        known.add(value)
        return value

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sea_mq_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"sea_mq_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"sea_mq_{name}", text, labels, buckets=_LATENCY_BUCKETS, registry=self._registry)

    def _make_outbox_metrics(self) -> None:
        self._published = self._counter("outbox_published", "Events that the stream acknowledged.")
        self._duplicates = self._counter("outbox_duplicates", "Published events that the stream already had.")
        self._postponed = self._counter("outbox_postponed", "Publish attempts without an acknowledgement.")
        self._buried = self._counter("outbox_buried", "Events that went DEAD.")
        self._released = self._counter("outbox_released", "Events given back without an attempt.")
        self._leases_reaped = self._counter("outbox_leases_reaped", "Leases ended because they had run out.")
        self._latency = self._histogram("outbox_latency_seconds", "Event creation to acknowledgement.")
        self._batch = self._histogram("outbox_batch_seconds", "Time to work off one claim.")

    def _make_inbox_metrics(self) -> None:
        by_consumer = ("consumer",)
        self._processed = self._counter(
            "inbox_processed", "Messages taken by the handler.", "consumer", "status"
        )
        self._skipped = self._counter("inbox_skipped", "Duplicates acknowledged unasked.", *by_consumer)
        self._retried = self._counter("inbox_retried", "Handlings without an effect.", *by_consumer)
        self._dead_lettered = self._counter("inbox_dead_lettered", "Dead letters.", "consumer", "reason")
        self._message = self._histogram("inbox_message_seconds", "Receipt to recorded effect.", *by_consumer)

    def _make_worker_metrics(self) -> None:
        sides: tuple[Side, ...] = ("outbox", "inbox")
        self._leases_lost = self._counter("leases_lost", "Settled too late.", "side")
        self._notices = self._counter("notices", "What else an operator should look at.", "event")
        self._pauses = self._counter("gate_pauses", "How often work began to pause.", "gate")
        self._gate = self._gauge("gate_paused", "1 while work pauses for a dependency.", "gate")
        self._depth = {side: self._gauge(f"{side}_depth", "Unfinished rows.") for side in sides}
        self._oldest = {side: self._gauge(f"{side}_oldest_seconds", "Age of the oldest.") for side in sides}
        self._dead = {side: self._gauge(f"{side}_dead", "Rows given up.") for side in sides}
        self._sample_age = self._gauge("backlog_sample_age_seconds", "Age of the backlog sample.", "side")
        self._info = self._gauge("worker_info", "Always 1.", "name", "version")

"""Metrics from facts, for Prometheus, OTLP and the page; ``catalog.metrics`` lists them."""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, Literal, TypeAlias, TypeVar, assert_never, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from sea_mq_worker.operators.records import Depth
from sea_mq_worker.telemetry import events as facts
from sea_mq_worker.telemetry.events import NOTICES

# --- Catalog of the metrics of the worker and of the pipeline's jobs; there are no others.
#
# A producer's process has no metrics, because ``enqueue`` records none.

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


# --- Series in plain numbers and lists: a count costs 0.1 microseconds, the scrape does the rest.
#
# Besides, the rates of the status page.

BOUNDS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
_VALUES_MAX = 64
"""Cap on values of a label, above the number of consumers, circuits and reasons of any worker."""
_RATE_SECONDS = 10

SeriesT = TypeVar("SeriesT")


@dataclass(slots=True)
class Number:
    """A counter or a gauge."""

    value: float = 0


@dataclass(slots=True)
class Histogram:
    """Counts of values between each bound and the one before; the last count is above all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS_SECONDS, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts = self.counts
        for value in values:
            counts[bisect_left(BOUNDS_SECONDS, value)] += 1
        self.sum += sum(values)


class Family(Generic[SeriesT]):
    """A metric's series by label values; values above the cap become ``other``."""

    def __init__(self, metric: Metric, make: Callable[[], SeriesT]) -> None:
        self.metric = metric
        self.series: dict[tuple[str, ...], SeriesT] = {}
        self._known: tuple[set[str], ...] = tuple(set() for _ in metric.labels)
        self._make = make
        if not metric.labels and metric.kind != "gauge":
            self.of()  # the only series, exposed from the start; a gauge has no value before it is sampled

    def of(self, *values: str) -> SeriesT:
        """Return the series of these label values; a frequent caller should store it."""
        found = self.series.get(values)
        if found is None:
            bounded = tuple(map(_bounded, self._known, values))
            found = self.series.setdefault(bounded, self._make())
        return found


def _bounded(known: set[str], value: str) -> str:
    if value not in known and len(known) >= _VALUES_MAX:
        return "other"
    known.add(value)
    return value


class Families:
    """All metrics of the catalog, by name."""

    def __init__(self) -> None:
        self.numbers = {m.name: Family(m, Number) for m in METRICS if m.kind != "histogram"}
        self.histograms = {m.name: Family(m, Histogram) for m in METRICS if m.kind == "histogram"}


class Rate:
    """Events per second over the last ten whole seconds, in a ring of one bucket per second."""

    __slots__ = ("_buckets", "_clock", "_second")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = int(clock())
        self._buckets = [0] * (_RATE_SECONDS + 1)

    def add(self, count: int = 1) -> None:
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        self._buckets[second % len(self._buckets)] += count

    def per_second(self) -> float:
        second = int(self._clock())
        self._advance(second)
        whole = sum(self._buckets) - self._buckets[second % len(self._buckets)]
        return whole / _RATE_SECONDS

    def _advance(self, second: int) -> None:
        """Clear the buckets of the seconds that began since the last call."""
        size = len(self._buckets)
        for passed in range(self._second + 1, min(second, self._second + size) + 1):
            self._buckets[passed % size] = 0
        self._second = second


# --- Exposition of the metrics for Prometheus, rendered on a scrape.

_BOUNDS = (*map(str, BOUNDS_SECONDS), "+Inf")


class Exposition(Collector):
    """Exposes families, and the process's CPU, memory and descriptors."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Exposed]:
        yield from map(_number, self._families.numbers.values())
        yield from map(_histogram, self._families.histograms.values())

    def render(self) -> bytes:
        """Render the text format."""
        return generate_latest(self._registry)


def _number(family: Family[Number]) -> Exposed:
    metric = family.metric
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    exposed = kind(metric.name, metric.meaning, labels=metric.labels)
    for values, number in family.series.items():
        exposed.add_metric(values, number.value)
    return exposed


def _histogram(family: Family[Histogram]) -> Exposed:
    metric = family.metric
    exposed = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for values, histogram in family.series.items():
        buckets = list(zip(_BOUNDS, accumulate(histogram.counts), strict=True))
        exposed.add_metric(values, buckets, histogram.sum)
    return exposed


Side: TypeAlias = Literal["outbox", "inbox"]

_RENDER_SECONDS = 1.0
_COUNTER = re.compile(r"sea_mq_(?:outbox_|inbox_)?(\w+)_total")


class MetricsObserver:
    """Counts facts; ``render`` serves scrapes, ``totals`` and ``rates`` serve the page.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._families = Families()
        self._exposition = Exposition(self._families)
        self._rendered = b""
        self._rendered_at = float("-inf")
        self._rates = {"published": Rate(clock), "processed": Rate(clock)}
        self._open_circuits: set[str] = set()
        self._sampled_at: dict[Side, float] = {}
        self._processed: dict[tuple[str, int], tuple[Number, Histogram]] = {}
        self._begin_at_zero()
        self._published = self._number("outbox_published_total")
        self._latency = self._families.histograms["sea_mq_outbox_latency_seconds"].of()
        self._batch = self._families.histograms["sea_mq_outbox_batch_seconds"].of()

    def observe(self, fact: facts.Fact) -> None:  # noqa: C901, PLR0912  (one line a fact: the list is the point)
        match fact:
            case facts.EventsPublished():
                self._events_published(fact)
            case facts.MessageProcessed():
                self._message_processed(fact)
            case facts.BatchRelayed():
                self._batch_relayed(fact)
            case facts.ServerMessageSkipped():
                self._count("inbox_server_messages_total", fact.consumer)
            case facts.MessageSkipped():
                self._message_skipped(fact)
            case facts.MessagesMissed():
                self._count("inbox_missed_total", fact.consumer, amount=fact.count)
            case facts.EventPostponed():
                self._count("outbox_postponed_total")
            case facts.EventDied():
                self._count("outbox_died_total")
            case facts.MessageRetried():
                self._count("inbox_retried_total", fact.consumer)
            case facts.MessageGivenBack():
                self._count("inbox_given_back_total", fact.consumer)
            case facts.TypeSlowed() | facts.TypeResumed():
                self._number("inbox_slow_types").value += 1 if isinstance(fact, facts.TypeSlowed) else -1
            case facts.MessageDeadLettered():
                self._count("inbox_dead_lettered_total", fact.consumer, fact.reason)
            case facts.LeasesLost() | facts.WorkerTakenOver():
                self._leases_ended(fact)
            case facts.LeasesReaped():
                self._count("outbox_leases_reaped_total", amount=fact.count)
            case facts.CircuitOpened():
                self._circuit_opened(fact)
            case facts.CircuitClosed():
                self._circuit_closed(fact)
            case facts.Noticed():
                self._count("notices_total", fact.event)
            case facts.WorkerStarted():
                self._number("worker_info", fact.name, fact.version).value = 1
            case facts.WorkerStopped() | facts.Progressed():
                pass
            case _:
                assert_never(fact)

    def set_depth(self, side: Side, depth: Depth) -> None:
        """Record a sample of one side's table (QRY-050, QRY-051)."""
        self._sampled_at[side] = self._clock()
        self._number(f"{side}_depth").value = depth.waiting
        self._number(f"{side}_oldest_seconds").value = depth.waiting_seconds
        self._number(f"{side}_dead").value = depth.dead
        if side == "outbox":
            self._number("outbox_scheduled").value = depth.scheduled

    def set_events_lost(self, lost: bool) -> None:
        self._number("outbox_events_lost").value = int(lost)

    def set_consumer(self, consumer: str, pending: int, ack_pending: int, oldest_seconds: float) -> None:
        self._number("consumer_pending", consumer).value = pending
        self._number("consumer_ack_pending", consumer).value = ack_pending
        self._number("consumer_oldest_seconds", consumer).value = oldest_seconds

    def render(self) -> bytes:
        """Return the exposition, rendered at most once a second, because rendering takes milliseconds."""
        now = self._clock()
        if now - self._rendered_at >= _RENDER_SECONDS:
            self.measure()
            self._rendered, self._rendered_at = self._exposition.render(), now
        return self._rendered

    def measure(self) -> Families:
        for side, at in self._sampled_at.items():
            self._number("backlog_sample_age_seconds", side).value = self._clock() - at
        return self._families

    def rates(self) -> Mapping[str, float]:
        """Return the published and processed rates of the last seconds, per second."""
        return {name: round(rate.per_second(), 1) for name, rate in self._rates.items()}

    def totals(self) -> Mapping[str, float]:
        """Return the nonzero totals since the start, over all labels."""
        sums = {
            counter[1]: sum(number.value for number in family.series.values())
            for name, family in self._families.numbers.items()
            if (counter := _COUNTER.fullmatch(name))
        }
        return {name: total for name, total in sums.items() if total}

    def _begin_at_zero(self) -> None:
        """Create known series at 0: Prometheus sees no increase of a series that begins at 1."""
        self._number("inbox_slow_types")
        for side in get_args(Side):
            self._number("leases_lost_total", side)
            self._number("leases_taken_over_total", side)
        for event in NOTICES:
            self._number("notices_total", event.key)

    def _leases_ended(self, fact: facts.LeasesLost | facts.WorkerTakenOver) -> None:
        what = "lost" if isinstance(fact, facts.LeasesLost) else "taken_over"
        self._count(f"leases_{what}_total", fact.side, amount=fact.count)

    def _events_published(self, fact: facts.EventsPublished) -> None:
        count = len(fact.latencies)
        self._published.value += count
        self._rates["published"].add(count)
        self._latency.observe_all(fact.latencies)
        self._count("outbox_duplicates_total", amount=fact.duplicates)

    def _message_processed(self, fact: facts.MessageProcessed) -> None:
        processed, seconds = self._processed_by(fact.consumer, fact.status)
        processed.value += 1
        self._rates["processed"].add()
        seconds.observe(fact.seconds)

    def _processed_by(self, consumer: str, status: int) -> tuple[Number, Histogram]:
        """Look the labels up once per pair, because every message needs them."""
        found = self._processed.get((consumer, status))
        if found is None:
            found = self._processed[consumer, status] = (
                self._number("inbox_processed_total", consumer, str(status)),
                self._families.histograms["sea_mq_inbox_message_seconds"].of(consumer),
            )
        return found

    def _circuit_opened(self, fact: facts.CircuitOpened) -> None:
        if fact.circuit not in self._open_circuits:
            self._count("circuit_opened_total", fact.circuit)
        self._open_circuits.add(fact.circuit)
        self._number("circuit_open", fact.circuit).value = 1

    def _batch_relayed(self, fact: facts.BatchRelayed) -> None:
        self._batch.observe(fact.seconds)
        self._count("outbox_released_total", amount=fact.released)

    def _message_skipped(self, fact: facts.MessageSkipped) -> None:
        self._count("inbox_skipped_total", fact.consumer)
        if fact.brought_by:
            self._count("inbox_overlapping_total", fact.consumer)

    def _circuit_closed(self, fact: facts.CircuitClosed) -> None:
        self._open_circuits.discard(fact.circuit)
        self._number("circuit_open", fact.circuit).value = 0

    def _count(self, name: str, *labels: str, amount: int = 1) -> None:
        self._number(name, *labels).value += amount

    def _number(self, name: str, *labels: str) -> Number:
        return self._families.numbers[f"sea_mq_{name}"].of(*labels)

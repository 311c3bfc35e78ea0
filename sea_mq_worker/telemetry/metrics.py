"""Metrics of events and samples, for Prometheus, OTLP and the page."""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from sea_mq_worker.telemetry.events import EVENTS, METRICS, NOTICES, Metric

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


class Metrics:
    """Counts events; ``render`` serves scrapes, ``totals`` and ``rates`` serve the page.

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
        self._sampled_at: dict[Side, float] = {}
        self._begin_at_zero()

    def emit(self, key: str, /, **fields: Any) -> None:
        if key == "circuit_opened" and self._number("circuit_open", fields["circuit"]).value:
            return  # it failed again
        for metric in EVENTS[key].metrics:
            if metric.kind != "gauge":
                self._count(metric, {"event": key, **fields})
        match key:
            case "event_published":
                self._rates["published"].add(fields["count"])
            case "message_processed":
                self._rates["processed"].add(fields["count"])
            case "type_slowed" | "type_resumed":
                self._number("inbox_slow_types").value += 1 if key == "type_slowed" else -1
            case "circuit_opened" | "circuit_closed":
                self._number("circuit_open", fields["circuit"]).value = key == "circuit_opened"
            case "worker_started":
                self._number("worker_info", fields["name"], fields["version"]).value = 1

    def set_depth(
        self, side: Side, *, waiting: int, waiting_seconds: float, dead: int, scheduled: int
    ) -> None:
        """Record a sample of one side's table (QRY-050, QRY-051)."""
        self._sampled_at[side] = self._clock()
        self._number(f"{side}_depth").value = waiting
        self._number(f"{side}_oldest_seconds").value = waiting_seconds
        self._number(f"{side}_dead").value = dead
        if side == "outbox":
            self._number("outbox_scheduled").value = scheduled

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
            self._number("notices_total", event)

    def _count(self, metric: Metric, fields: Mapping[str, Any]) -> None:
        labels = [str(fields[name]) for name in metric.labels]
        by: Any = fields[metric.by] if metric.by else 1
        if metric.kind == "histogram":
            durations = self._families.histograms[metric.name].of(*labels)
            durations.observe_all((by,) if isinstance(by, float) else by)
        else:
            self._families.numbers[metric.name].of(*labels).value += bool(by) if isinstance(by, str) else by

    def _number(self, name: str, *labels: str) -> Number:
        return self._families.numbers[f"sea_mq_{name}"].of(*labels)

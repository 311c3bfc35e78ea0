"""Metrics of events and samples, for Prometheus, OTLP and the page, made from the table of events."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sea_mq_worker.telemetry.events import EVENTS, METRICS, NOTICES, Metric

BOUNDS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
_VALUES_MAX = 64
"""Cap on values of a label, above the number of consumers, circuits and reasons of any worker."""
_RATE_SECONDS = 10
_RENDER_SECONDS = 1.0
Side: TypeAlias = Literal["outbox", "inbox"]


class _Durations(Histogram):
    """A histogram that takes a batch for the price of a few values."""

    def observe_all(self, values: Sequence[float]) -> None:
        counts = [0] * len(self._buckets)
        for value in values:
            counts[bisect_left(BOUNDS_SECONDS, value)] += 1
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(sum(values))


class Rate:
    """Events per second over the last ten whole seconds, in a ring of one bucket per second."""

    __slots__ = ("_buckets", "_clock", "_second")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = int(clock())
        self._buckets = [0] * (_RATE_SECONDS + 1)

    def add(self, count: int) -> None:
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        self._buckets[second % len(self._buckets)] += count

    def per_second(self) -> float:
        second = int(self._clock())
        self._advance(second)
        whole = sum(self._buckets) - self._buckets[second % len(self._buckets)]
        return round(whole / _RATE_SECONDS, 1)

    def _advance(self, second: int) -> None:
        """Clear the buckets of the seconds that began since the last call."""
        size = len(self._buckets)
        for passed in range(self._second + 1, min(second, self._second + size) + 1):
            self._buckets[passed % size] = 0
        self._second = second


class Metrics(Collector):
    """Counts events; ``render`` serves scrapes, ``totals`` and ``rates`` serve the page.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._instruments = {metric.name: _instrument(metric) for metric in METRICS}
        self._known: dict[tuple[str, int], set[str]] = {}
        self._series: dict[tuple[str, ...], Any] = {}
        self._begun: set[str] = set()
        self._rendered = b""
        self._rendered_at = float("-inf")
        self._rates = {"published": Rate(clock), "processed": Rate(clock)}
        self._open_circuits: set[str] = set()
        self._slow_types = 0
        self._sampled_at: dict[Side, float] = {}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        # Prometheus sees no increase of a series that begins at 1.
        self._set("inbox_slow_types", value=0)
        for side in get_args(Side):
            self._of("sea_mq_leases_lost_total", side)
            self._of("sea_mq_leases_taken_over_total", side)
        for event in NOTICES:
            self._of("sea_mq_notices_total", event)

    def emit(self, key: str, /, **fields: Any) -> None:
        if key == "circuit_opened" and fields["circuit"] in self._open_circuits:
            return  # it failed again
        fields["event"] = key
        for metric in EVENTS[key].metrics:
            if metric.kind != "gauge":
                self._count(metric, fields)
        match key:
            case "event_published":
                self._rates["published"].add(fields["count"])
            case "message_processed":
                self._rates["processed"].add(fields["count"])
            case "type_slowed" | "type_resumed":
                self._slow_types += 1 if key == "type_slowed" else -1
                self._set("inbox_slow_types", value=self._slow_types)
            case "circuit_opened":
                self._open_circuits.add(fields["circuit"])
                self._set("circuit_open", fields["circuit"], value=1)
            case "circuit_closed":
                self._open_circuits.discard(fields["circuit"])
                self._set("circuit_open", fields["circuit"], value=0)
            case "worker_started":
                self._set("worker_info", fields["name"], fields["version"], value=1)

    def set_depth(
        self, side: Side, *, waiting: int, waiting_seconds: float, dead: int, scheduled: int
    ) -> None:
        """Record a sample of one side's table (QRY-050, QRY-051)."""
        self._sampled_at[side] = self._clock()
        self._set(f"{side}_depth", value=waiting)
        self._set(f"{side}_oldest_seconds", value=waiting_seconds)
        self._set(f"{side}_dead", value=dead)
        if side == "outbox":
            self._set("outbox_scheduled", value=scheduled)

    def set_events_lost(self, lost: bool) -> None:
        self._set("outbox_events_lost", value=int(lost))

    def set_consumer(self, consumer: str, pending: int, ack_pending: int, oldest_seconds: float) -> None:
        self._set("consumer_pending", consumer, value=pending)
        self._set("consumer_ack_pending", consumer, value=ack_pending)
        self._set("consumer_oldest_seconds", consumer, value=oldest_seconds)

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; a gauge without labels has no value before it is sampled."""
        for side, at in self._sampled_at.items():
            self._set("backlog_sample_age_seconds", side, value=self._clock() - at)
        for metric in METRICS:
            [family] = self._instruments[metric.name].collect()
            is_unknown = metric.kind == "gauge" and metric.name not in self._begun
            family.samples = [
                sample for sample in family.samples if not is_unknown and not sample.name.endswith("_created")
            ]
            yield family

    def render(self) -> bytes:
        """Return the exposition, rendered at most once a second, because rendering takes milliseconds."""
        now = self._clock()
        if now - self._rendered_at >= _RENDER_SECONDS:
            self._rendered, self._rendered_at = generate_latest(self._registry), now
        return self._rendered

    def rates(self) -> Mapping[str, float]:
        """Return the published and processed rates of the last seconds, per second."""
        return {name: rate.per_second() for name, rate in self._rates.items()}

    def totals(self) -> Mapping[str, float]:
        """Return the nonzero totals since the start, by short names such as ``published``."""
        found = {}
        for metric, family in zip(METRICS, self.collect(), strict=True):
            if metric.kind == "counter" and (total := sum(sample.value for sample in family.samples)):
                name = metric.name.removeprefix("sea_mq_").removesuffix("_total")
                found[name.removeprefix("outbox_").removeprefix("inbox_")] = total
        return found

    def _count(self, metric: Metric, fields: Mapping[str, Any]) -> None:
        instrument = self._of(metric.name, *(str(fields[name]) for name in metric.labels))
        by: Any = fields[metric.by] if metric.by else 1
        if metric.kind == "histogram":
            instrument.observe_all((by,) if isinstance(by, float) else by)
        elif amount := bool(by) if isinstance(by, str) else by:
            instrument.inc(amount)

    def _set(self, name: str, *labels: str, value: float) -> None:
        self._begun.add(f"sea_mq_{name}")
        self._of(f"sea_mq_{name}", *labels).set(value)

    def _of(self, name: str, *labels: str) -> Any:
        """Return the series of these label values; values above the cap become ``other``."""
        if (found := self._series.get((name, *labels))) is not None:
            return found
        bounded = []
        for place, value in enumerate(labels):
            known = self._known.setdefault((name, place), set())
            if len(known) < _VALUES_MAX:
                known.add(value)
            bounded.append(value if value in known else "other")
        instrument = self._instruments[name]
        series = instrument.labels(*bounded) if bounded else instrument
        if "other" not in bounded:
            self._series[name, *labels] = series
        return series


def _instrument(metric: Metric) -> Counter | Gauge | _Durations:
    if metric.kind == "histogram":
        return _Durations(metric.name, metric.meaning, metric.labels, registry=None, buckets=BOUNDS_SECONDS)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, metric.meaning, metric.labels, registry=None)

"""Series in plain numbers and lists: a count costs 0.1 microseconds, the scrape does the rest.

Besides, the rates of the status page.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sea_mq_worker.telemetry.catalog.metrics import METRICS, Metric

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

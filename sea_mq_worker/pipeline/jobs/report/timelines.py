"""The figures of a report over time, as a table and as paths of SVG in a field of 1000 x 100."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log
from operator import itemgetter

from sea_mq_worker.pipeline.jobs.report.formatting import duration, moment, number, step
from sea_mq_worker.pipeline.jobs.report.model import Bin, DeadLetterBin, Report, StreamBin, Way

_WIDTH = 1000
_HEIGHT = 100
_BINS_MIN = 12
"""A plot has room for this number of bins, so that a single bin is a bar."""

_LEVELS_MAX = 8
_LINES_MAX = 6
"""Number of colours, in which no two lines of a plot are alike."""

_DURATIONS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class Line:
    """The values of the bins that have one; ``about`` sums them up in words."""

    name: str
    about: str
    values: Mapping[datetime, float]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lines over time, as a plot and as a table.

    Attributes:
        title: heading of the card.
        unit: unit of the values.
        step: length of a bin in seconds.
        lines: one or more, each with a value.
        span: the time that the plot shows.
        is_count: whether values are counts; otherwise they are seconds, on a logarithmic scale.
    """

    title: str
    unit: str
    step: int
    lines: Sequence[Line]
    span: tuple[datetime, datetime]
    is_count: bool = True

    def paths(self) -> Iterator[str]:
        """Yield a path for each line: steps from bin to bin, and a gap where a bin has nothing."""
        begin, end = self.span
        scale = _WIDTH / (end - begin).total_seconds()
        foot = f"V{_HEIGHT}" if self.is_count else ""
        for line in self.lines:
            path, right = "", None
            for at, value in sorted(line.values.items()):
                if self.is_count and not value:
                    continue
                x, y = (at - begin).total_seconds() * scale, f"{_HEIGHT * self._depth(value):.1f}"
                if at != right:
                    path += f"{foot if path else ''}M{x:.0f},{_HEIGHT if foot else y}"
                path += f"V{y}H{x + self.step * scale:.0f}"
                right = at + timedelta(seconds=self.step)
            yield path and path + foot

    def levels(self) -> list[tuple[float, str]]:
        """Return the horizontal lines: their distance from the top in percent, and their value as text."""
        low, high = self._limits()
        durations = [tick for tick in _DURATIONS if low <= tick <= high]
        counts = [low, high / 2, high] if high > 1 else [low, high]
        ticks = counts if self.is_count else durations[:: 1 + len(durations) // _LEVELS_MAX]
        return [(100 * self._depth(tick), self._text(tick)) for tick in ticks]

    def rows(self) -> Iterator[tuple[datetime, list[str]]]:
        """Yield each bin that has a value other than 0, with all its values as text."""
        for at in sorted({at for line in self.lines for at, value in line.values.items() if value}):
            values = (line.values.get(at) for line in self.lines)
            yield at, ["" if value is None else self._text(value) for value in values]

    def _text(self, value: float) -> str:
        return number(int(value)) if self.is_count else duration(value)

    def _depth(self, value: float) -> float:
        """Return a value's distance from the top, as a share of the height."""
        low, high = self._limits()
        return 1 - (value / high if self.is_count else log(max(value, low) / low) / log(high / low))

    def _limits(self) -> tuple[float, float]:
        values = [value for line in self.lines for value in line.values.values()]
        most = max(values)
        if self.is_count:
            power = 10 ** (len(str(int(most))) - 1)
            return 0, next(nice * power for nice in (1, 2, 4, 6, 8, 10) if nice * power >= most)
        low = max((s for s in _DURATIONS if s <= min(values)), default=_DURATIONS[0])
        return low, next((s for s in _DURATIONS if s > max(most, low)), most)


class Timelines:
    """Makes the timelines of a report; None stands for a timeline without a value."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._minutes = max(60, report.bin_seconds)
        self._span = _span(report, self._minutes if report.stream_bins else report.bin_seconds)

    def bins(self, title: str, **names: str) -> Timeline | None:
        """Return the bins' fields that are given, each with the name to show."""
        bins = self._report.bins
        found = {name: {each.at: getattr(each, field) for each in bins} for field, name in names.items()}
        return self._counts(title, "events", self._report.bin_seconds, found)

    def groups(
        self, title: str, unit: str, bins: Sequence[DeadLetterBin | StreamBin], by: str
    ) -> Timeline | None:
        """Return the counts of bins by the field ``by``, of the most frequent names and of all others.

        The bins of streams have a minute at least.
        """
        totals: Counter[str] = Counter()
        for each in bins:
            totals[getattr(each, by)] += each.count
        largest = dict(totals.most_common(_LINES_MAX if len(totals) <= _LINES_MAX else _LINES_MAX - 1))
        found: dict[str, Counter[datetime]] = defaultdict(Counter)
        for each in bins:
            name = getattr(each, by)
            found[name if name in largest else "others"][each.at] += each.count
        seconds = self._minutes if bins is self._report.stream_bins else self._report.bin_seconds
        return self._counts(title, unit, seconds, found)

    def latency(self, title: str, way: Way) -> Timeline | None:
        """Return percentiles, on a logarithmic scale."""
        whole = self._report.latency(way)
        if whole is None:
            return None
        bins = [each for each in self._report.latencies if each.way == way and each is not whole]
        lines = [
            Line(name, f"{duration(getattr(whole, name))} in the whole period", values)
            for name in ("p50", "p95", "p99", "longest")
            if (values := {each.at: getattr(each, name) for each in bins if each.at})
        ]
        return Timeline(
            title, "duration, logarithmic", self._report.bin_seconds, lines, self._span, is_count=False
        )

    def _counts(
        self, title: str, unit: str, seconds: int, found: Mapping[str, Mapping[datetime, int]]
    ) -> Timeline | None:
        if not any(any(values.values()) for values in found.values()):
            return None
        lines = []
        for name, values in found.items():
            at, most = max(values.items(), key=itemgetter(1))
            about = f"{sum(values.values()):,}, most {most:,} at {moment(at)}"
            lines.append(Line(name, about, values))
        return Timeline(title, f"{unit} per {step(seconds)}", seconds, lines, self._span)


def _span(report: Report, seconds: int) -> tuple[datetime, datetime]:
    """Return the time that all plots show: from the first bin with a value to the last."""
    busy = [each for each in report.bins if each.written or each.published or each.received or each.processed]
    bins: Sequence[Bin | DeadLetterBin | StreamBin] = (*busy, *report.dead_letter_bins, *report.stream_bins)
    times = [each.at for each in bins] or [report.since]
    begin, end = min(times), max(times) + timedelta(seconds=seconds)
    return begin, max(end, begin + timedelta(seconds=_BINS_MIN * seconds))

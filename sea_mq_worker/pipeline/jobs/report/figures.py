"""Make a report's figures from counted groups."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, TypeAlias

from pyspark.sql import Row

from sea_mq_worker.pipeline.jobs.report.model import (
    Attempts,
    Bin,
    Dead,
    DeadLetterBin,
    DeadLetters,
    LatencyFigures,
    Share,
    Shares,
    StreamBin,
    Totals,
    Way,
)

Groups: TypeAlias = Mapping[str, Sequence[Row]]
"""The rows of figures.sql by their kind, the largest first."""

ATTEMPTS_MAX = 20
"""Events with more attempts count as having this number."""

GROUPS_MAX = 200
"""Most groups of a kind, except those by time."""

_LARGEST = 20
_TEXT_MAX = 200
_BINS_MAX = 240
_STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)
_COUNTED = ("written", "published", "received", "processed", "outbox_retried", "inbox_retried")
_WAYS: tuple[tuple[Way, str], ...] = (("outbox", "published"), ("inbox", "processed"))


@dataclass(frozen=True, slots=True)
class Period:
    """A period, ``until`` not included, divided into bins of ``step`` seconds."""

    since: datetime
    until: datetime
    step: int

    @classmethod
    def of(cls, since: datetime, until: datetime) -> "Period":
        """Choose the shortest common bin length that gives at most 240 bins."""
        span = max(1.0, (until - since).total_seconds())
        fitting = (step for step in _STEPS if span / step <= _BINS_MAX)
        return cls(
            since.astimezone(UTC),
            until.astimezone(UTC),
            next(fitting, 86_400 * (1 + int(span / 86_400 / _BINS_MAX))),
        )

    def begins(self) -> Iterator[int]:
        """Yield the begins of all bins, in seconds since 1970."""
        second = int(self.since.timestamp()) // self.step * self.step
        while second < self.until.timestamp():
            yield second
            second += self.step


def moment(second: float) -> datetime:
    """Return the time of this number of seconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def figures(rows: Iterable[Row], period: Period) -> dict[str, Any]:
    """Return the fields of a Report that figures.sql counts."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["place"]):
        groups[row["kind"]].append(row)
    bins = _bins(groups, period)
    return {
        "totals": _totals(groups, bins),
        "bins": bins,
        "latencies": list(_latencies(groups)),
        "attempts": _attempts(groups),
        "dead": [
            Dead(reason=reason, event_type=kind, count=count)
            for reason, kind, count, _ in _ranked(groups["dead"])
        ],
        "dead_letters": [
            DeadLetters(reason=reason, subject=subject, count=count, latest=moment(latest / 1e6))
            for reason, subject, count, latest in _ranked(groups["letter"])
        ],
        "dead_letter_count": _total(groups["letter"]),
        "dead_letter_bins": [
            DeadLetterBin(at=at, reason=name, count=count)
            for at, name, count in _by_time(groups["letter by time"])
        ],
        "keys": _shares(groups["key"]),
        "types": _shares(groups["type"]),
        "stream_bins": [
            StreamBin(at=at, context=name, count=count) for at, name, count in _by_time(groups["stored"])
        ],
    }


def _bins(groups: Groups, period: Period) -> list[Bin]:
    counts: Counter[tuple[str, int]] = Counter()
    for kind in _COUNTED:
        for row in groups[kind]:
            counts[kind, row["bin"]] += row["events"]
    for way, kind in _WAYS:
        for row in groups[kind]:
            counts[f"{way}_retried", row["bin"]] += row["events"] * (int(row["name"]) > 1)
    begins = period.begins()
    return [Bin(at=moment(begin), **{name: counts[name, begin] for name in _COUNTED}) for begin in begins]


def _totals(groups: Groups, bins: Sequence[Bin]) -> Totals:
    return Totals(
        **{name: sum(getattr(each, name) for each in bins) for name in _COUNTED},
        written_bytes=sum(row["bytes"] for row in groups["written"]),
        archived=sum(row["events"] for row in groups["written"] if row["name"]),
        dead=_total(groups["dead"]),
        dead_lettered=_total(groups["dead-lettered"]),
    )


def _latencies(groups: Groups) -> Iterator[LatencyFigures]:
    for way, kind in _WAYS:
        rows = groups[kind]
        if rows:
            yield _latency(way, None, rows)
        for begin in sorted({row["bin"] for row in rows}):
            yield _latency(way, moment(begin), [row for row in rows if row["bin"] == begin])


def _latency(way: Way, at: datetime | None, rows: Sequence[Row]) -> LatencyFigures:
    """Return percentiles: the longest duration of the class in which a share of the events is reached."""
    classes = sorted((row["seconds"], row["events"]) for row in rows)
    reached = list(accumulate(count for _, count in classes))
    count = reached[-1]
    p50, p95, p99 = (classes[bisect_left(reached, count * share / 100)][0] for share in (50, 95, 99))
    return LatencyFigures(way=way, at=at, count=count, p50=p50, p95=p95, p99=p99, longest=classes[-1][0])


def _attempts(groups: Groups) -> list[Attempts]:
    found = []
    for way, kind in _WAYS:
        counts: Counter[int] = Counter()
        for row in groups[kind]:
            counts[int(row["name"])] += row["events"]
        found += [Attempts(way=way, attempts=number, count=counts[number]) for number in sorted(counts)]
    return found


def _shares(rows: Sequence[Row]) -> Shares:
    """Return the largest groups, without those that have as many events as one that is left out."""
    omitted = max((row["events"] for row in rows[_LARGEST:]), default=0)
    largest = [
        Share(name=row["name"][:_TEXT_MAX], count=row["events"], size=row["bytes"])
        for row in rows[:_LARGEST]
        if row["events"] > omitted
    ]
    return Shares(largest=largest, distinct=rows[0]["groups"] if rows else 0)


def _total(rows: Sequence[Row]) -> int:
    return rows[0]["total"] if rows else 0


def _by_time(rows: Sequence[Row]) -> list[tuple[datetime, str, int]]:
    return sorted((moment(row["bin"]), row["name"], row["events"]) for row in rows)


def _ranked(rows: Sequence[Row]) -> list[tuple[str, str, int, int]]:
    """Return name, detail, count and latest time."""
    return [(row["name"], row["detail"][:_TEXT_MAX], row["events"], row["latest"]) for row in rows]

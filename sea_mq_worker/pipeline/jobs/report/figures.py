"""Make a report's figures from counted groups."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import ceil
from typing import Any

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

    def begins(self) -> range:
        """Return the begins of all bins, in seconds since 1970."""
        first = int(self.since.timestamp()) // self.step * self.step
        return range(first, ceil(self.until.timestamp()), self.step)


def moment(second: float) -> datetime:
    """Return the time of this number of seconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def figures(rows: Iterable[Row], period: Period) -> dict[str, Any]:
    """Return the fields of a Report that figures.sql counts."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.place):
        groups[row.kind].append(row)
    counts: Counter[tuple[str, int]] = Counter()
    for kind in _COUNTED:
        for row in groups[kind]:
            counts[kind, row.bin] += row.events
    attempts: Counter[tuple[Way, int]] = Counter()
    for way, kind in _WAYS:
        for row in groups[kind]:
            attempts[way, int(row.name)] += row.events
            counts[f"{way}_retried", row.bin] += row.events if int(row.name) > 1 else 0
    bins = [Bin(moment(begin), *(counts[name, begin] for name in _COUNTED)) for begin in period.begins()]
    by_number = sorted(attempts.items(), key=lambda each: (each[0][0] != "outbox", each[0][1]))
    return {
        "totals": Totals(
            **{name: sum(getattr(each, name) for each in bins) for name in _COUNTED},
            written_bytes=sum(row.bytes for row in groups["written"]),
            archived=sum(row.events for row in groups["written"] if row.name),
            dead=_total(groups["dead"]),
            dead_lettered=_total(groups["dead-lettered"]),
        ),
        "bins": bins,
        "latencies": [figure for way, kind in _WAYS for figure in _latencies(way, groups[kind])],
        "attempts": [Attempts(way, number, count) for (way, number), count in by_number],
        "dead": [Dead(row.name, row.detail[:_TEXT_MAX], row.events) for row in groups["dead"]],
        "dead_letters": [
            DeadLetters(row.name, row.detail[:_TEXT_MAX], row.events, moment(row.latest / 1e6))
            for row in groups["letter"]
        ],
        "dead_letter_count": _total(groups["letter"]),
        "dead_letter_bins": [DeadLetterBin(*each) for each in _by_time(groups["letter by time"])],
        "keys": _shares(groups["key"]),
        "types": _shares(groups["type"]),
        "stream_bins": [StreamBin(*each) for each in _by_time(groups["stored"])],
    }


def _latencies(way: Way, rows: Sequence[Row]) -> Iterator[LatencyFigures]:
    """Yield percentiles: the longest duration of the class in which a share of the events is reached."""
    classes: dict[int | None, list[tuple[float, int]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.bin):
        for begin in (None, row.bin):
            classes[begin].append((row.seconds, row.events))
    for begin, found in classes.items():
        found.sort()
        reached = list(accumulate(count for _, count in found))
        places = [bisect_left(reached, reached[-1] * share / 100) for share in (50, 95, 99)]
        at = None if begin is None else moment(begin)
        yield LatencyFigures(way, at, reached[-1], *(found[place][0] for place in (*places, -1)))


def _shares(rows: Sequence[Row]) -> Shares:
    """Return the largest groups, without those that have as many events as one that is left out."""
    omitted = max((row.events for row in rows[_LARGEST:]), default=0)
    largest = [row for row in rows[:_LARGEST] if row.events > omitted]
    shares = [Share(row.name[:_TEXT_MAX], row.events, row.bytes) for row in largest]
    return Shares(shares, rows[0].groups if rows else 0)


def _total(rows: Sequence[Row]) -> int:
    return rows[0].total if rows else 0


def _by_time(rows: Sequence[Row]) -> list[tuple[datetime, str, int]]:
    return sorted((moment(row.bin), row.name, row.events) for row in rows)

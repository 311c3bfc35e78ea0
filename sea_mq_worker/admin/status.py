"""Build the page's status from recorded facts and the latest samples, the tables' with their age."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from sea_mq_worker.admin.activity import ActivityLog
from sea_mq_worker.admin.health import TREND_SECONDS, Side, Situation, summarize
from sea_mq_worker.admin.records import (
    ConsumerSample,
    Counters,
    HealthSummary,
    Sample,
    SideStatus,
    Status,
    WorkerInfo,
)
from sea_mq_worker.inbox.missed import RecordedMissed
from sea_mq_worker.operators.records import Overview

# --- History of the last hour, in a fixed amount of memory.

STEP_SECONDS = 15
_SAMPLES = 240
_NOTHING = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    """Samples by name, the oldest first; ``at`` is the time of the last in seconds since 1970."""

    at: float
    step_seconds: int
    series: Mapping[str, Sequence[float | None]]


class History:
    """A ring of samples for each name.

    Args:
        names: names of the series.
        clock: seconds since 1970.
    """

    def __init__(self, *names: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rings = {name: array("d", [_NOTHING] * _SAMPLES) for name in names}
        self._count = 0
        self._at = 0.0

    def add(self, sample: Mapping[str, float | None]) -> None:
        """Add one sample; an unknown number leaves a gap."""
        place = self._count % _SAMPLES
        for name, ring in self._rings.items():
            value = sample.get(name)
            ring[place] = _NOTHING if value is None else value
        self._count += 1
        self._at = self._clock()

    def before(self, name: str, *, samples: int) -> float | None:
        """Return the number that a series had ``samples`` before the last one; None: unknown."""
        if self._count <= samples:
            return None
        return _known(self._rings[name][(self._count - 1 - samples) % _SAMPLES])

    def data(self) -> HistoryData:
        kept = min(self._count, _SAMPLES)
        places = [(self._count - kept + number) % _SAMPLES for number in range(kept)]
        series = {name: [_known(ring[place]) for place in places] for name, ring in self._rings.items()}
        return HistoryData(at=self._at, step_seconds=STEP_SECONDS, series=series)


def _known(value: float) -> float | None:
    return None if value != value else round(value, 3)  # noqa: PLR0124  (only NaN differs from itself)


_TREND_SAMPLES = TREND_SECONDS // STEP_SECONDS
_ERRORS_SHOWN = 8
_SLOW_TYPES_SHOWN = 8
_FLOWS = {"outbox": "published", "inbox": "processed"}
_SERIES = ("depth", "oldest", "rate")
_NO_SAMPLE = Sample(depth=0, oldest_seconds=0.0, dead=0)


@dataclass(frozen=True, slots=True)
class _Dated:
    """A sample and its time in monotonic seconds, which no change of the clock affects."""

    value: Sample
    at: float


@dataclass(kw_only=True)
class StatusCollector:
    """Collects samples, and returns the status and its history.

    Attributes:
        sides: the sides that this worker serves.
        reasons: why the worker is not ready, by part.
        warnings: troubles, by name, in spite of which it is ready.
        now: seconds since 1970.
        clock: monotonic seconds.
    """

    info: WorkerInfo
    sides: Sequence[str]
    counters: Callable[[], Counters]
    reasons: Callable[[], Mapping[str, str]]
    warnings: Callable[[], Mapping[str, str]] = dict
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    activity: ActivityLog = field(default_factory=ActivityLog)

    def __post_init__(self) -> None:
        names = (f"{side}_{series}" for side in self.sides for series in _SERIES)
        self._history = History(*names, clock=self.now)
        self._samples: dict[str, _Dated] = {}
        self._consumers: dict[str, ConsumerSample] = {}
        self._overview: Overview | None = None
        self._missed: Sequence[RecordedMissed] = ()
        self._started = self.clock()
        self._state = ("", self._started)
        self._reasons_since = {"start": self.now()}
        self._done: dict[str, float] = {}

    def set_sample(self, side: str, sample: Sample) -> None:
        self._samples[side] = _Dated(sample, self.clock())

    def set_overview(self, overview: Overview) -> None:
        """Record the reasons of dead events and letters, and the number of workers."""
        self._overview = overview

    def set_missed(self, missed: Sequence[RecordedMissed]) -> None:
        """Record the messages that will never be delivered."""
        self._missed = missed

    def set_consumer(self, sample: ConsumerSample) -> None:
        """Record the state of a consumer; an error keeps the numbers before it."""
        key = f"{sample.stream}/{sample.durable}"
        known = self._consumers.get(key)
        self._consumers[key] = replace(known, error=sample.error) if sample.error and known else sample

    def tick(self) -> None:
        """Add one sample to the history once there is any; call this every ``STEP_SECONDS``."""
        if not self._samples:
            return
        totals = self.counters().totals
        numbers: dict[str, float | None] = {}
        for side in self.sides:
            sample = self._fresh(side)
            done = float(totals.get(_FLOWS[side], 0))
            numbers[f"{side}_depth"] = sample.depth + self._undelivered(side) if sample else None
            numbers[f"{side}_oldest"] = sample.oldest_seconds if sample else None
            numbers[f"{side}_rate"] = (done - self._done[side]) / STEP_SECONDS if side in self._done else None
            self._done[side] = done
        self._history.add(numbers)
        self._health()

    def history(self) -> HistoryData:
        return self._history.data()

    def status(self) -> Status:
        counters = self.counters()
        return Status(
            **asdict(self.info),
            totals=counters.totals,
            health=self._health(),
            now=self.now(),
            started=self._wall_time(self._started),
            sides={side: self._side(side, counters) for side in self.sides},
            consumers=list(self._consumers.values()),
            overview=self._overview,
            slow_types=self._slow_types(),
            errors=self.activity.error_groups()[:_ERRORS_SHOWN],
            activity=self.activity.recent_events(),
        )

    def _slow_types(self) -> Sequence[str]:
        return sorted(self.activity.slow_types)[:_SLOW_TYPES_SHOWN]

    def _side(self, side: str, counters: Counters) -> SideStatus:
        dated = self._samples.get(side)
        return SideStatus(
            sample=dated.value if dated else None,
            undelivered=self._undelivered(side),
            at=self._wall_time(dated.at) if dated else None,
            per_second=counters.per_second.get(_FLOWS[side], 0.0),
            latency=self.activity.latencies[side].percentiles(),
        )

    def _fresh(self, side: str) -> Sample | None:
        dated = self._samples.get(side)
        return dated.value if dated and self.clock() - dated.at < 2 * STEP_SECONDS else None

    def _undelivered(self, side: str) -> int:
        """Return the number of messages that the consumers had not delivered at the last sample."""
        if side != "inbox":
            return 0
        return sum(consumer.pending or 0 for consumer in self._consumers.values())

    def _undelivered_seconds(self, side: str) -> float:
        if side != "inbox":
            return 0.0
        return max((consumer.oldest_seconds or 0.0 for consumer in self._consumers.values()), default=0.0)

    def _health(self) -> HealthSummary:
        """Summarize the health, since its first cause or since its first appearance."""
        health = summarize(self._situation())
        state = f"{health.state} {health.level}"
        if state != self._state[0]:
            self._state = (state, self.clock())
        since = health.causes[0].since if health.causes else self._wall_time(self._state[1])
        return replace(health, since=since)

    def _situation(self) -> Situation:
        totals, reasons, warnings = self.counters().totals, self.reasons(), self.warnings()
        named = (*reasons, *warnings)
        self._reasons_since = {part: self._reasons_since.get(part, self.now()) for part in named}
        opened = {breaker: pause.since for breaker, pause in self.activity.paused.items()}
        return Situation(
            reasons=reasons,
            warnings=warnings,
            since=self._reasons_since | opened,
            waiting_for=self.activity.waiting_for,
            slow_types=self._slow_types(),
            missed=self._missed,
            sides=[self._side_facts(side, totals) for side in self.sides],
            paused_consumers=[
                consumer
                for consumer in self._consumers.values()
                if consumer.pending and consumer.paused_seconds
            ],
        )

    def _side_facts(self, side: str, totals: Mapping[str, float]) -> Side:
        dated = self._samples.get(side)
        return Side(
            name=side,
            sample=dated.value if dated else _NO_SAMPLE,
            sample_age_seconds=self.clock() - dated.at if dated else 0.0,
            undelivered=self._undelivered(side),
            undelivered_seconds=self._undelivered_seconds(side),
            before=self._history.before(f"{side}_depth", samples=_TREND_SAMPLES),
            done=int(totals.get(_FLOWS[side], 0)),
        )

    def _wall_time(self, at: float) -> float:
        """Convert a monotonic time to seconds since 1970, by the current clock."""
        return round(self.now() - (self.clock() - at), 1)

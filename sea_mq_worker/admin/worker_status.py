"""Standing: the page's data, put together from what was told and sampled last, with the age of each."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sea_mq_worker.admin.activity import ActivityLog
from sea_mq_worker.admin.health_summary import HealthSummary, Held, Side, Situation, summarize
from sea_mq_worker.admin.history import STEP_SECONDS, History

_TREND_SAMPLES = 300 // STEP_SECONDS
_TROUBLES_SHOWN = 8
_SLOW_TYPES_SHOWN = 8
_FLOWS = {"outbox": "published", "inbox": "processed"}
_SERIES = ("depth", "oldest", "rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Of one side's table: what waits, the age of the oldest in seconds, and what stopped for good.

    Attributes:
        scheduled: events that are not due yet, beside ``depth``.
    """

    depth: int
    oldest_seconds: float
    dead: int
    scheduled: int = 0


@dataclass(slots=True)
class _Kept:
    """Something sampled, and when, in monotonic seconds: a clock that is set must not make it older."""

    value: Any
    at: float


@dataclass(kw_only=True)
class WorkerStatus:
    """What the page shows.

    Attributes:
        about: what stays as it is: names, version, what the page offers.
        sides: those that this worker works on.
        numbers: totals and rates.
        reasons: why the worker is not ready, by part.
        now: seconds since 1970.
        clock: monotonic seconds.
    """

    about: Mapping[str, object]
    sides: Sequence[str]
    numbers: Callable[[], Mapping[str, Any]]
    reasons: Callable[[], Mapping[str, str]]
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    board: ActivityLog = field(default_factory=ActivityLog)

    def __post_init__(self) -> None:
        names = (f"{side}_{series}" for side in self.sides for series in _SERIES)
        self._history = History(*names, clock=self.now)
        self._samples: dict[str, _Kept] = {}
        self._consumers: dict[str, _Kept] = {}
        self._overview: _Kept | None = None
        self._started = self.clock()
        self._state = ("", self._started)
        self._seen = {"start": self.now()}
        self._done: dict[str, float] = {}

    def set_sample(self, side: str, sample: Sample) -> None:
        """Take what was counted in a table."""
        self._samples[side] = _Kept(sample, self.clock())

    def set_overview(self, overview: Mapping[str, Any]) -> None:
        """Take what stopped for good and why, and who else works."""
        self._overview = _Kept(overview, self.clock())

    def set_consumer(self, name: str, state: Mapping[str, Any]) -> None:
        """Take how a durable stands."""
        self._consumers[name] = _Kept(state, self.clock())

    def tick(self) -> None:
        """Keep one sample of the history, once there is any; to be called every ``STEP_SECONDS``."""
        if not self._samples:
            return
        totals = self.numbers()["totals"]
        kept: dict[str, float | None] = {}
        for side in self.sides:
            sample = self._fresh(side)
            done = float(totals.get(_FLOWS[side], 0))
            kept[f"{side}_depth"] = sample.depth + self._undelivered(side) if sample else None
            kept[f"{side}_oldest"] = sample.oldest_seconds if sample else None
            kept[f"{side}_rate"] = (done - self._done[side]) / STEP_SECONDS if side in self._done else None
            self._done[side] = done
        self._history.add(kept)
        self._judged()

    def history(self) -> Mapping[str, object]:
        """Return the last hour, as JSON data."""
        return self._history.data()

    def status(self) -> Mapping[str, object]:
        """Return how it stands now, as JSON data."""
        numbers = self.numbers()
        verdict, since = self._judged()
        now = self.now()
        return {
            **self.about,
            **numbers,
            "now": now,
            "started": self._told(self._started),
            "verdict": asdict(verdict) | {"since": since},
            "sides": {side: self._side(side, numbers) for side in self.sides},
            "consumers": [self._dated(kept) for kept in self._consumers.values()],
            "overview": self._dated(self._overview) if self._overview else None,
            "slow_types": sorted(self.board.slow_types)[:_SLOW_TYPES_SHOWN],
            "troubles": [asdict(trouble) for trouble in self.board.troubles()[:_TROUBLES_SHOWN]],
            "news": self.board.news(),
        }

    def _side(self, side: str, numbers: Mapping[str, Any]) -> Mapping[str, object]:
        kept = self._samples.get(side)
        return {
            "sample": asdict(kept.value) if kept else None,
            "undelivered": self._undelivered(side),
            "at": self._told(kept.at) if kept else None,
            "per_second": numbers["per_second"].get(_FLOWS[side], 0.0),
            "latency": self.board.latencies[side].percentiles(),
        }

    def _fresh(self, side: str) -> Sample | None:
        kept = self._samples.get(side)
        return kept.value if kept and self.clock() - kept.at < 2 * STEP_SECONDS else None

    def _undelivered(self, side: str) -> int:
        """Return what the consumers had still to deliver when they were asked last; it is in no table yet."""
        if side != "inbox":
            return 0
        return sum(kept.value.get("pending", 0) for kept in self._consumers.values())

    def _judged(self) -> tuple[HealthSummary, float]:
        """Judge, and tell since when that has been so: since its first cause, or since it was seen."""
        verdict = summarize(self._situation())
        state = f"{verdict.state} {verdict.level}"
        if state != self._state[0]:
            self._state = (state, self.clock())
        return verdict, verdict.causes[0].since if verdict.causes else self._told(self._state[1])

    def _situation(self) -> Situation:
        totals, reasons = self.numbers()["totals"], self.reasons()
        self._seen = {part: self._seen.get(part, self.now()) for part in reasons}
        return Situation(
            reasons=reasons,
            since=self._seen | {breaker: pause.since for breaker, pause in self.board.paused.items()},
            waiting_for=self.board.waiting_for,
            sides=[self._judged_side(side, totals) for side in self.sides],
            held=[_held(kept.value) for kept in self._consumers.values() if _is_held(kept.value)],
        )

    def _judged_side(self, side: str, totals: Mapping[str, float]) -> Side:
        kept = self._samples.get(side)
        done = int(totals.get(_FLOWS[side], 0))
        if kept is None:
            return Side(name=side, done=done, undelivered=self._undelivered(side))
        return Side(
            name=side,
            depth=kept.value.depth,
            oldest_seconds=kept.value.oldest_seconds,
            dead=kept.value.dead,
            scheduled=kept.value.scheduled,
            undelivered=self._undelivered(side),
            sample_age_seconds=self.clock() - kept.at,
            before=self._history.before(f"{side}_depth", samples=_TREND_SAMPLES),
            done=done,
        )

    def _dated(self, kept: _Kept) -> Mapping[str, object]:
        return {**kept.value, "at": self._told(kept.at)}

    def _told(self, at: float) -> float:
        """Return a monotonic moment in seconds since 1970, by what the clock says now."""
        return round(self.now() - (self.clock() - at), 1)


def _is_held(consumer: Mapping[str, Any]) -> bool:
    """What could not be asked has no numbers."""
    return bool(consumer.get("pending") and consumer.get("paused_seconds"))


def _held(consumer: Mapping[str, Any]) -> Held:
    return Held(**{each.name: consumer[each.name] for each in fields(Held)})

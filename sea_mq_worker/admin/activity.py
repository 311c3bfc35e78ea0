"""Activity log: an observer of open circuits, errors, recent events and latencies, for the page.

It stores no id and no payload; it stores error texts, because they name the cause.
"""

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.telemetry import events as facts

# --- Percentiles of the last minute, from counts in buckets that grow by a tenth.

_SLICES = 6
_SLICE_SECONDS = 10
_BOUNDS = tuple(0.001 * 1.1**step for step in range(160))
"""Upper bounds of the buckets in seconds, from a millisecond to about an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles in seconds, exact to a tenth."""

    p50: float
    p95: float
    p99: float


class Latencies:
    """Counts durations in a ring of ten-second slices; a slice is dropped after a minute."""

    __slots__ = ("_clock", "_ring", "_slice")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slice = self._now()
        self._ring = [_empty() for _ in range(_SLICES)]

    def observe(self, seconds: float) -> None:
        self._advance()
        self._ring[self._slice % _SLICES][bisect_left(_BOUNDS, seconds)] += 1

    def percentiles(self) -> Percentiles | None:
        """Return the percentiles of the last minute; None: no duration was counted."""
        self._advance()
        counts = [sum(column) for column in zip(*self._ring, strict=True)]
        total = sum(counts)
        if not total:
            return None
        p50, p95, p99 = (_at(counts, share * total) for share in (0.5, 0.95, 0.99))
        return Percentiles(p50=p50, p95=p95, p99=p99)

    def _now(self) -> int:
        return int(self._clock() // _SLICE_SECONDS)

    def _advance(self) -> None:
        """Clear the slices that began since the last call."""
        now = self._now()
        for passed in range(max(self._slice + 1, now - _SLICES + 1), now + 1):
            self._ring[passed % _SLICES] = _empty()
        self._slice = now


def _empty() -> list[int]:
    return [0] * (len(_BOUNDS) + 1)


def _at(counts: list[int], rank: float) -> float:
    seen = 0
    for bound, count in zip(_BOUNDS, counts, strict=False):
        seen += count
        if seen >= rank:
            return bound
    return _BOUNDS[-1]


_LATENCIES_OF_A_CLAIM = 16
"""Latencies recorded per claim: its events were published together, and each call costs time in a drain."""
_ERROR_GROUPS_MAX = 64
_RECENT_EVENTS_MAX = 40
_TEXT_MAX = 300


@dataclass(slots=True)
class ErrorGroup:
    """Errors of one kind; ``last`` is in seconds since 1970."""

    side: str
    effect: str
    text: str
    count: int
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentEvent:
    """One line of the page's recent activity; ``at`` is in seconds since 1970."""

    at: float
    level: str
    text: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Why a circuit is open, and since when in seconds since 1970."""

    reason: str
    since: float


class ActivityLog:
    """Records facts in a fixed amount of memory.

    Args:
        clock: monotonic seconds.
        now: seconds since 1970.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self.latencies = {side: Latencies(clock) for side in ("outbox", "inbox")}
        self.paused: dict[str, Pause] = {}
        self.waiting_for = ""
        self.slow_types: set[str] = set()
        self._error_groups: OrderedDict[tuple[str, str, str], ErrorGroup] = OrderedDict()
        self._recent: deque[RecentEvent] = deque(maxlen=_RECENT_EVENTS_MAX)

    def observe(self, fact: facts.Fact) -> None:  # noqa: C901, PLR0912  (one line a fact: the list is the point)
        match fact:
            case facts.EventsPublished():
                step = -(-len(fact.latencies) // _LATENCIES_OF_A_CLAIM) or 1
                for seconds in fact.latencies[::step]:
                    self.latencies["outbox"].observe(seconds)
            case facts.MessageProcessed():
                self.latencies["inbox"].observe(fact.seconds)
            case facts.EventPostponed():
                self._add_error("outbox", "retried", fact.error)
            case facts.EventDied():
                self._add_error("outbox", "DEAD", fact.error)
            case facts.MessageRetried():
                self._add_error("inbox", "retried", fact.error)
            case facts.MessageGivenBack():
                self._add_error("inbox", "given back", fact.error)
            case facts.TypeSlowed() | facts.TypeResumed():
                self._record_pace(fact)
            case facts.MessageDeadLettered():
                self._add_error("inbox", "dead letter", fact.reason)
            case facts.LeasesLost():
                self._add_event("warn", f"{fact.side}: {fact.count} leases lost to another worker")
            case facts.WorkerTakenOver():
                self._add_event("warn", f"{fact.side}: {fact.count} leases taken over from {fact.worker}")
            case facts.MessagesMissed():
                lost = f"{fact.count} of {fact.first_seq} to {fact.last_seq} missed in stream {fact.stream}"
                self._add_event("bad", f"{fact.consumer}: {lost}; have their sender replay them")
            case facts.CircuitOpened():
                self._record_pause(fact)
            case facts.CircuitClosed():
                self._end_pause(fact)
            case facts.Noticed():
                self._notice(fact)
            case facts.Progressed():
                self.waiting_for = ""
                self._add_event("good", _named(fact))
            case facts.WorkerStarted():
                self._add_event("good", "all loops are running")
            case _:
                pass

    def error_groups(self) -> list[ErrorGroup]:
        """Return recent errors by kind, the most frequent first."""
        return sorted(self._error_groups.values(), key=lambda group: -group.count)

    def recent_events(self) -> list[RecentEvent]:
        """Return recent events, the latest first."""
        return list(reversed(self._recent))

    def _record_pause(self, fact: facts.CircuitOpened) -> None:
        before = self.paused.get(fact.circuit)
        since = before.since if before else self._now()
        self.paused[fact.circuit] = Pause(reason=fact.reason, since=since)
        self._add_event("bad", f"{fact.circuit}: {fact.reason}")

    def _end_pause(self, fact: facts.CircuitClosed) -> None:
        self.paused.pop(fact.circuit, None)
        self._add_event("good", f"{fact.circuit}: works again after {fact.paused_seconds:.1f} s")

    def _record_pace(self, fact: facts.TypeSlowed | facts.TypeResumed) -> None:
        if isinstance(fact, facts.TypeSlowed):
            self.slow_types.add(fact.event_type)
            self._add_event("bad", f"{fact.event_type}: {fact.reason}")
        else:
            self.slow_types.discard(fact.event_type)
            self._add_event("good", f"{fact.event_type}: full speed again: {fact.why}")

    def _notice(self, fact: facts.Noticed) -> None:
        if fact.event == "waiting":
            self.waiting_for = _cut(fact.text)
        self._add_event("warn", _named(fact))

    def _add_error(self, side: str, effect: str, text: str) -> None:
        key = (side, effect, _cut(text))
        group = self._error_groups.pop(key, None) or ErrorGroup(*key, count=0, last=0.0)
        group.count += 1
        group.last = self._now()
        self._error_groups[key] = group
        if len(self._error_groups) > _ERROR_GROUPS_MAX:
            self._error_groups.popitem(last=False)

    def _add_event(self, level: str, text: str) -> None:
        """Add a line; a repeated text stays one line with a count."""
        text = _cut(text)
        known = next((event for event in self._recent if event.text == text), None)
        if known:
            self._recent.remove(known)
        times = known.times + 1 if known else 1
        self._recent.append(RecentEvent(at=self._now(), level=level, text=text, times=times))


def _named(fact: facts.Noticed | facts.Progressed) -> str:
    event = fact.event.replace("_", " ")
    return f"{event}: {fact.text}" if fact.text else event


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

"""Activity log: a listener for open circuits, errors, recent events and latencies, for the page.

It stores no id and no payload; it stores error texts, because they name the cause.
"""

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sea_mq_worker.telemetry.events import NOTICES

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
    """Records events in a fixed amount of memory.

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

    def emit(self, key: str, /, **fields: Any) -> None:  # noqa: C901, PLR0912  (one case an event: the list is the point)
        f = SimpleNamespace(**fields)
        match key:
            case "event_published":
                step = -(-f.count // _LATENCIES_OF_A_CLAIM) or 1
                for seconds in f.latencies[::step]:
                    self.latencies["outbox"].observe(seconds)
            case "message_processed":
                for seconds in f.durations:
                    self.latencies["inbox"].observe(seconds)
            case "event_postponed":
                self._add_error("outbox", "retried", f.error)
            case "event_died":
                self._add_error("outbox", "DEAD", f.error)
            case "message_retried":
                self._add_error("inbox", "retried", f.error)
            case "message_given_back":
                self._add_error("inbox", "given back", f.error)
            case "type_slowed":
                self.slow_types.add(f.event_type)
                self._add_event("bad", f"{f.event_type}: {f.reason}")
            case "type_resumed":
                self.slow_types.discard(f.event_type)
                self._add_event("good", f"{f.event_type}: full speed again: {f.why}")
            case "message_dead_lettered":
                self._add_error("inbox", "dead letter", f.reason)
            case "leases_lost":
                self._add_event("warn", f"{f.side}: {f.count} leases lost to another worker")
            case "worker_taken_over":
                self._add_event("warn", f"{f.side}: {f.count} leases taken over from {f.worker}")
            case "messages_missed":
                lost = f"{f.count} of {f.first_seq} to {f.last_seq} missed in stream {f.stream}"
                self._add_event("bad", f"{f.consumer}: {lost}; have their sender replay them")
            case "circuit_opened":
                before = self.paused.get(f.circuit)
                since = before.since if before else self._now()
                self.paused[f.circuit] = Pause(reason=f.reason, since=since)
                self._add_event("bad", f"{f.circuit}: {f.reason}")
            case "circuit_closed":
                self.paused.pop(f.circuit, None)
                self._add_event("good", f"{f.circuit}: works again after {f.paused_seconds:.1f} s")
            case "worker_started":
                self._add_event("good", "all loops are running")
            case _ if "text" in fields:
                self._report(key, f.text)

    def error_groups(self) -> list[ErrorGroup]:
        """Return recent errors by kind, the most frequent first."""
        return sorted(self._error_groups.values(), key=lambda group: -group.count)

    def recent_events(self) -> list[RecentEvent]:
        """Return recent events, the latest first."""
        return list(reversed(self._recent))

    def _report(self, key: str, text: str) -> None:
        notice = key in NOTICES
        if key == "waiting" or not notice:
            self.waiting_for = _cut(text) if notice else ""
        name = key.replace("_", " ")
        self._add_event("warn" if notice else "good", f"{name}: {text}" if text else name)

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


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

"""Activity log: an observer of open circuits, errors, recent events and latencies, for the page.

It stores no id and no payload; it stores error texts, because they name the cause.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.admin.latencies import Latencies
from sea_mq_worker.domain import facts

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

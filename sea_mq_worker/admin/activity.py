"""Board: an observer that keeps what an operator asks first: what pauses, what fails, how long it takes.

Neither an id nor a payload is kept; texts of failures are, because they name what is wrong.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sea_mq_worker.admin.latencies import Latencies
from sea_mq_worker.domain.facts import (
    CircuitClosed,
    CircuitOpened,
    EventDied,
    EventPostponed,
    EventsPublished,
    Fact,
    LeasesLost,
    MessageDeadLettered,
    MessageGivenBack,
    MessageProcessed,
    MessageRetried,
    MessagesMissed,
    Noticed,
    Progressed,
    TypeResumed,
    TypeSlowed,
    WorkerStarted,
)

_LATENCIES_OF_A_CLAIM = 16
"""So many of its events stand for a claim: they were published together, and a drain pays for each call."""
_TROUBLES_MAX = 64
_NEWS_MAX = 40
_TEXT_MAX = 300


@dataclass(slots=True)
class ErrorGroup:
    """A kind of failure; times are seconds since 1970."""

    side: str
    what: str
    text: str
    count: int
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Why a gate is closed, and since when, in seconds since 1970."""

    reason: str
    since: float


class ActivityLog:
    """Takes facts and tells how it stands.

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
        self._troubles: OrderedDict[tuple[str, str, str], ErrorGroup] = OrderedDict()
        self._news: deque[Mapping[str, Any]] = deque(maxlen=_NEWS_MAX)

    def observe(self, fact: Fact) -> None:  # noqa: C901, PLR0912  (one line a fact: the list is the point)
        match fact:
            case EventsPublished():
                step = -(-len(fact.latencies) // _LATENCIES_OF_A_CLAIM) or 1
                for seconds in fact.latencies[::step]:
                    self.latencies["outbox"].observe(seconds)
            case MessageProcessed():
                self.latencies["inbox"].observe(fact.seconds)
            case EventPostponed():
                self._trouble("outbox", "tried again", fact.error)
            case EventDied():
                self._trouble("outbox", "DEAD", fact.error)
            case MessageRetried():
                self._trouble("inbox", "tried again", fact.error)
            case MessageGivenBack():
                self._trouble("inbox", "given back", fact.error)
            case TypeSlowed() | TypeResumed():
                self._pace(fact)
            case MessageDeadLettered():
                self._trouble("inbox", "dead letter", fact.reason)
            case LeasesLost():
                self._add_news("warn", f"{fact.side}: {fact.count} leases lost to another worker")
            case MessagesMissed():
                gone = f"{fact.count} of {fact.first_seq} to {fact.last_seq} left stream {fact.stream}"
                self._add_news("bad", f"{fact.consumer}: {gone} unseen; have their sender replay them")
            case CircuitOpened():
                self._pause(fact)
            case CircuitClosed():
                self._resume(fact)
            case Noticed():
                self._notice(fact)
            case Progressed():
                self.waiting_for = ""
                self._add_news("good", _named(fact))
            case WorkerStarted():
                self._add_news("good", "all loops run")
            case _:
                pass

    def troubles(self) -> list[ErrorGroup]:
        """Return the kinds of failures of late, the most frequent first."""
        return sorted(self._troubles.values(), key=lambda trouble: -trouble.count)

    def news(self) -> list[Mapping[str, Any]]:
        """Return what was told of late, the latest first."""
        return list(reversed(self._news))

    def _pause(self, fact: CircuitOpened) -> None:
        before = self.paused.get(fact.circuit)
        since = before.since if before else self._now()
        self.paused[fact.circuit] = Pause(reason=fact.reason, since=since)
        self._add_news("bad", f"{fact.circuit}: {fact.reason}")

    def _resume(self, fact: CircuitClosed) -> None:
        self.paused.pop(fact.circuit, None)
        self._add_news("good", f"{fact.circuit}: works again, after {fact.paused_seconds:.1f} s")

    def _pace(self, fact: TypeSlowed | TypeResumed) -> None:
        if isinstance(fact, TypeSlowed):
            self.slow_types.add(fact.event_type)
            self._add_news("bad", f"{fact.event_type}: {fact.reason}")
        else:
            self.slow_types.discard(fact.event_type)
            self._add_news("good", f"{fact.event_type}: at full speed again, for {fact.why}")

    def _notice(self, fact: Noticed) -> None:
        if fact.event == "waiting":
            self.waiting_for = _cut(fact.text)
        self._add_news("warn", _named(fact))

    def _trouble(self, side: str, what: str, text: str) -> None:
        key = (side, what, _cut(text))
        trouble = self._troubles.pop(key, None) or ErrorGroup(*key, count=0, last=0.0)
        trouble.count += 1
        trouble.last = self._now()
        self._troubles[key] = trouble
        if len(self._troubles) > _TROUBLES_MAX:
            self._troubles.popitem(last=False)

    def _add_news(self, level: str, text: str) -> None:
        """What is told again and again, such as a server that is waited for, stays one line."""
        text = _cut(text)
        known = next((one for one in self._news if one["text"] == text), None)
        if known:
            self._news.remove(known)
        times = known["times"] + 1 if known else 1
        self._news.append({"at": self._now(), "level": level, "text": text, "times": times})


def _named(fact: Noticed | Progressed) -> str:
    event = fact.event.replace("_", " ")
    return f"{event}: {fact.text}" if fact.text else event


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

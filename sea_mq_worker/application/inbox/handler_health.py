"""Tells a sick handler from sick messages, by event type."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.domain.facts import TypeResumed, TypeSlowed
from sea_mq_worker.domain.outcomes import Poison, Retry
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.domain.throttle import WAIT_MAX_SECONDS, Throttle
from sea_mq_worker.ports.observer import Observer

OnResumed: TypeAlias = Callable[[str], object]

_WORKS_SECONDS = 60.0
"""So long after an effect the handler is known to work."""
_QUIET_SECONDS = 300.0
"""A type of which nothing failed for so long is not slow any more."""
_DOUBT_CAP_SECONDS = 60.0
"""A failure that does not count is asked about again soon, however long that went on."""
_TYPES_MAX = 1000


@dataclass(slots=True, kw_only=True)
class HandlerHealth:
    """Knowledge of the handler: whether it can be reached, and which event types it fails.

    A handler that cannot be reached closes the gate: nobody would be served. One that fails different
    messages of one event type in a row is asked about that type at a slow pace; other types go on.

    Attributes:
        slow_after: different messages of a type in a row without an effect that make it slow.
        per_second: failures of a slow type that count.
        backoff: of a message that is tried again.
        slow_calls_max: calls for slow types at a time, over all of them.
    """

    breaker: CircuitBreaker
    observer: Observer
    clock: Callable[[], float]
    backoff: Backoff
    slow_after: int
    per_second: float
    slow_calls_max: int
    _paces: dict[str, Throttle] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _listeners: list[OnResumed] = field(default_factory=list)
    _effect_at: float = float("-inf")
    _slow_calls: int = 0

    @contextmanager
    def telling(self, listener: OnResumed) -> Iterator[None]:
        """Call ``listener`` with each event type that is slow no more, for the length of a block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def took(self, event_type: str) -> None:
        """Note an effect: the type is not slow any more."""
        self._effect_at = self.clock()
        self._end(event_type, "the handler took a message of it")

    def is_message_fault(self, event_type: str, message_id: str, result: Retry | Poison) -> bool:
        """Note an answer without an effect; return whether it counts.

        A rejection is a verdict. Any other answer spends an attempt only while the handler works for others.
        """
        now = self.clock()
        pace = self._paces.get(event_type) or self._begin(event_type)
        was_slow = pace.slow_since is not None
        works = now - self._effect_at <= _WORKS_SECONDS
        counts = pace.failed(message_id, now, may_count=isinstance(result, Poison) or works)
        if pace.slow_since is not None:
            self._reasons[event_type] = _error(result)
        if pace.slow_since is not None and not was_slow:
            self.observer.observe(TypeSlowed(event_type=event_type, reason=self.reason(event_type)))
        return counts

    def is_slow(self, event_type: str) -> bool:
        return self._slow(event_type) is not None

    def takes_soon(self, event_type: str, most: int) -> int:
        """Return how many messages, ``most`` at most, could be asked about soon for the first time."""
        pace = self._slow(event_type)
        if pace is None:
            return most
        return min(most, self._slow_places, pace.calls_within(WAIT_MAX_SECONDS / 2, self.clock()))

    def take_call(self, event_type: str, *, repeated: bool) -> float | None:
        """Return how long to wait before the call, or None where that is too long to keep a place.

        A message that was given back comes again in its turn, and does not wait.
        """
        pace = self._slow(event_type)
        if pace is None:
            return 0.0
        if not self._slow_places:
            return None
        if repeated:
            return 0.0
        return pace.take_call(self.clock()) if pace.call_in(self.clock()) <= WAIT_MAX_SECONDS else None

    @contextmanager
    def calling(self, event_type: str) -> Iterator[None]:
        """Count a call of a slow type while it lasts."""
        counted = int(self._slow(event_type) is not None)
        self._slow_calls += counted
        try:
            yield
        finally:
            self._slow_calls -= counted

    def delay_seconds(self, event_type: str, *, deliveries: int, in_line: bool) -> float:
        """Return when a message is asked about again: in its turn, and ever more rarely by its deliveries."""
        pace = self._slow(event_type) if in_line else None
        turn = pace.next_turn(self.clock()) if pace is not None else 0.0
        growing = replace(self.backoff, cap_seconds=min(self.backoff.cap_seconds, _DOUBT_CAP_SECONDS))
        grown = growing.delay_seconds(deliveries) if deliveries else 0.0
        return max(grown, min(turn, self.backoff.cap_seconds))

    @property
    def _slow_places(self) -> int:
        return max(0, self.slow_calls_max - self._slow_calls)

    def _slow(self, event_type: str) -> Throttle | None:
        pace = self._paces.get(event_type)
        return pace if pace is not None and pace.slow_since is not None else None

    def slow_seconds(self) -> dict[str, float]:
        """Return the slow types and for how long they are; a type of which nothing failed lately is not."""
        now = self.clock()
        for event_type, pace in list(self._paces.items()):
            if pace.slow_since is not None and now - pace.failed_at > _QUIET_SECONDS:
                self._end(event_type, "nothing of it failed for a while")
        return {
            event_type: now - pace.slow_since
            for event_type, pace in self._paces.items()
            if pace.slow_since is not None
        }

    def resume(self, event_type: str) -> None:
        """End the slow pace of a type because an operator says so."""
        self._end(event_type, "an operator resumed it")

    def error(self, event_type: str) -> str:
        """Return what the handler answered last about a slow type."""
        return self._reasons.get(event_type, "")

    def reason(self, event_type: str) -> str:
        """Say what is wrong with a slow type, and what to do about it."""
        quoted = shlex.quote(event_type)  # a sender chose it, and the commands are copied into a shell
        return (
            f"{self.error(event_type)}, for different messages in a row: failures of this event type "
            f"count at {self.per_second:g} a second, and its other messages are given back. Mend the "
            f"handler; then `python -m sea_mq_worker inbox resume --type {quoted} --reason mended` ends "
            "the slow pace at once, and `python -m sea_mq_worker dlq redrive --dlq-reason REJECTED "
            f"--type {quoted} --reason mended` brings back what was dead-lettered"
        )

    def reasons(self) -> str:
        """Say what is wrong with all slow types; empty: there is none."""
        return "; ".join(f"{event_type}: {self.reason(event_type)}" for event_type in self.slow_seconds())

    def _begin(self, event_type: str) -> Throttle:
        while len(self._paces) >= _TYPES_MAX:
            self._end(next(iter(self._paces)), "too many types fail")
        pace = Throttle(slow_after=self.slow_after, per_second=self.per_second)
        self._paces[event_type] = pace
        return pace

    def _end(self, event_type: str, why: str) -> None:
        pace = self._paces.pop(event_type, None)
        if pace is None or pace.slow_since is None:
            return
        del self._reasons[event_type]
        seconds = self.clock() - pace.slow_since
        self.observer.observe(TypeResumed(event_type=event_type, why=why, slow_seconds=seconds))
        for listener in self._listeners:
            listener(event_type)


def _error(result: Retry | Poison) -> str:
    match result:
        case Retry(error):
            return error
        case Poison(detail):
            return detail

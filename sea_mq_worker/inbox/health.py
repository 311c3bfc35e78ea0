"""Distinguishes a failing handler from bad messages, by event type."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sea_mq_worker.errors import ContractError, UnavailableError, command
from sea_mq_worker.inbox.message import Poison, Retry
from sea_mq_worker.ports import Events
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker
from sea_mq_worker.runtime.waiting import sleep_or_stop

# --- Limit the rate of calls and of counted failures of an event type that fails repeatedly.
#
# Either the handler or the messages of such a type may be wrong, and the worker cannot distinguish the two.
# Therefore failures count at a limited rate, and the handler is soon called with every later message: one
# success ends the low rate.

WAIT_MAX_SECONDS = 0.5
"""Maximum wait for a call; a message that would wait longer is returned."""
_SPACING_SECONDS = 0.00005
_SPACING_MAX_SECONDS = 1.0
_BURST = 2
"""Failures that may count at once after a time without counted failures."""


@dataclass(slots=True, kw_only=True)
class Throttle:
    """Throttle of one event type; every method takes the time in monotonic seconds.

    Attributes:
        slow_after: number of different messages that fail in a row before the type is slow.
        per_second: number of failures of a slow type that count per second.
        slow_since: when the type became slow; None: it is not slow.
        failed_at: time of the last failure.
        error: the handler's error then.
    """

    slow_after: int
    per_second: float
    slow_since: float | None = None
    failed_at: float = 0.0
    error: str = ""
    failures: int = 0
    """Number of failures in a row."""
    _failing: set[str] = field(default_factory=set)
    _call_at: float = 0.0
    _counts_at: float = 0.0
    _line_ends_at: float = 0.0

    def failed(self, message_id: str, now: float, *, may_count: bool) -> bool:
        """Record a failed call; return whether it counts (for a slow type only if ``may_count``)."""
        self.failures += 1
        self.failed_at = now
        if self.slow_since is None:
            self._failing.add(message_id)
            if len(self._failing) < self.slow_after:
                return True
            self.slow_since = now
        if not may_count or now < self._counts_at:
            return False
        earliest = now - (_BURST - 1) / self.per_second
        self._counts_at = max(self._counts_at, earliest) + 1 / self.per_second
        return True

    def next_turn(self, now: float) -> float:
        """Queue a returned message; return the seconds until its turn.

        Queued messages are redelivered one after the other, at the rate at which failures count.
        """
        self._line_ends_at = max(self._line_ends_at, now) + 1 / self.per_second
        return self._line_ends_at - now

    def call_in(self, now: float) -> float:
        """Return the seconds until the handler may be called with a new message."""
        return max(0.0, self._call_at - now)

    def take_call(self, now: float) -> float:
        """Reserve the next call; return the seconds until it may be made.

        The interval grows with the run of failures: 300 messages reach the handler within three seconds, and
        a handler that fails for a long time gets one call a second.
        """
        wait = self.call_in(now)
        self._call_at = now + wait + self._spacing_seconds
        return wait

    def calls_within(self, seconds: float, now: float) -> int:
        """Return the number of new messages with which the handler may be called within ``seconds``."""
        left = seconds - self.call_in(now)
        return 0 if left < 0 else 1 + int(left / self._spacing_seconds)

    @property
    def _spacing_seconds(self) -> float:
        return min(max(self.failures, 1) * _SPACING_SECONDS, _SPACING_MAX_SECONDS)


_WORKS_SECONDS = 60.0
"""Time after an effect in which the handler counts as working."""
_QUIET_SECONDS = 300.0
"""A slow type without a failure for this long returns to full speed."""
_DOUBT_CAP_SECONDS = 60.0
"""Cap of the delay after a failure that does not count, so that a retry comes soon after recovery."""
_TYPES_MAX = 1000
"""Cap on event types with failures, because senders choose the names."""


@dataclass(slots=True, kw_only=True)
class HandlerHealth:
    """State of the handler: whether it is reachable, and which event types it fails.

    An unreachable handler opens the circuit, for all types. When it fails different messages of one event
    type in a row, that type continues at a slow pace and the other types at full speed.

    Attributes:
        slow_after: number of different messages of a type that must fail in a row to make the type slow.
        per_second: rate at which failures of a slow type count.
        backoff: delays of a message that is retried.
        slow_calls_max: most calls at a time for all slow types together.
        silent_after_seconds: time without an answer to any call after which the handler counts as silent.
    """

    breaker: CircuitBreaker
    events: Events
    clock: Callable[[], float]
    backoff: Backoff
    slow_after: int
    per_second: float
    slow_calls_max: int
    silent_after_seconds: float
    _throttles: dict[str, Throttle] = field(default_factory=dict)
    _listeners: list[Callable[[str], object]] = field(default_factory=list)
    _effect_at: float = float("-inf")
    _slow_calls: int = 0
    _calls: int = 0
    _called_at: float = float("-inf")
    _unanswered_since: float | None = None
    _rejection: str = ""
    _rejected_at: float = float("-inf")

    @contextmanager
    def on_resumed(self, listener: Callable[[str], object]) -> Iterator[None]:
        """Call ``listener`` with each event type whose slow pace ends, for the length of a block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def record_effect(self, event_type: str) -> None:
        """Record an effect, which ends the slow pace of the type."""
        self._effect_at = self.clock()
        self._rejection = ""
        self._end(event_type, "the handler accepted a message of it")

    @property
    def works(self) -> bool:
        """Whether the handler accepted a message lately."""
        return self.clock() - self._effect_at <= _WORKS_SECONDS

    def record_failure(self, event_type: str, message_id: str, result: Retry | Poison) -> bool:
        """Record a response without an effect; return whether it counts as the message's own failure.

        The failure may make its type slow, which is reported.
        A rejection always can. Another response of a slow type counts only while the handler works for other
        messages, and so does one that a wrong deployment gives, of any type.
        """
        now = self.clock()
        throttle = self._throttles.get(event_type) or self._begin(event_type)
        was_slow = throttle.slow_since is not None
        counts = throttle.failed(message_id, now, may_count=isinstance(result, Poison) or self.works)
        if isinstance(result, Retry) and result.about == "deployment" and not self.works:
            self._reject(result.error)
            counts = False
        throttle.error = result.error
        if throttle.slow_since is not None and not was_slow:
            self.events.emit("type_slowed", event_type=event_type, reason=self.reason(event_type))
        return counts

    def _reject(self, error: str) -> None:
        if not self._rejection:
            text = f"{error}; no message uses up an attempt until the handler accepts one"
            self.events.emit("handler_rejects", text=text)
        self._rejection, self._rejected_at = error, self.clock()

    @property
    def trouble(self) -> str:
        """Why the handler does no work at all; empty while it does some, or has none."""
        if not self.breaker.is_closed:
            return self.breaker.reason
        now, since = self.clock(), self._unanswered_since
        is_called = self._calls or now - self._called_at <= _QUIET_SECONDS
        if since is not None and is_called and now - since >= self.silent_after_seconds:
            return f"the handler has answered no call for {now - since:.0f} s"
        if self._rejection and now - self._rejected_at <= _QUIET_SECONDS:
            return f"{self._rejection}; it has accepted no message since"
        slow = () if self.works else self.slow_seconds()
        return "; ".join(f"{event_type}: {self.reason(event_type)}" for event_type in slow)

    def warnings(self) -> dict[str, str]:
        """Return the causes of the slow types by name, while the handler works for others."""
        slow = self.slow_seconds() if self.works else ()
        return {f"event type {event_type}": self.reason(event_type) for event_type in slow}

    def is_slow(self, event_type: str) -> bool:
        return self._slow(event_type) is not None

    def calls_soon(self, event_type: str, most: int) -> int:
        """Return the number of first calls, at most ``most``, that the type's throttle allows soon."""
        throttle = self._slow(event_type)
        if throttle is None:
            return most
        return min(most, self._slow_places, throttle.calls_within(WAIT_MAX_SECONDS / 2, self.clock()))

    def take_call(self, event_type: str, *, repeated: bool) -> float | None:
        """Return the seconds to wait before the call, or None where the wait is too long to hold a slot.

        A message that was given back arrives at its turn, and does not wait.
        """
        throttle = self._slow(event_type)
        if throttle is None:
            return 0.0
        if not self._slow_places:
            return None
        if repeated:
            return 0.0
        return (
            throttle.take_call(self.clock()) if throttle.call_in(self.clock()) <= WAIT_MAX_SECONDS else None
        )

    @contextmanager
    def calling(self, event_type: str) -> Iterator[None]:
        """Count a call while it lasts, one of a slow type also as such."""
        counted = self._slow(event_type) is not None
        self._slow_calls += counted
        self._calls += 1
        self._called_at = self.clock()
        if self._unanswered_since is None:
            self._unanswered_since = self._called_at
        try:
            yield
        finally:
            self._slow_calls -= counted
            self._calls -= 1

    def record_not_silent(self) -> None:
        """Record that a call has ended otherwise than by silence: the others wait since now."""
        self._unanswered_since = self.clock() if self._calls else None

    def delay_seconds(self, event_type: str, *, deliveries: int, in_line: bool) -> float:
        """Return the delay of a message's next delivery: until its turn, and growing with its deliveries."""
        throttle = self._slow(event_type) if in_line else None
        turn = throttle.next_turn(self.clock()) if throttle is not None else 0.0
        growing = replace(self.backoff, cap_seconds=min(self.backoff.cap_seconds, _DOUBT_CAP_SECONDS))
        grown = growing.delay_seconds(deliveries) if deliveries else 0.0
        return max(grown, min(turn, self.backoff.cap_seconds))

    @property
    def _slow_places(self) -> int:
        return max(0, self.slow_calls_max - self._slow_calls)

    def _slow(self, event_type: str) -> Throttle | None:
        throttle = self._throttles.get(event_type)
        return throttle if throttle is not None and throttle.slow_since is not None else None

    def slow_seconds(self) -> dict[str, float]:
        """Return the slow types with the seconds since they became slow; end the pace of quiet types."""
        now = self.clock()
        for event_type, throttle in list(self._throttles.items()):
            if throttle.slow_since is not None and now - throttle.failed_at > _QUIET_SECONDS:
                self._end(event_type, "no message of it failed for a while")
        return {
            event_type: now - throttle.slow_since
            for event_type, throttle in self._throttles.items()
            if throttle.slow_since is not None
        }

    def resume(self, event_type: str) -> None:
        """End the slow pace of a type at an operator's request."""
        self._end(event_type, "an operator resumed it")

    def error(self, event_type: str) -> str:
        """Return the handler's last error for a slow type."""
        throttle = self._slow(event_type)
        return throttle.error if throttle is not None else ""

    def reason(self, event_type: str) -> str:
        """Return the cause of a slow type's pace, and how to fix it."""
        resume = command("inbox", "resume", "--type", event_type, "--reason", "fixed")
        redrive = command("dlq", "redrive", "--type", event_type, "--reason", "fixed")
        return (
            f"{self.error(event_type)}, for different messages in a row. Failures of this event type "
            f"count at {self.per_second:g} a second, and its other messages are given back. Fix the "
            f"handler; then {resume} ends the slow pace at once, and {redrive} handles its dead letters again"
        )

    def _begin(self, event_type: str) -> Throttle:
        while len(self._throttles) >= _TYPES_MAX:
            self._end(next(iter(self._throttles)), "more than 1000 types fail")
        throttle = Throttle(slow_after=self.slow_after, per_second=self.per_second)
        self._throttles[event_type] = throttle
        return throttle

    def _end(self, event_type: str, why: str) -> None:
        throttle = self._throttles.pop(event_type, None)
        if throttle is None or throttle.slow_since is None:
            return
        seconds = self.clock() - throttle.slow_since
        self.events.emit("type_resumed", event_type=event_type, why=why, slow_seconds=seconds)
        for listener in self._listeners:
            listener(event_type)


async def resume_requested(
    resumed: Callable[[float], Awaitable[Sequence[tuple[str, float]]]],
    health: HandlerHealth,
    events: Events,
    stop: asyncio.Event,
    *,
    every_seconds: float,
) -> None:
    """End the slow pace of an event type at an operator's request, in every worker, until the worker stops.

    ``resumed`` returns the requests of the last seconds, each with its age. It is called only while an event
    type is slow. A request counts for the types that were slow when it was made; without a type, for all of
    these.
    """
    while not stop.is_set():
        await sleep_or_stop(stop, seconds=every_seconds)
        slow = health.slow_seconds()
        if not slow:
            continue
        try:
            requests = await resumed(max(slow.values()) + 1.0)
        except UnavailableError:
            continue
        except ContractError as error:  # a worker without the right to read the audit still works
            text = f"`inbox resume` does not reach this worker: run sql/roles.sql again ({error})"
            events.emit("resume_not_readable", text=text)
            await stop.wait()
            return
        for event_type, seconds_ago in requests:
            for name, seconds in slow.items():
                if event_type in {"", name} and seconds_ago < seconds:
                    health.resume(name)

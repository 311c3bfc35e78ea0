"""Limit the rate of calls and of counted failures of an event type that fails repeatedly.

Either the handler or the messages of such a type may be wrong, and the worker cannot distinguish the two.
Therefore failures count at a limited rate, and the handler is soon called with every later message: one
success ends the low rate.
"""

from dataclasses import dataclass, field

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

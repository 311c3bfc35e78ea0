"""How often a handler is asked about one event type that fails again and again, and which answers count.

The handler of such a type may be wrong, or its messages may be. Nobody can tell, so failures count at a
bounded rate, and every message behind them is asked about soon: a healthy one ends the slow pace.
"""

from dataclasses import dataclass, field

WAIT_MAX_SECONDS = 0.5
"""A message that has to wait longer for its call gives its place back."""
_SPACING_SECONDS = 0.00005
_SPACING_MAX_SECONDS = 1.0
_BURST = 2
"""Failures that may count at once after a while without any."""


@dataclass(slots=True, kw_only=True)
class Throttle:
    """Of one event type; every method takes the time in monotonic seconds.

    Attributes:
        slow_after: different messages in a row without an effect that make it slow.
        per_second: failures of a slow type that count.
        slow_since: when it became slow; None: it is not.
        failed_at: when a message failed last.
    """

    slow_after: int
    per_second: float
    slow_since: float | None = None
    failed_at: float = 0.0
    failures: int = 0
    """In a row."""
    _failing: set[str] = field(default_factory=set)
    _call_at: float = 0.0
    _counts_at: float = 0.0
    _line_ends_at: float = 0.0

    def failed(self, message_id: str, now: float, *, may_count: bool) -> bool:
        """Note a call without an effect; return whether it counts: of a slow type only where it may."""
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
        """Put a message that is given back into a line; return in how many seconds it is its turn.

        Those in the line come again one after the other, as fast as failures count.
        """
        self._line_ends_at = max(self._line_ends_at, now) + 1 / self.per_second
        return self._line_ends_at - now

    def call_in(self, now: float) -> float:
        """Return in how many seconds a message may be asked about for the first time."""
        return max(0.0, self._call_at - now)

    def take_call(self, now: float) -> float:
        """Take the next call; return in how many seconds it may be made.

        The longer the run of failures, the further calls are apart: 300 messages are asked about within three
        seconds, and a handler that is broken for long gets a call a second.
        """
        wait = self.call_in(now)
        self._call_at = now + wait + self._spacing_seconds
        return wait

    def calls_within(self, seconds: float, now: float) -> int:
        """Return how many messages may be asked about for the first time within some seconds."""
        left = seconds - self.call_in(now)
        return 0 if left < 0 else 1 + int(left / self._spacing_seconds)

    @property
    def _spacing_seconds(self) -> float:
        return min(max(self.failures, 1) * _SPACING_SECONDS, _SPACING_MAX_SECONDS)

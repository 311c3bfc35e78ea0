"""Rates per second for the status page."""

from collections.abc import Callable

_RATE_SECONDS = 10


class Rate:
    """Events per second over the last ten whole seconds, in a ring of one bucket per second."""

    __slots__ = ("_buckets", "_clock", "_second")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = int(clock())
        self._buckets = [0] * (_RATE_SECONDS + 1)

    def add(self, count: int = 1) -> None:
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        self._buckets[second % len(self._buckets)] += count

    def per_second(self) -> float:
        second = int(self._clock())
        self._advance(second)
        whole = sum(self._buckets) - self._buckets[second % len(self._buckets)]
        return whole / _RATE_SECONDS

    def _advance(self, second: int) -> None:
        """Clear the buckets of the seconds that began since the last call."""
        size = len(self._buckets)
        for passed in range(self._second + 1, min(second, self._second + size) + 1):
            self._buckets[passed % size] = 0
        self._second = second

"""Percentiles of the last minute, from counts in buckets that are a tenth wide."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

_SLICES = 6
_SLICE_SECONDS = 10
_BOUNDS = tuple(0.001 * 1.1**step for step in range(160))
"""From a millisecond to an hour."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Latencies:
    """Counts durations in a ring of slices; what is older than a minute falls out slice by slice."""

    __slots__ = ("_clock", "_ring", "_slice")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slice = self._now()
        self._ring = [_empty() for _ in range(_SLICES)]

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._turn()
        self._ring[self._slice % _SLICES][bisect_left(_BOUNDS, seconds)] += 1

    def percentiles(self) -> Mapping[str, float] | None:
        """Return seconds that so large a share took at most, to a tenth; None: nothing was counted."""
        self._turn()
        counts = [sum(column) for column in zip(*self._ring, strict=True)]
        total = sum(counts)
        return {name: _at(counts, share * total) for name, share in _SHARES.items()} if total else None

    def _now(self) -> int:
        return int(self._clock() // _SLICE_SECONDS)

    def _turn(self) -> None:
        """Empty the slices that have begun since the last call."""
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

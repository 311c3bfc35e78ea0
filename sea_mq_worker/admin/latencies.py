"""Percentiles of the last minute, from counts in buckets that grow by a tenth."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

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

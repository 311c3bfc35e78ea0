"""History of the last hour, in a fixed amount of memory."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STEP_SECONDS = 15
_SAMPLES = 240
_NOTHING = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    """Samples by name, the oldest first; ``at`` is the time of the last in seconds since 1970."""

    at: float
    step_seconds: int
    series: Mapping[str, Sequence[float | None]]


class History:
    """A ring of samples for each name.

    Args:
        names: names of the series.
        clock: seconds since 1970.
    """

    def __init__(self, *names: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rings = {name: array("d", [_NOTHING] * _SAMPLES) for name in names}
        self._count = 0
        self._at = 0.0

    def add(self, sample: Mapping[str, float | None]) -> None:
        """Add one sample; an unknown number leaves a gap."""
        place = self._count % _SAMPLES
        for name, ring in self._rings.items():
            value = sample.get(name)
            ring[place] = _NOTHING if value is None else value
        self._count += 1
        self._at = self._clock()

    def before(self, name: str, *, samples: int) -> float | None:
        """Return the number that a series had ``samples`` before the last one; None: unknown."""
        if self._count <= samples:
            return None
        return _known(self._rings[name][(self._count - 1 - samples) % _SAMPLES])

    def data(self) -> HistoryData:
        kept = min(self._count, _SAMPLES)
        places = [(self._count - kept + number) % _SAMPLES for number in range(kept)]
        series = {name: [_known(ring[place]) for place in places] for name, ring in self._rings.items()}
        return HistoryData(at=self._at, step_seconds=STEP_SECONDS, series=series)


def _known(value: float) -> float | None:
    return None if value != value else round(value, 3)  # noqa: PLR0124  (only NaN differs from itself)

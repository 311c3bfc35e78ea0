"""The last hour in samples, as much memory at its end as at its beginning."""

from array import array
from collections.abc import Callable, Mapping

STEP_SECONDS = 15
_SAMPLES = 240
_NOTHING = float("nan")


class History:
    """A ring of samples of each of the named numbers.

    Args:
        names: of the numbers.
        clock: seconds since 1970, so that a reader can tell the time of each sample.
    """

    def __init__(self, *names: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rings = {name: array("d", [_NOTHING] * _SAMPLES) for name in names}
        self._count = 0
        self._at = 0.0

    def add(self, sample: Mapping[str, float | None]) -> None:
        """Keep one sample; what is not known leaves a gap."""
        place = self._count % _SAMPLES
        for name, ring in self._rings.items():
            value = sample.get(name)
            ring[place] = _NOTHING if value is None else value
        self._count += 1
        self._at = self._clock()

    def before(self, name: str, *, samples: int) -> float | None:
        """Return what a number was so many samples before the last; None: not known."""
        if self._count <= samples:
            return None
        return _known(self._rings[name][(self._count - 1 - samples) % _SAMPLES])

    def data(self) -> Mapping[str, object]:
        """Return all samples, the oldest first, as JSON data."""
        kept = min(self._count, _SAMPLES)
        places = [(self._count - kept + number) % _SAMPLES for number in range(kept)]
        series = {name: [_known(ring[place]) for place in places] for name, ring in self._rings.items()}
        return {"at": self._at, "step_seconds": STEP_SECONDS, "samples_max": _SAMPLES, "series": series}


def _known(value: float) -> float | None:
    return None if value != value else round(value, 3)  # noqa: PLR0124  (so is NaN told from numbers)

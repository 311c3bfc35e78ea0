"""How many events a claim may take, so that many small ones go at once and large ones find room in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from sea_mq_worker.domain.events import ClaimedEvent

_FIRST_MAX = 500
"""While nothing is known of the events' size."""


@dataclass(slots=True)
class BatchSize:
    """Grows and shrinks with the payloads that were claimed last.

    Attributes:
        events_max: events in a claim, however small.
        bytes_max: what the payloads of a claim should come to; a sudden run of larger ones exceeds it once.
    """

    events_max: int
    bytes_max: int
    _mean_bytes: float = 0.0

    @property
    def events(self) -> int:
        """Return how many to ask for; one at the least, however large."""
        if not self._mean_bytes:
            return min(self.events_max, _FIRST_MAX)
        return max(1, min(self.events_max, int(self.bytes_max / self._mean_bytes)))

    def learn(self, events: Sequence[ClaimedEvent]) -> None:
        """Follow larger payloads at once, and smaller ones half-way, since large ones may come again."""
        if events:
            mean = sum([len(event.payload) for event in events]) / len(events)
            self._mean_bytes = max(mean, (self._mean_bytes + mean) / 2, 1.0)

"""How much a claim may take, so that many small events go at once and large ones find room in memory."""

import asyncio
from dataclasses import dataclass, field

from sea_mq_worker.domain.events import Claim


@dataclass(slots=True)
class ClaimSize:
    """What to ask of the coming claim; the store keeps to both limits.

    Attributes:
        events_max: events in a claim, however small.
        bytes_max: bytes of all events of a claim; a single one may have more.
        events: how many events to ask for now. Those that the bytes leave over are looked at in vain, so
            where events are large it is twice what was taken.
        bytes: how many bytes to ask for now.
    """

    events_max: int
    bytes_max: int
    events: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.events, self.bytes = self.events_max, self.bytes_max

    def learn(self, claim: Claim) -> None:
        """Follow larger events at once, and smaller ones step by step."""
        asked = len(claim.events) if claim.cut else self.events
        self.events = min(self.events_max, max(1, 2 * asked))
        self.bytes = min(self.bytes_max, 2 * self.bytes)

    def halve(self) -> None:
        """Ask for less after a claim that could not be read in time."""
        self.events, self.bytes = max(1, self.events // 2), max(1, self.bytes // 2)


class MemoryBudget:
    """Bytes that all claims in hand share; first come, first served.

    Args:
        bytes_max: how many there are. One event that is larger is let in all the same; later claims wait.
    """

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, wanted: int) -> None:
        """Wait until that many bytes are free."""
        async with self._turn:
            while self._free < wanted:
                self._changed.clear()
                await self._changed.wait()
            self._free -= wanted

    def give_back(self, count: int) -> None:
        """Free bytes, or with a negative count take more without waiting."""
        self._free += count
        self._changed.set()

"""Size of claims: many small events at once, and large ones within a memory budget."""

import asyncio
from dataclasses import dataclass, field

from sea_mq_worker.domain.events import Claim


@dataclass(slots=True)
class ClaimSize:
    """Limits of the next claim; the store keeps to both.

    Attributes:
        events_max: most events of a claim.
        bytes_max: most bytes of all events of a claim; a single event may have more.
        events: number of events to request now. The store reads events above the byte limit for nothing, so
            where events are large this is twice the number of the last claim.
        bytes: number of bytes to request now.
    """

    events_max: int
    bytes_max: int
    events: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.events, self.bytes = self.events_max, self.bytes_max

    def update(self, claim: Claim) -> None:
        """Adapt to larger events at once, and to smaller ones step by step."""
        asked = len(claim.events) if claim.cut else self.events
        self.events = min(self.events_max, max(1, 2 * asked))
        self.bytes = min(self.bytes_max, 2 * self.bytes)

    def halve(self) -> None:
        """Request half as much after a claim that could not be read in time."""
        self.events, self.bytes = max(1, self.events // 2), max(1, self.bytes // 2)


class MemoryBudget:
    """Bytes that all claims in progress share; first come, first served.

    Args:
        bytes_max: size of the budget. One event that is larger is admitted anyway; later claims wait.
    """

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, wanted: int) -> None:
        """Take ``wanted`` bytes, once they are free."""
        async with self._turn:
            while self._free < wanted:
                self._changed.clear()
                await self._changed.wait()
            self._free -= wanted

    def give_back(self, count: int) -> None:
        """Free bytes, or with a negative count take more without waiting."""
        self._free += count
        self._changed.set()

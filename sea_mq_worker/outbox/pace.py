"""Pace of a lane: when it claims again.

A claim that left events over is followed by the next at once. Any other is followed by a wait::

    wake-up                the last claim found   the lane
    announces all commits  events or nothing      waits for a commit, and looks at growing intervals besides
    announces none         events                 waits for the linger time, in which events gather
    announces none         nothing                looks at growing intervals, until commits are announced

Two claims are at least the linger time apart, also while commits are announced.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sea_mq_worker.outbox.event import Claim
from sea_mq_worker.ports import Wakeup
from sea_mq_worker.runtime.waiting import sleep_or_stop

# --- Size of claims: many small events at once, and large ones within a memory budget.


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


_JITTER = 0.25


@dataclass(slots=True, kw_only=True)
class Pace:
    """Waits of one lane between its claims.

    Attributes:
        linger_seconds: how long an event may wait for others, so that one claim takes them together.
        poll_seconds: longest wait between two claims.
        random: uniform numbers in [0, 1); they separate workers that were woken together.
    """

    wakeup: Wakeup
    clock: Callable[[], float]
    linger_seconds: float
    poll_seconds: float
    random: Callable[[], float]
    _idle_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._idle_seconds = self.linger_seconds

    async def pause(self, stop: asyncio.Event, *, found: bool) -> None:
        """Wait until the next claim is worth its cost; ``found``: the last one found events."""
        rested_at = self.clock() + self.jittered(self.linger_seconds)
        if found and not self.wakeup.announces:
            self._idle_seconds = self.linger_seconds
        elif not stop.is_set():
            await self.wakeup.wait(timeout_seconds=self.jittered(self._idle_seconds))
            if not found:
                self._idle_seconds = min(2 * self._idle_seconds, self.poll_seconds)
        if (left := rested_at - self.clock()) > 0:
            await sleep_or_stop(stop, seconds=left)

    def expect_retries(self) -> None:
        """Look soon and at growing intervals: no commit announces an event that was given back."""
        self._idle_seconds = self.linger_seconds
        self.wakeup.wake()

    def look_again(self) -> None:
        """Look once: settled events may have been in the way of later ones of their keys."""
        self.wakeup.wake()

    async def end_with(self, stop: asyncio.Event) -> None:
        """End the present wait when the worker stops."""
        await stop.wait()
        self.wakeup.wake()

    def jittered(self, seconds: float) -> float:
        """Return up to a quarter less than ``seconds``."""
        return seconds * (1.0 - _JITTER * self.random())

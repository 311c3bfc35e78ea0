"""Where a claim goes on reading its index."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from sea_mq_worker.domain.outcomes import Reaped

_GRACE = timedelta(seconds=5)
_CHEAP_SECONDS = 0.005
"""Below this a sweep that found nothing may be repeated by each claim."""
_SWEEP_SECONDS = 1.0
_SWEEP_SHARE = 20.0
_SWEEP_MAX_SECONDS = 30.0

Position: TypeAlias = tuple[datetime, int]

START: Position = (datetime(1, 1, 1, tzinfo=UTC), 0)
END: Position = (datetime(9999, 12, 31, tzinfo=UTC), 0)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a claim has read of an index.

    Attributes:
        position: the last row that need not be read again.
        now: the claim's time, by the database's clock.
        full: there may be more behind ``position``.
        fruitful: it found something to claim.
    """

    position: Position
    now: datetime
    full: bool
    fruitful: bool


class Look(NamedTuple):
    """What a reaper has done on its way along both indexes; an end of None: there is nothing behind."""

    reaped: Reaped
    at: datetime
    ends: tuple[Position | None, Position | None]


class ClaimCursor:
    """A place in an index over (available_at, seq) that spares a claim what it has passed before.

    Entries of published events stay in the index while any transaction is older than they are, and events
    behind a failing head of their key cannot be claimed; a claim that read from the front would walk over
    all of them each time. Whatever comes to lie behind the cursor is found by a sweep from the front: once
    a second or, where the walk to the first thing to claim costs more, for a twentieth of the time, but at
    least twice a minute.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._position = START
        self._sweeping = False
        self._swept_at = 0.0
        self._sweep_seconds = 0.0
        self._sweep_at = float("-inf")

    def next(self) -> Position:
        """Return where the coming claim begins to read."""
        if not self._sweeping and self._clock() >= self._sweep_at:
            self._sweeping = True
            self._swept_at = self._clock()
            self._sweep_seconds = 0.0
            self._position = START
        return self._position

    def advance(self, read: Scan, *, seconds: float) -> None:
        """Go on behind what a claim has read in so many ``seconds``."""
        self._position = max(self._position, read.position)
        if self._sweeping:
            self._sweep_seconds += seconds
        if not read.full:
            # A row can be seen from its commit on, but is sorted by the start of its transaction.
            seen = read.now - _GRACE, 0
            is_dear = self._sweeping and self._sweep_seconds > _CHEAP_SECONDS
            self._position = seen if is_dear else min(self._position, seen)
        if self._sweeping:
            pause = max(_SWEEP_SECONDS, _SWEEP_SHARE * self._sweep_seconds)
            self._sweep_at = self._swept_at + min(pause, _SWEEP_MAX_SECONDS)
            self._sweeping = read.full and not read.fruitful

    def rewind(self) -> None:
        """Let the coming claim read from the front."""
        self._sweeping = False
        self._sweep_at = float("-inf")

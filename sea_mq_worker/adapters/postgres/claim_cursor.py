"""ClaimCursor: where a claim continues to read its index."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from sea_mq_worker.domain.outcomes import Reaped

_GRACE = timedelta(seconds=5)
_CHEAP_SECONDS = 0.005
"""A sweep that costs less, and finds nothing, may be repeated by each claim."""
_SWEEP_SECONDS = 1.0
_SWEEP_SHARE = 20.0
_SWEEP_MAX_SECONDS = 30.0

Position: TypeAlias = tuple[datetime, int]

START: Position = (datetime.min.replace(tzinfo=UTC), -(2**63))
END: Position = (datetime.max.replace(tzinfo=UTC), 2**63 - 1)
"""Before and behind every row: a connection sends these times as infinite ones."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The part of an index that a claim has read.

    Attributes:
        position: the last row that need not be read again.
        now: the claim's time, by the database's clock.
        truncated: there may be more rows behind ``position``.
        found_any: the claim took an event.
    """

    position: Position
    now: datetime
    truncated: bool
    found_any: bool


class Look(NamedTuple):
    """The result of a reaper's look at both indexes; an end of None: it reached the end of the index."""

    reaped: Reaped
    at: datetime
    ends: tuple[Position | None, Position | None]


class ClaimCursor:
    """A position in an index over (available_at, seq), from which the next claim reads on.

    Entries of published events stay in the index while any transaction is older than they are, and events
    behind a failing head of their key cannot be claimed. A claim that read from the front would read all of
    them each time. An event that becomes claimable behind the cursor is found by a sweep from the front: once
    a second, or less often if the sweep is slow (a twentieth of the time), but at least twice a minute.

    With a batch of 2, and positions written as their seq::

        index     next()  claim reads  advance(...)                     next position
        1 2 3 4   START   1 2          truncated, found: a sweep ends   2
        1 2 3 4   2       3 4          truncated, found                 4
        3 4 5     4       5            not truncated                    5 s before now, or 5 if earlier
        1 5       (1 s later)
        1 5       START   1 5          a sweep: 1 was due again         5

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
        """Return the position behind which the next claim reads."""
        if not self._sweeping and self._clock() >= self._sweep_at:
            self._sweeping = True
            self._swept_at = self._clock()
            self._sweep_seconds = 0.0
            self._position = START
        return self._position

    def advance(self, read: Scan, *, seconds: float) -> None:
        """Move behind the part that a claim has read, which took ``seconds``."""
        self._position = max(self._position, read.position)
        if self._sweeping:
            self._sweep_seconds += seconds
        if not read.truncated:
            # A row can be seen from its commit on, but is sorted by the start of its transaction.
            seen = read.now - _GRACE, 0
            is_dear = self._sweeping and self._sweep_seconds > _CHEAP_SECONDS
            self._position = seen if is_dear else min(self._position, seen)
        if self._sweeping:
            pause = max(_SWEEP_SECONDS, _SWEEP_SHARE * self._sweep_seconds)
            self._sweep_at = self._swept_at + min(pause, _SWEEP_MAX_SECONDS)
            self._sweeping = read.truncated and not read.found_any

    def rewind(self) -> None:
        """Let the next claim read from the front."""
        self._sweeping = False
        self._sweep_at = float("-inf")

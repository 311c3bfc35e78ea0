"""In-memory fake of the turn of a lane: the first worker that asks serves it until it leaves."""

from dataclasses import dataclass


@dataclass(slots=True)
class InMemoryLane:
    """A lane that several workers share."""

    holder: object = None


class InMemoryLaneTurn:
    """One worker's turn in an ``InMemoryLane``; see ``ports.lane_turn.LaneTurn``."""

    def __init__(self, lane: InMemoryLane) -> None:
        self._lane = lane

    async def take(self) -> bool:
        """Take the lane if it is free."""
        if self._lane.holder is None:
            self._lane.holder = self
        return self._lane.holder is self

    async def leave(self) -> None:
        """Free the lane, if this worker has it."""
        if self._lane.holder is self:
            self._lane.holder = None

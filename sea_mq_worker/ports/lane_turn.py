"""Port for the turn of a worker to claim the events of a lane."""

from typing import Protocol


class LaneTurn(Protocol):
    """Lets one of several workers serve a lane, for as long as it makes progress.

    Claims of two workers at once are correct, and cost more. So a turn is advice: a worker that cannot learn
    whose turn it is may claim.
    """

    async def take(self) -> bool:
        """Return whether this worker shall claim now; False: another worker serves the lane."""
        ...

    async def leave(self) -> None:
        """Let another worker serve the lane at once."""
        ...

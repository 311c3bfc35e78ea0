"""Port: wake up for new events sooner than by polling."""

from typing import Protocol


class Wakeup(Protocol):
    """A shortcut for polling, which is the guarantee: a wait may end for no reason, or miss an event."""

    @property
    def announces(self) -> bool:
        """Whether every commit from now on ends a wait, so that a claim between two waits misses none."""
        ...

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out.

        Never raises for a connection that is down; waits for the time-out instead.
        """
        ...

    def wake(self) -> None:
        """End the present wait."""
        ...

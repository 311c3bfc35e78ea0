"""Port: wake up for new events sooner than by polling."""

from typing import Protocol


class Wakeup(Protocol):
    """A shortcut for polling, which is the guarantee: a wait may end for no reason, or miss an event."""

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out.

        Never raises for a connection that is down; waits for the time-out instead.
        """
        ...

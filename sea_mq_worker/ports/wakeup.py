"""Port: learn of new events sooner than by asking again and again."""

from typing import Protocol


class Wakeup(Protocol):
    """Polling is the guarantee, this the shortcut: a wait may end for no reason, or miss an event."""

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out.

        Never raises for a connection that is down; it then waits the time-out.
        """
        ...

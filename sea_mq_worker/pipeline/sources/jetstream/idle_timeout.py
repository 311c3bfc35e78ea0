"""Limit the time that the source waits for unavailable servers."""

import asyncio
import time

from sea_mq_worker.domain.errors import UnavailableError

_IDLE_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


class IdleTimeout:
    """A minute without progress, after which the last error is raised."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Restart the minute after progress."""
        self._deadline = time.monotonic() + _IDLE_TIMEOUT_SECONDS

    async def pause(self, error: UnavailableError) -> None:
        """Wait half a second before the next attempt.

        Raises:
            UnavailableError: the minute is over.
        """
        if time.monotonic() > self._deadline:
            raise error
        await asyncio.sleep(_PAUSE_SECONDS)

"""How long the source waits for servers that are away."""

import asyncio
import time

from sea_mq_worker.domain.errors import UnavailableError

_IDLE_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


class IdleTimeout:
    """A minute without any progress, after which the trouble is passed on."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin the minute anew: there was progress."""
        self._deadline = time.monotonic() + _IDLE_TIMEOUT_SECONDS

    async def pause(self, trouble: UnavailableError) -> None:
        """Wait a little before the next attempt.

        Raises:
            UnavailableError: the minute is over.
        """
        if time.monotonic() > self._deadline:
            raise trouble
        await asyncio.sleep(_PAUSE_SECONDS)

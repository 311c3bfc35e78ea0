"""Wakeup by polling alone, where notifications cannot work and in tests."""

import asyncio


class PollingWakeup:
    """Waits for the whole time-out, or until ``wake`` is called."""

    announces = False

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current waits."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return after the time-out or when woken."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._woken.wait()
        except TimeoutError:
            return

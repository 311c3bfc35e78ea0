"""Slots for handler calls: there may be more in-flight messages than calls, so messages wait here."""

import asyncio
from collections import deque

from sea_mq_worker.application.waiting import StoppedError


class CallSlots:
    """At most ``count`` calls at a time, in the order of arrival; entered by ``async with``.

    When the worker stops, waiting messages get ``StoppedError`` instead of a slot. With a semaphore each wait
    would need a task of its own to end then.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stopped = False

    async def __aenter__(self) -> None:
        if self._stopped:
            raise StoppedError
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    async def end_waits_on_stop(self, stop: asyncio.Event) -> None:
        """End all waits when the worker stops."""
        await stop.wait()
        self._stopped = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(StoppedError())

    def _pass_on(self) -> None:
        """Give a slot to the message that has waited longest, or keep it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

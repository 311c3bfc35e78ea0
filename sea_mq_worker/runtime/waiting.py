"""Waits of the loops; each ends early when the worker stops."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable
from typing import Any, TypeVar

IMMEDIATE_REDELIVERY_SECONDS = 0.1
"""Delay of a message that a stopping worker gives back, so that another worker gets it at once."""

_T = TypeVar("_T")


class StoppedError(Exception):
    """The worker was stopped during a wait."""


async def sleep_or_stop(stop: asyncio.Event, *, seconds: float) -> None:
    """Wait, or return at once when the worker stops."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def cancel_on_stop(stop: asyncio.Event, wait: Awaitable[_T]) -> _T:
    """Await ``wait``, and cancel it when the worker stops.

    Raises:
        StoppedError: the wait was cancelled.
    """
    waiting = asyncio.ensure_future(wait)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        pending = [task for task in (waiting, stopping) if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    if stop.is_set() and waiting.cancelled():
        raise StoppedError
    return waiting.result()


class PollingWakeup:
    """Wakeup by polling alone, where notifications cannot work and in tests."""

    announces = False

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current waits."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return after the time-out or when woken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._woken.wait()


_CANCEL_SECONDS = 0.1


async def abort_after_grace(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it ends, once for each resource whose close it still waits for."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
    await asyncio.gather(task, return_exceptions=True)


# --- Signals: the first starts a graceful stop, the second ends the process at once.

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set ``stop`` at SIGTERM, SIGINT or SIGHUP; at the second one exit with 128 + its number.

    SIGHUP stays ignored under nohup.
    """

    def receive(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, receive, number)

"""The only ways in which a loop waits; every one of them ends early when the worker is asked to stop."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

IMMEDIATE_REDELIVERY_SECONDS = 0.1
"""Delay of a message that is given back because this worker stops: another may take it now."""

_T = TypeVar("_T")


class StoppedError(Exception):
    """The worker was asked to stop while something was waited for."""


async def sleep_or_stop(stop: asyncio.Event, *, seconds: float) -> None:
    """Wait, or return at once when asked to stop."""
    with contextlib.suppress(StoppedError):
        await cancel_on_stop(stop, asyncio.sleep(seconds))


async def cancel_on_stop(stop: asyncio.Event, wait: Awaitable[_T]) -> _T:
    """Await ``wait``; what is not over when the worker is asked to stop is cancelled.

    Raises:
        StoppedError: it was not over.
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
    if waiting.cancelled():
        raise StoppedError
    return waiting.result()

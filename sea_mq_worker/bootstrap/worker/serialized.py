"""One question of the page at a time, and each within a bound, so that none of them can pile up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sea_mq_worker.admin.operator_api import OperatorBusyError, OperatorTimeoutError
from sea_mq_worker.bootstrap.worker.shutdown import abort_after_grace

_TURN_SECONDS = 4.0
"""How long one waits for the question before it to be answered."""

_T = TypeVar("_T")


class SerializedCalls:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, work: Coroutine[Any, Any, _T], *, seconds: float) -> _T:
        """Do ``work`` when nobody else is asked, and give it up after so many seconds.

        Raises:
            DeskBusyError: somebody else's took too long.
            DeskTimeoutError: this one did.
        """
        try:
            await asyncio.wait_for(self._lock.acquire(), _TURN_SECONDS)
        except TimeoutError:
            work.close()
            raise OperatorBusyError from None
        try:
            return await _bounded(work, seconds)
        finally:
            self._lock.release()


async def _bounded(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Cut the work off together with its goodbyes, which a server that hangs would never answer."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            text = f"no answer within {seconds:g} s: see what the page says of the servers"
            raise OperatorTimeoutError(text)
    finally:
        await abort_after_grace(task)
    return task.result()

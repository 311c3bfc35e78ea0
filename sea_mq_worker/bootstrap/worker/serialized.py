"""Run the page's requests one at a time, each with a time limit, so that they cannot pile up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sea_mq_worker.admin.operator_api import OperatorBusyError, OperatorTimeoutError
from sea_mq_worker.bootstrap.worker.shutdown import abort_after_grace

_WAIT_SECONDS = 4.0
"""Time limit to wait for the previous request, in seconds."""

_T = TypeVar("_T")


class SerializedCalls:
    """A queue for one request at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Coroutine[Any, Any, _T], *, seconds: float) -> _T:
        """Run ``work`` after the previous request, and cancel it after ``seconds``.

        Raises:
            OperatorBusyError: the previous request took too long.
            OperatorTimeoutError: ``work`` took too long.
        """
        try:
            await asyncio.wait_for(self._lock.acquire(), _WAIT_SECONDS)
        except TimeoutError:
            work.close()
            raise OperatorBusyError from None
        try:
            return await _bounded(work, seconds)
        finally:
            self._lock.release()


async def _bounded(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Limit the work's time, including its cleanup, which a hanging server would block."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            text = f"no response within {seconds:g} s: see the health summary for the servers' state"
            raise OperatorTimeoutError(text)
    finally:
        await abort_after_grace(task)
    return task.result()

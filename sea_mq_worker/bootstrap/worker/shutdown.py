"""Closing of all resources, with a time limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

_CLOSE_SECONDS = 0.7
_CANCEL_SECONDS = 0.1


@asynccontextmanager
async def bounded_stack() -> AsyncIterator[AsyncExitStack]:
    """Close the resources on the stack at the end of a block, in reverse order and within about a second.

    Resources that are still open then are dropped. That loses nothing, because all writes are done by then.
    """
    stack = AsyncExitStack()
    try:
        yield stack
    finally:
        closing = asyncio.create_task(stack.aclose())
        await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)
        await abort_after_grace(closing)


async def abort_after_grace(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it ends, once for each resource whose close it still waits for."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
    await asyncio.gather(task, return_exceptions=True)

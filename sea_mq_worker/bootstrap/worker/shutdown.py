"""The end of what was opened: a goodbye to whatever answers, and a bound for what does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

_GOODBYE_SECONDS = 0.7
_NEXT_SECONDS = 0.1


@asynccontextmanager
async def bounded_stack() -> AsyncIterator[AsyncExitStack]:
    """Close what is on the stack at the end of a block, in reverse order and in about a second.

    What is still open then is dropped. Nothing is lost with it: what had to be written is written by then.
    """
    stack = AsyncExitStack()
    try:
        yield stack
    finally:
        closing = asyncio.create_task(stack.aclose())
        await asyncio.wait({closing}, timeout=_GOODBYE_SECONDS)
        await abort_after_grace(closing)


async def abort_after_grace(task: asyncio.Task[Any]) -> None:
    """End a task, and one after the other the goodbyes that it still waits for."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_NEXT_SECONDS)
    await asyncio.gather(task, return_exceptions=True)

"""Waiting for conditions with a deadline, instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

POLL_SECONDS = 0.02


@overload
async def eventually(
    probe: Callable[[], Awaitable[T]],
    *,
    until: Callable[[T], object] = ...,
    within: float = ...,
    what: str = ...,
) -> T: ...
@overload
async def eventually(
    probe: Callable[[], T], *, until: Callable[[T], object] = ..., within: float = ..., what: str = ...
) -> T: ...
async def eventually(
    probe: Callable[[], Any], *, until: Callable[[Any], object] = bool, within: float = 30.0, what: str = ""
) -> Any:
    """Return the probe's first answer that will do; after the deadline fail with its last answer.

    ``until`` tells whether an answer will do: one that is truthy, if nothing else is said. What the probe
    raises is passed on at once.
    """
    deadline = time.monotonic() + within
    while True:
        answer = probe()
        if inspect.isawaitable(answer):
            answer = await answer
        if until(answer):
            return answer
        if time.monotonic() >= deadline:
            expected = what or getattr(probe, "__name__", repr(probe))
            raise AssertionError(f"not within {within:g} s: {expected} (last answer: {answer!r})")
        await asyncio.sleep(POLL_SECONDS)

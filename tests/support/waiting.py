"""Waiting for conditions with a deadline, instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar, overload

import httpx2

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


async def answered(url: str, *, by: asyncio.subprocess.Process | None = None, within: float = 30.0) -> None:
    """Wait until a server answers, with whatever but an error of its own; its process must not end before."""

    async def is_there() -> bool:
        assert by is None or by.returncode is None, f"{by} has ended"
        try:
            return (await http.get(url)).status_code < HTTPStatus.INTERNAL_SERVER_ERROR
        except httpx2.TransportError:
            return False

    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
        await eventually(is_there, within=within, what=f"{url} answers")

"""The worker's time: its clock, the waits that its stop ends, and its end within a bounded time."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")

IMMEDIATE_REDELIVERY_SECONDS = 0.1
"""Delay of a message that a stopping worker gives back, so that another worker gets it at once."""
_CLOSE_SECONDS = 0.7
_CANCEL_SECONDS = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


monotonic_seconds = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns monotonic seconds that go on in a suspended machine, as the leases in the database do.

Linux stops CLOCK_MONOTONIC while the machine is suspended; macOS does not, and has no other.
"""


class StoppedError(Exception):
    """The worker was stopped during a wait."""


async def sleep_or_stop(stop: asyncio.Event, *, seconds: float) -> None:
    """Wait, or return at once when the worker stops."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def cancel_on_stop(stop: asyncio.Event, wait: Awaitable[_T]) -> _T:
    """Await ``wait``; when the worker stops, cancel it and raise StoppedError."""
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


# --- The process: its stop by signals, its service manager, the close of what it opened.


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


def report_ready(address: str) -> None:
    """Tell a service manager such as systemd, by sd_notify's protocol, that the worker has started.

    It holds up the start of what depends on the worker until then: an OSError is for its operator. The first
    character of a socket in the abstract namespace is written ``@`` and is a NUL byte.
    """
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.sendto(b"READY=1", address)


@contextlib.asynccontextmanager
async def bounded_stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    """Close the resources on the stack at the end of a block, in reverse order and within about a second.

    Resources that are still open then are dropped. That loses nothing, because all writes are done by then.
    """
    stack = contextlib.AsyncExitStack()
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

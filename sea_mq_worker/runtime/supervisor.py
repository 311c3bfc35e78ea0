"""Runs the loops: an error in one stops the worker, and the grace period bounds a stop."""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.ports import Events
from sea_mq_worker.runtime.breaker import CircuitBreaker
from sea_mq_worker.runtime.waiting import sleep_or_stop


class ExitCode(IntEnum):
    """Exit code of the process."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CONTRACT = 3
    GAVE_UP = 4
    GRACE_EXCEEDED = 5


_CANCEL_SECONDS = 0.2
"""Time for cancelled loops to release their resources."""

Loop = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Works until its event is set, then finishes its work in progress."""


async def supervise(
    loops: Mapping[str, Loop],
    stop: asyncio.Event,
    *,
    name: str,
    version: str,
    events: Events,
    grace_seconds: float,
) -> ExitCode:
    """Run the loops together until the worker is stopped or one of them dies; then stop them together."""
    tasks = {asyncio.create_task(loop(stop), name=of) for of, loop in loops.items()}
    events.emit("worker_started", name=name, version=version)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await stopping
    finished, unfinished = await asyncio.wait(tasks, timeout=grace_seconds)
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished, timeout=_CANCEL_SECONDS)
    causes: list[BaseException] = []
    for task in finished:
        # a cancellation that nobody here requested is an error, too
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        for cause in _causes(error):
            events.emit("loop_died", text=f"{task.get_name()} died: {_describe(cause)}")
            causes.append(cause)
    events.emit("worker_stopped", name=name, unfinished=tuple(sorted(task.get_name() for task in unfinished)))
    if causes:
        only_contract = all(isinstance(cause, ContractError) for cause in causes)
        return ExitCode.CONTRACT if only_contract else ExitCode.GAVE_UP
    return ExitCode.GRACE_EXCEEDED if unfinished else ExitCode.DONE


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    elif error is not None:
        yield error


def _describe(cause: BaseException) -> str:
    """Return the error with its place; only texts of this package's errors are free of data."""
    if isinstance(cause, WorkerError):
        return str(cause)
    frames = traceback.extract_tb(cause.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(cause).__name__}{where}"


_POLL_SECONDS = 1.0


@dataclass(slots=True)
class Readiness:
    """Collects reasons from all circuits and checks; the worker is ready when there is none."""

    warn: Callable[[], Mapping[str, str]] = dict
    """Source of the warnings: troubles, by name, in spite of which the worker is ready."""
    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    _broken: dict[str, Callable[[], float]] = field(default_factory=dict)

    def watch(self, breaker: CircuitBreaker) -> None:
        """Count an open circuit as a reason."""
        self.check(breaker.name, lambda: breaker.reason, broken_seconds=lambda: breaker.broken_seconds)

    def check(
        self, name: str, reason: Callable[[], str], *, broken_seconds: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Add a check; ``reason`` returns an empty text while the part is ready.

        ``broken_seconds`` returns for how long an operator has had to fix the part; 0: it may recover alone.
        """
        self._checks[name] = reason
        self._broken[name] = broken_seconds

    def reasons(self) -> Mapping[str, str]:
        """Return the reasons against readiness, by name of the part."""
        return {name: text for name, reason in self._checks.items() if (text := reason())}

    def warnings(self) -> Mapping[str, str]:
        return self.warn()

    async def give_up_after(self, seconds: float, stop: asyncio.Event) -> None:
        """Raise ContractError when an operator has not fixed a part for longer than ``seconds``."""
        while not stop.is_set():
            for name, measure in self._broken.items():
                if measure() > seconds:
                    reason = self._checks[name]()
                    raise ContractError(f"{name}: {reason}; it was not fixed within {seconds:g} s")
            await sleep_or_stop(stop, seconds=_POLL_SECONDS)

"""Runs the loops: an error in one stops the worker, and the grace period bounds a stop."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

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

Loop = Callable[[asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """Starts all loops together and stops them together.

    Attributes:
        loops: by name; each works until its event is set, then finishes its work in progress.
        grace_seconds: time to finish before unfinished loops are cancelled.
    """

    name: str
    version: str
    loops: Mapping[str, Loop]
    events: Events
    grace_seconds: float

    async def run(self, stop: asyncio.Event) -> ExitCode:
        """Run until the worker is stopped or a loop dies."""
        tasks = {asyncio.create_task(_run(loop, stop), name=name) for name, loop in self.loops.items()}
        self.events.emit("worker_started", name=self.name, version=self.version)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await stopping
        _, unfinished = await asyncio.wait(tasks, timeout=self.grace_seconds)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=_CANCEL_SECONDS)
        names = tuple(sorted(task.get_name() for task in unfinished))
        code = self._exit_code(tasks - unfinished, names)
        self.events.emit("worker_stopped", name=self.name, unfinished=names)
        return code

    def _exit_code(self, finished: set[asyncio.Task[None]], unfinished: tuple[str, ...]) -> ExitCode:
        causes = [
            (task.get_name(), cause)
            for task in finished
            if (error := _error(task)) is not None
            for cause in _causes(error)
        ]
        for name, cause in causes:
            self.events.emit("loop_died", text=f"{name} died: {_describe(cause)}")
        if causes:
            only_contract = all(isinstance(cause, ContractError) for _, cause in causes)
            return ExitCode.CONTRACT if only_contract else ExitCode.GAVE_UP
        return ExitCode.GRACE_EXCEEDED if unfinished else ExitCode.DONE


async def _run(loop: Loop, stop: asyncio.Event) -> None:
    await loop(stop)


def _error(task: asyncio.Task[None]) -> BaseException | None:
    """Return what ended a loop; a cancellation that nobody here requested is an error, too."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _describe(cause: BaseException) -> str:
    """Return the error with its place; only texts of this package's errors are free of data."""
    if isinstance(cause, WorkerError):
        return str(cause)
    frames = traceback.extract_tb(cause.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(cause).__name__}{where}"


def _causes(error: BaseException) -> list[BaseException]:
    """Flatten exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in _causes(inner)]
    return [error]


# --- Readiness of the worker, and the reasons against it.

_POLL_SECONDS = 1.0


@dataclass(slots=True)
class Readiness:
    """Collects reasons from all circuits and checks; the worker is ready when there is none."""

    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    _broken: dict[str, Callable[[], float]] = field(default_factory=dict)
    _warnings: Callable[[], Mapping[str, str]] = dict

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

    def warn(self, warnings: Callable[[], Mapping[str, str]]) -> None:
        """Set the source of warnings: troubles, by name, in spite of which the worker is ready."""
        self._warnings = warnings

    def warnings(self) -> Mapping[str, str]:
        return self._warnings()

    async def give_up_after(self, seconds: float, stop: asyncio.Event) -> None:
        """Check until the worker stops.

        Raises:
            ContractError: a part that an operator must fix has been broken for longer than ``seconds``.
        """
        while not stop.is_set():
            for name, measure in self._broken.items():
                if measure() > seconds:
                    reason = self._checks[name]()
                    raise ContractError(f"{name}: {reason}; it was not fixed within {seconds:g} s")
            await sleep_or_stop(stop, seconds=_POLL_SECONDS)

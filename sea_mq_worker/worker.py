"""Run the worker inside a service's own process, such as in the lifespan of a FastAPI application.

The worker leaves logging, signals and tracing to the service: its records go to the logger ``sea_mq_worker``
and to the handlers of the root logger, its spans to the service's tracer provider. It listens on no port.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sea_mq_worker.application.supervisor import ExitCode
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.bootstrap.worker.run import run_worker
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.settings import Settings, check_settings, load_settings

__all__ = ["RunningWorker", "Settings", "WorkerEndedError", "load_settings", "running_worker"]


class WorkerEndedError(WorkerError):
    """The worker ended by itself, or did not stop in time; its log has the cause."""


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A worker of this process; ``running_worker`` creates it."""

    _context: WorkerContext
    _task: asyncio.Task[ExitCode]

    def problems(self) -> Mapping[str, str]:
        """Return the reasons why the worker cannot work now, by name of the part; empty: it works."""
        if self._task.done():
            return {"worker": "it has ended; its log has the cause"}
        return self._context.readiness.reasons()

    def metrics(self) -> str:
        """Return the worker's metrics in the text format of Prometheus."""
        return self._context.metrics.render().decode()

    async def started(self) -> None:
        """Wait until the worker has started, which needs PostgreSQL and NATS.

        Raises:
            SettingsError: a setting contradicts what a server reports.
            WorkerEndedError: the worker ended before.
        """
        waiting = asyncio.ensure_future(self._context.started.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._context.started.is_set():
            self._task.result()
            raise WorkerEndedError("the worker ended before it had started; its log has the cause")


@asynccontextmanager
async def running_worker(settings: Settings | None = None) -> AsyncIterator[RunningWorker]:
    """Run the worker beside the block, and stop it gracefully at the block's end.

    The block begins at once: an unavailable server does not hold the service up.

    Args:
        settings: None: from ``SEA_MQ_*`` and ``SEA_MQ_CONFIG``, as for the command ``run``.

    Raises:
        SettingsError: a setting is wrong or missing, or contradicts what a server reports.
        WorkerEndedError: at the block's end, the worker had ended by itself or exceeds its grace period.
    """
    needs = ("database_url", "nats_url")
    settings = settings or load_settings(needs=needs)
    check_settings(settings, needs=needs)
    stop = asyncio.Event()
    context: asyncio.Future[WorkerContext] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_worker(settings, stop, host=context.set_result), name="sea_mq_worker")
    task.add_done_callback(_note_error)
    waits: set[asyncio.Future[Any]] = {task, context}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not context.done():
            raise WorkerEndedError(f"the worker ended with exit code {task.result()}")
        yield RunningWorker(context.result(), task)
    finally:
        stop.set()
        await asyncio.wait({task})
    if code := task.result():
        raise WorkerEndedError(f"the worker ended with exit code {code}; its log has the cause")


def _note_error(task: asyncio.Task[ExitCode]) -> None:
    """Retrieve the worker's error, which nobody awaits if the block ends by an error of its own."""
    if not task.cancelled():
        task.exception()

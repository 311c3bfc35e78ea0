"""Calls of functions in a real worker process, counted over the span that a test is about."""

import dataclasses
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.counters.meters import Meters
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess, running

_PLANTS = Path(__file__).parent / "plants"


@dataclasses.dataclass(frozen=True, slots=True)
class CallCounter:
    """Counts while it is on; nothing of the worker knows of it."""

    worker: WorkerProcess
    reported: Path

    async def begin(self) -> None:
        """Count from now on."""
        self.worker.send(signal.SIGUSR1)
        await eventually(self.reported.with_suffix(".begun").exists, what="calls are counted")

    async def end(self) -> int:
        """Stop, and return how many there were, of Python's and of C's functions."""
        self.worker.send(signal.SIGUSR1)
        await eventually(self.reported.exists, what="calls are told")
        return int(self.reported.read_text())


@asynccontextmanager
async def counted(metered: Meters, folder: Path, **settings: object) -> AsyncIterator[CallCounter]:
    """Run a worker, ready, whose calls can be counted."""
    reported = folder / "calls"
    environment = {**metered.target.environment, "PYTHONPATH": str(_PLANTS), "COUNTED_CALLS": str(reported)}
    target = dataclasses.replace(metered.target, environment=environment)
    async with running(target, folder / "worker.log", **settings) as worker:
        await worker.ready()
        yield CallCounter(worker, reported)

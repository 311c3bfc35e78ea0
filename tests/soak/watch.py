"""Sample the resources of processes and sessions during the faults."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import psutil

from tests.soak.deployment import Stage

_EVERY_SECONDS = 0.5
_SCRAPE_SECONDS = 2.0
_SESSIONS = (
    "SELECT usename, extract(epoch FROM clock_timestamp() - state_change)::float8 AS seconds"
    " FROM pg_stat_activity WHERE usename LIKE 'w_' AND state LIKE 'idle in transaction%'"
)
_GONE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time; ``rss`` in bytes."""

    at: float
    worker: str
    life: int
    rss: int
    fds: int
    threads: int


@dataclass
class Watch:
    """Samples until stopped."""

    stage: Stage
    samples: list[Sample] = field(default_factory=list)
    idle_in_transaction: list[dict[str, Any]] = field(default_factory=list)
    session_samples: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sample until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sessions(stop))
            for worker in self.stage.workers.values():
                group.create_task(self._every(stop, _SCRAPE_SECONDS, worker.scrape))
            await self._every(stop, _EVERY_SECONDS, self._processes)

    async def _every(self, stop: asyncio.Event, seconds: float, work: Any) -> None:
        while not stop.is_set():
            await work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()

    async def _processes(self) -> None:
        for worker in self.stage.workers.values():
            if worker.process.alive:
                life = worker.process.lives[-1]
                with contextlib.suppress(psutil.Error):
                    self.samples.append(_sample(life.name, life.number, life.pid))

    async def _sessions(self, stop: asyncio.Event) -> None:
        connection: asyncpg.Connection | None = None

        async def sample() -> None:
            nonlocal connection
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self.stage.postgres.dsn, timeout=3, command_timeout=3)
                rows = await connection.fetch(_SESSIONS)
            except _GONE:
                if connection is not None:
                    connection.terminate()
                return
            self.session_samples += 1
            self.idle_in_transaction += [dict(row) | {"at": time.time()} for row in rows]

        await self._every(stop, _EVERY_SECONDS, sample)
        if connection is not None:
            connection.terminate()


def _sample(worker: str, life: int, pid: int) -> Sample:
    process = psutil.Process(pid)
    rss, fds = process.memory_info().rss, process.num_fds()
    return Sample(time.time(), worker, life, rss, fds, process.num_threads())

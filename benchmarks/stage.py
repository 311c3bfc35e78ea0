"""The servers that the measured programs run on, and what they cost in CPU time. Linux only."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import nats
from nats.js import JetStreamContext

from sea_mq_worker.bootstrap.operator import apply_topology, migrate_schema
from sea_mq_worker.cli.demo.children import SampleHandler, WorkerProcess
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings

_STREAM_BYTES = 2**30
_LOOK_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class Stage:
    """Both servers with their own defaults, synchronous commits included, and the sample handler."""

    folder: Path
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    handler: SampleHandler
    runs: int = field(default=0, init=False)

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Run"]:
        """Make an empty database and empty streams, so that no run pays for the one before."""
        self.runs += 1
        database = f"run_{self.runs}"
        server = await asyncpg.connect(self.postgres.dsn)
        await server.execute(f"CREATE DATABASE {database}")
        settings = {
            "SEA_MQ_DATABASE_URL": self.postgres.dsn_for(database),
            "SEA_MQ_NATS_URL": self.nats.url,
            "SEA_MQ_HANDLER_URL": f"{self.handler.url}/handle",
            "SEA_MQ_STREAM_REPLICAS": "1",
            "SEA_MQ_STREAM_MAX_BYTES": str(_STREAM_BYTES),
        }
        own = Settings.model_validate(
            {name.removeprefix("SEA_MQ_").lower(): value for name, value in settings.items()}
        )
        broker = await nats.connect(self.nats.url)
        stream = broker.jetstream()
        connection = None
        try:
            for existing in await stream.streams_info():
                await stream.delete_stream(existing.config.name or "")
            await apply_topology(own)
            await migrate_schema(own)
            connection = await asyncpg.connect(self.postgres.dsn_for(database))
            yield Run(
                stage=self,
                name=database,
                database=connection,
                server=server,
                stream=stream,
                own=own,
                settings=settings,
            )
        finally:
            if connection is not None:
                await connection.close()
            await broker.close()
            await server.execute(f"DROP DATABASE {database} WITH (FORCE)")
            await server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An empty database and empty streams.

    Attributes:
        database: a connection to the database of this run; ``server`` is one to another database.
    """

    stage: Stage
    name: str
    database: asyncpg.Connection
    server: asyncpg.Connection
    stream: JetStreamContext
    own: Settings
    settings: Mapping[str, str]

    async def empty_stream(self, name: str) -> None:
        """Delete the stream and make it anew: purging alone would keep the message ids."""
        await self.stream.delete_stream(name)
        await apply_topology(self.own)

    async def work(self, settings: Mapping[str, str], is_done: Callable[[], Awaitable[bool]]) -> "Cost":
        """Start a worker, let it work until done, stop it, and tell what that took."""
        await self.server.execute("CHECKPOINT")
        worker = WorkerProcess(self.stage.folder / "worker", settings={**self.settings, **settings})
        commits = await self._commits()
        began = time.perf_counter()
        async with worker:
            before = self._cpu(worker.pid)
            while not await is_done():  # noqa: ASYNC110 - servers are asked, which wake nobody here
                await asyncio.sleep(_LOOK_SECONDS)
            after = self._cpu(worker.pid)
            wall = time.perf_counter() - began
        cpu = {name: after[name] - seconds for name, seconds in before.items()}
        return Cost(wall_seconds=wall, cpu_seconds=cpu, transactions=await self._commits() - commits)

    def _cpu(self, worker: int) -> dict[str, float]:
        pids = {
            "worker": worker,
            "postgres": self.stage.postgres.pid,
            "nats": self.stage.nats.pid,
            "handler": self.stage.handler.pid,
        }
        return {name: cpu_seconds(pid) for name, pid in pids.items()}

    async def _commits(self) -> int:
        """Transactions of the run's database; sessions that have ended are counted in full."""
        count: int = await self.server.fetchval(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = $1", self.name
        )
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a worker's run took.

    Attributes:
        wall_seconds: from the start of the worker's process until it had done all.
        cpu_seconds: user and system time by program, from the worker's readiness on.
        transactions: committed in the database, from the worker's start on.
    """

    wall_seconds: float
    cpu_seconds: Mapping[str, float]
    transactions: int


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[Stage]:
    """Start the servers and the sample handler, and stop them in the end."""
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
        broker = await stack.enter_async_context(EmbeddedNats(folder / "nats"))
        handler = SampleHandler(folder / "handler", source=resource_folder("examples"))
        await stack.enter_async_context(handler)
        yield Stage(folder=folder, postgres=postgres, nats=broker, handler=handler)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its children, and of those that have ended."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            values: list[Any] = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if pid in {int(entry.parent.name), int(values[1])}:
            ticks += sum(map(int, values[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")

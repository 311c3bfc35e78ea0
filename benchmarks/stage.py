"""The servers that the measured programs run on. Linux only."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg
import nats
from nats.js import JetStreamContext

from benchmarks.counters import Cost, Figure, Reading, cpu_seconds, peak_bytes, resident_bytes
from sea_mq_worker.dev.demo import sample_handler, worker_process
from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres, PythonServer
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.settings import Settings
from tests.support.nats_cluster import nats_cluster
from tests.support.servers import database_connection

_STREAM_BYTES = 2**30
_ROOM_BYTES = 2**34
_LOOK_SECONDS = 0.1
_STATISTICS = "pg_stat_statements"
_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
_COUNTERS = """
SELECT (SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = $1)) AS statements,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes
"""


@dataclass(slots=True, kw_only=True)
class Stage:
    """Both servers, by default with their own settings, synchronous commits included, and two handlers.

    Attributes:
        brokers: the nats-servers; each keeps every stream.
    """

    folder: Path
    postgres: EmbeddedPostgres
    brokers: Sequence[EmbeddedNats]
    handler: PythonServer
    bare: PythonServer
    runs: int = field(default=0, init=False)

    @property
    def nats(self) -> EmbeddedNats:
        """The nats-server that clients connect to."""
        return self.brokers[0]

    @asynccontextmanager
    async def run(self, *, keep: str = "") -> AsyncIterator["Run"]:
        """Make an empty database and empty streams, so that no run pays for the one before.

        Args:
            keep: name of a database that outlives the run; one that is there already is used as it is.
        """
        self.runs += 1
        database = keep or f"run_{self.runs}"
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(database_connection(self.postgres.dsn))
            if not await server.fetchval("SELECT true FROM pg_database WHERE datname = $1", database):
                await server.execute(f"CREATE DATABASE {database}")
            if not keep:
                stack.push_async_callback(server.execute, f"DROP DATABASE {database} WITH (FORCE)")
            settings = self._settings(database)
            own = Settings.model_validate(
                {name.removeprefix("SEA_MQ_").lower(): value for name, value in settings.items()}
            )
            broker = await nats.connect(self.nats.url)
            stack.push_async_callback(broker.close)
            stream = broker.jetstream()
            for existing in await stream.streams_info():
                await stream.delete_stream(existing.config.name or "")
            await apply_topology(own, streams=defined_streams(own))
            await migrate(own.database_url.get_secret_value(), schema=own.database_schema)
            connection = await stack.enter_async_context(database_connection(self.postgres.dsn_for(database)))
            await server.execute(f"SELECT {_STATISTICS}_reset()")  # or it would forget some for lack of room
            await server.execute("CHECKPOINT")
            yield Run(
                stage=self,
                name=database,
                database=connection,
                server=server,
                stream=stream,
                own=own,
                settings=settings,
            )

    def _settings(self, database: str) -> dict[str, str]:
        return {
            "SEA_MQ_DATABASE_URL": self.postgres.dsn_for(database),
            "SEA_MQ_NATS_URL": self.nats.url,
            "SEA_MQ_HANDLER_URL": f"{self.handler.url}/handle",
            "SEA_MQ_STREAM_REPLICAS": str(len(self.brokers)),
            "SEA_MQ_STREAM_MAX_BYTES": str(_STREAM_BYTES),
        }


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
        await apply_topology(self.own, streams=defined_streams(self.own))

    async def read(self, client_cpu_seconds: float) -> Reading:
        """Read all counters but the client's CPU time, which the caller reads."""
        row = await self.server.fetchrow(_COUNTERS, self.name)
        return Reading(
            at=time.perf_counter(),
            cpu_seconds={
                "client": client_cpu_seconds,
                "postgres": cpu_seconds(self.stage.postgres.pid),
                "nats": sum(cpu_seconds(broker.pid) for broker in self.stage.brokers),
                "handler": cpu_seconds(self.stage.handler.pid) + cpu_seconds(self.stage.bare.pid),
            },
            statements=row["statements"],
            wal_bytes=row["wal_bytes"],
        )

    async def floor(self, count: int, work: Awaitable[None]) -> Figure:
        """Measure a loop of this very process."""
        before = await self.read(time.process_time())
        await work
        cost = Cost.between(before, await self.read(time.process_time()))
        return Figure(count=count, rate=count / cost.wall_seconds, cost=cost)

    @asynccontextmanager
    async def worker(self, settings: Mapping[str, str], *, count: int = 1) -> AsyncIterator["Worker"]:
        """Start a worker, or ``count`` of them, which are ready then, and stop them in the end."""
        folder, given = self.stage.folder, {**self.settings, **settings}
        async with AsyncExitStack() as stack:
            processes = [
                await stack.enter_async_context(worker_process(folder / f"worker{n}", given))
                for n in range(count)
            ]
            yield Worker(run=self, processes=processes)

    async def work(self, settings: Mapping[str, str], is_done: Callable[[], Awaitable[bool]]) -> None:
        """Start a worker, let it work until done, and stop it."""
        async with self.worker(settings) as worker:
            await worker.until(is_done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that is ready, or several, each as a process of its own."""

    run: Run
    processes: Sequence[PythonServer]

    async def read(self) -> Reading:
        """Read all counters."""
        return await self.run.read(sum(cpu_seconds(each.pid) for each in self.processes))

    def peak_bytes(self) -> int:
        """Most memory that one process has had so far."""
        return max(peak_bytes(each.pid) for each in self.processes)

    def resident_bytes(self) -> int:
        """Memory that all processes have now."""
        return sum(resident_bytes(each.pid) for each in self.processes)

    async def until(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Let it work until done; the servers are asked, which wake nobody here."""
        while not await is_done():
            if ended := [str(each.log) for each in self.processes if not each.running]:
                raise RuntimeError(f"a worker ended; see {', '.join(ended)}")
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def open_stage(
    folder: Path,
    *,
    postgres_settings: Mapping[str, str] = _NO_SETTINGS,
    nats_config: Mapping[str, Any] = _NO_SETTINGS,
    replicated: bool = False,
) -> AsyncIterator[Stage]:
    """Start the servers and the handlers, and stop them in the end; ``replicated``: three nats-servers."""
    async with AsyncExitStack() as stack:
        settings = {"shared_preload_libraries": _STATISTICS, **postgres_settings}
        postgres = EmbeddedPostgres(folder / "postgres", settings=settings)
        await stack.enter_async_context(postgres)
        await _count_statements(postgres)
        brokers: Sequence[EmbeddedNats]
        if replicated:
            servers = nats_cluster(folder.joinpath, room_bytes=_ROOM_BYTES)
            brokers = (await stack.enter_async_context(servers)).nodes
        else:
            server = EmbeddedNats(folder / "nats", config=nats_config)
            brokers = [await stack.enter_async_context(server)]
        handler = await stack.enter_async_context(sample_handler(folder / "handler"))
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        bare = PythonServer(
            folder / "bare",
            name="bare",
            command=["bare", "PORT"],
            ready="/effects",
            environment=os.environ | path,
        )
        await stack.enter_async_context(bare)
        yield Stage(folder=folder, postgres=postgres, brokers=brokers, handler=handler, bare=bare)


async def _count_statements(postgres: EmbeddedPostgres) -> None:
    async with database_connection(postgres.dsn) as server:
        await server.execute(f"CREATE EXTENSION {_STATISTICS}")

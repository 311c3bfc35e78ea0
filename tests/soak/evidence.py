"""The evidence: samples taken during the faults, and after the end all that servers and handler hold."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import psutil

from tests.soak.deployment import CONTEXT, Heard, Stage
from tests.soak.faults import Injected
from tests.soak.traffic import Transaction
from tests.support.jetstream import Stored, consumer_info, stored_messages
from tests.support.processes import Life
from tests.support.servers import database_connection

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
            self.idle_in_transaction += [dict(row) | {"at": time.time()} for row in rows]

        await self._every(stop, _EVERY_SECONDS, sample)
        if connection is not None:
            connection.terminate()


def _sample(worker: str, life: int, pid: int) -> Sample:
    process = psutil.Process(pid)
    rss, fds = process.memory_info().rss, process.num_fds()
    return Sample(time.time(), worker, life, rss, fds, process.num_threads())


@dataclass(kw_only=True)
class Evidence:
    """The records of producers, servers, handler and workers."""

    ledger: Mapping[str, Transaction]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    again: Sequence[Mapping[str, str]]
    """Each replay of a published event and each redrive, by its row."""
    events: Sequence[Stored]
    upstream: Sequence[Stored]
    letters: Sequence[Stored]
    acknowledged: Mapping[int, str]
    consumer: Mapping[str, Any]
    heard: Sequence[Heard]
    effects: Mapping[str, int]
    lives: Sequence[Life]
    faults: Sequence[Injected]
    samples: Sequence[Sample]
    idle_in_transaction: Sequence[Mapping[str, Any]]
    logs: Mapping[str, str]
    rejects: frozenset[str] = field(default_factory=frozenset)
    never: frozenset[str] = field(default_factory=frozenset)


async def gather(
    stage: Stage,
    *,
    ledger: Mapping[str, Transaction],
    acknowledged: Mapping[int, str],
    faults: Sequence[Injected],
    watch: Watch,
) -> Evidence:
    """Gather all evidence."""
    target = stage.direct
    async with database_connection(stage.postgres.dsn) as connection:
        outbox = await connection.fetch("SELECT * FROM outbox_events ORDER BY seq")
        inbox = await connection.fetch("SELECT * FROM inbox_messages")
        again = await connection.fetch("SELECT * FROM soak.again")
    return Evidence(
        ledger=ledger,
        outbox={str(row["id"]): row for row in outbox},
        inbox={str(row["message_id"]): row for row in inbox},
        again=again,
        events=await stored_messages(stage.broker, f"{CONTEXT.upper()}_EVENTS"),
        upstream=await stored_messages(stage.broker, target.upstream_stream),
        letters=await stored_messages(stage.broker, f"{CONTEXT.upper()}_DLQ"),
        acknowledged=acknowledged,
        consumer=await consumer_info(stage.broker, target.upstream_stream, target.durable),
        heard=stage.service.heard,
        effects=stage.service.effects,
        lives=stage.lives(),
        faults=faults,
        samples=watch.samples,
        idle_in_transaction=watch.idle_in_transaction,
        logs={life.title: life.log.read_text() for life in stage.lives()},
        rejects=frozenset(stage.service.rejects),
        never=frozenset(stage.service.never),
    )

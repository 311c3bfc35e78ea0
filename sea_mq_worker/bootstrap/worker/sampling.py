"""What is measured now and then for metrics and page; checks of the schema go along."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage.consumer_state import consumer_state
from sea_mq_worker.adapters.postgres.connection import leave_former_primary
from sea_mq_worker.adapters.postgres.operator.inspection import PostgresInspection
from sea_mq_worker.adapters.postgres.operator.overview import BY_INDEX, PostgresOverview
from sea_mq_worker.adapters.postgres.schema.migrations import check_version
from sea_mq_worker.adapters.postgres.schema.schema_owner import check_rows_visible, claim_schema
from sea_mq_worker.admin.history import STEP_SECONDS
from sea_mq_worker.admin.worker_status import Sample, WorkerStatus
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.connections.startup_retry import connect_with_retry
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.read_models import Depth
from sea_mq_worker.telemetry.metrics import Backlog, Side

_PROBE_MAX_SECONDS = 5.0
DEPTH_MAX = 100_000
_OVERVIEW_EVERY = 4
"""Samples of the depth; sooner where something stopped for good, or was sent again."""
_PURPOSE = "upkeep"


async def sampling(base: WorkerContext, standing: WorkerStatus) -> dict[str, Loop]:
    """Check the schema's version, and measure depth now and then."""

    async def connect() -> asyncpg.Pool:
        pool = await open_pool(base.settings, purpose=_PURPOSE, hints=BY_INDEX)
        base.stack.push_async_callback(pool.close)
        await check_version(pool)
        await claim_schema(pool, base.settings.context)
        await check_rows_visible(pool)
        return pool

    pool = await connect_with_retry(connect, what="PostgreSQL", observer=base.observer, stop=base.stop)
    sampler = _Sampler(base, standing, pool)
    breaker = base.breaker("upkeep database", cap_seconds=_PROBE_MAX_SECONDS)

    async def remember(stop: asyncio.Event) -> None:
        while not stop.is_set():
            standing.tick()
            await sleep_or_stop(stop, seconds=STEP_SECONDS)

    depth = PeriodicTask(work=sampler.sample, store_breaker=breaker, seconds=STEP_SECONDS)
    return {"depth": depth.run, "history": remember}


def consumer_sampling(
    base: WorkerContext, standing: WorkerStatus, connection: NatsConnection
) -> dict[str, Loop]:
    """Ask now and then how the durables stand; what cannot be asked keeps its age on the page."""

    async def look() -> None:
        for durable in base.settings.consumers:
            state = await _state(connection, durable.stream, durable.durable)
            standing.set_consumer(f"{durable.stream}/{durable.durable}", state)
            if "pending" in state:
                base.metrics.set_consumer(durable.durable, state["pending"], state["ack_pending"])

    async def watch(stop: asyncio.Event) -> None:
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await cancel_on_stop(stop, look())
                await sleep_or_stop(stop, seconds=STEP_SECONDS)

    return {"consumer states": watch}


async def _state(connection: NatsConnection, stream: str, durable: str) -> Mapping[str, Any]:
    try:
        return asdict(await consumer_state(connection, stream, durable))
    except WorkerError as error:
        return {"stream": stream, "durable": durable, "error": str(error)}


class _Sampler:
    """Asks for the dear part only now and then, and when the cheap part shows that it has changed."""

    def __init__(self, base: WorkerContext, standing: WorkerStatus, pool: asyncpg.Pool) -> None:
        self._base = base
        self._standing = standing
        self._pool = pool
        self._tables = PostgresInspection(pool=pool)
        self._overview = PostgresOverview(pool=pool)
        self._count = 0
        self._dead = (0, 0)

    async def sample(self) -> None:
        await leave_former_primary(self._pool)
        outbox = await self._tables.outbox_depth_capped(limit=DEPTH_MAX)
        inbox = await self._tables.inbox_depth_capped(limit=DEPTH_MAX)
        self._take("outbox", outbox)
        self._take("inbox", inbox)
        dead = (outbox.dead, inbox.dead)
        if self._count % _OVERVIEW_EVERY == 0 or dead != self._dead:
            await check_rows_visible(self._pool)
            found = await self._overview.overview(sessions=f"sea_mq_worker {_PURPOSE}")
            self._standing.set_overview(asdict(found))
        self._count, self._dead = self._count + 1, dead
        await check_version(self._pool)  # a migration may have come that this worker cannot live with

    def _take(self, side: Side, depth: Depth) -> None:
        numbers: dict[str, Any] = {
            "depth": depth.waiting,
            "oldest_seconds": depth.waiting_seconds,
            "scheduled": depth.scheduled,
            "dead": depth.dead,
        }
        self._base.metrics.set_backlog(side, Backlog(**numbers))
        self._standing.set_sample(side, Sample(**numbers))

"""Periodic samples for metrics and page, with checks of the schema."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.consumer import NatsJetStreamConsumer
from sea_mq_worker.adapters.nats.manage.stream_inspection import consumer_state
from sea_mq_worker.adapters.postgres.checks import PostgresStandings
from sea_mq_worker.adapters.postgres.connection import check_connection_limit, leave_former_primary
from sea_mq_worker.adapters.postgres.operator.inspection import PostgresInspection
from sea_mq_worker.adapters.postgres.operator.overview import BY_INDEX, PostgresOverview
from sea_mq_worker.adapters.postgres.schema.migrations import altered_migrations, check_version
from sea_mq_worker.adapters.postgres.schema.schema_owner import check_rows_visible, claim_schema
from sea_mq_worker.admin.history import STEP_SECONDS
from sea_mq_worker.admin.status_collector import StatusCollector
from sea_mq_worker.admin.status_records import ConsumerSample, Sample
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.read_models import Depth
from sea_mq_worker.telemetry.metrics import Side

_PROBE_MAX_SECONDS = 5.0
DEPTH_MAX = 100_000
_OVERVIEW_EVERY = 4
"""Number of depth samples per overview; a change of the dead counts brings it sooner."""
_PURPOSE = "upkeep"


async def sampling(
    base: WorkerContext, status: StatusCollector
) -> tuple[PostgresInspection, dict[str, Loop]]:
    """Check the schema's version, and sample the depth every 15 s; return the tables that are sampled."""

    async def connect() -> asyncpg.Pool:
        pool = await open_pool(base.settings, purpose=_PURPOSE, hints=BY_INDEX)
        base.stack.push_async_callback(pool.close)
        await check_version(pool)
        if not base.settings.database_pooler:  # its limits are other ones
            least, most = base.settings.connections_min, base.settings.connections_max
            if short := await check_connection_limit(pool, least=least, most=most):
                base.observer.observe(Noticed(event="connections_short", text=short))
        for script in await altered_migrations(pool):
            text = f"{script.name} was applied with other content; run `python -m sea_mq_worker doctor`"
            base.observer.observe(Noticed(event="migration_altered", text=text))
        await claim_schema(pool, base.settings.context)
        await check_rows_visible(pool)
        return pool

    pool = await base.connect(connect, "PostgreSQL")
    sampler = _Sampler(base, status, pool)
    breaker = base.breaker("upkeep database", cap_seconds=_PROBE_MAX_SECONDS)

    async def record_history(stop: asyncio.Event) -> None:
        while not stop.is_set():
            status.tick()
            await sleep_or_stop(stop, seconds=STEP_SECONDS)

    depth = PeriodicTask(work=sampler.sample, store_breaker=breaker, seconds=STEP_SECONDS)
    return sampler.tables, {"depth": depth.run, "history": record_history}


def consumer_sampling(
    base: WorkerContext,
    status: StatusCollector,
    connection: NatsConnection,
    consumers: Sequence[NatsJetStreamConsumer],
    tables: PostgresInspection,
) -> dict[str, Loop]:
    """Sample the durables every 15 s, pause those that have become unfit, and report changed filters."""
    filters: dict[str, Sequence[str]] = {}

    def compare_filter(consumer: NatsJetStreamConsumer, found: Sequence[str]) -> None:
        before = filters.setdefault(f"{consumer.stream} {consumer.name}", found)
        if found != before:
            filters[f"{consumer.stream} {consumer.name}"] = found
            text = _changed_filter(consumer, before, found)
            base.observer.observe(Noticed(event="consumer_filter_changed", text=text))

    async def sample_all() -> None:
        for consumer in consumers:
            try:
                info = await consumer.look()
                state = await consumer_state(connection, info)
                state = await tables.without_read_ahead(state, limit=DEPTH_MAX)
            except WorkerError as error:
                sample = ConsumerSample(stream=consumer.stream, durable=consumer.name, error=str(error))
            else:
                fields = asdict(state)
                del fields["delivered_seq"], fields["oldest_id"]
                sample = ConsumerSample(**fields)
                compare_filter(consumer, info.filters)
            status.set_consumer(sample)
            if sample.pending is not None and sample.ack_pending is not None:
                base.metrics.set_consumer(
                    consumer.name, sample.pending, sample.ack_pending, sample.oldest_seconds or 0.0
                )

    async def watch(stop: asyncio.Event) -> None:
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await cancel_on_stop(stop, sample_all())
                await sleep_or_stop(stop, seconds=STEP_SECONDS)

    return {"consumer states": watch}


def _changed_filter(consumer: NatsJetStreamConsumer, before: Sequence[str], now: Sequence[str]) -> str:
    taken, took = (", ".join(filters) or "all subjects" for filters in (now, before))
    return (
        f"consumer {consumer.name} of stream {consumer.stream} takes {taken}, before {took}: it passes"
        " messages of other subjects for good; `python -m sea_mq_worker pipeline reconcile` finds them"
    )


class _Sampler:
    """Samples the depth each time, and the costly overview rarely or after a change."""

    def __init__(self, base: WorkerContext, status: StatusCollector, pool: asyncpg.Pool) -> None:
        self._base = base
        self._status = status
        self._pool = pool
        self.tables = PostgresInspection(pool=pool)
        self._overview = PostgresOverview(pool=pool)
        self._standings = PostgresStandings(pool=pool)
        self._count = 0
        self._dead = (0, 0)

    async def sample(self) -> None:
        await leave_former_primary(self._pool)
        outbox = await self.tables.outbox_depth_capped(limit=DEPTH_MAX)
        inbox = await self.tables.inbox_depth_capped(limit=DEPTH_MAX)
        self._record("outbox", outbox)
        self._record("inbox", inbox)
        self._status.set_missed(await self._standings.missed())
        dead = (outbox.dead, inbox.dead)
        if self._count % _OVERVIEW_EVERY == 0 or dead != self._dead:
            await check_rows_visible(self._pool)
            self._status.set_overview(await self._overview.overview(sessions=f"sea_mq_worker {_PURPOSE}"))
        self._count, self._dead = self._count + 1, dead
        await check_version(self._pool)  # a migration may be too new for this worker

    def _record(self, side: Side, depth: Depth) -> None:
        self._base.metrics.set_depth(side, depth)
        sample = Sample(
            depth=depth.waiting,
            oldest_seconds=depth.waiting_seconds,
            scheduled=depth.scheduled,
            dead=depth.dead,
        )
        self._status.set_sample(side, sample)

"""Periodic checks: does the stream still have published events, and has each consumer got its messages?"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict

import asyncpg

from sea_mq_worker.admin.records import ConsumerSample, Sample
from sea_mq_worker.admin.status import STEP_SECONDS, StatusCollector
from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.missed import recorded_missed
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.operators.checks import acknowledged
from sea_mq_worker.operators.records import Depth
from sea_mq_worker.operators.streams import RECONCILE, consumer_state, lost_since
from sea_mq_worker.operators.tables import BY_INDEX, depth, overview, without_read_ahead
from sea_mq_worker.outbox.maintenance import PeriodicTask
from sea_mq_worker.postgres.migrations import (
    altered_migrations,
    check_rows_visible,
    check_version,
    claim_schema,
)
from sea_mq_worker.postgres.pool import check_connection_limit, leave_former_primary
from sea_mq_worker.runtime.breaker import CircuitBreaker
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.telemetry.metrics import Side
from sea_mq_worker.wiring.context import WorkerContext

# --- Periodic samples for metrics and page, with checks of the schema.

_PROBE_MAX_SECONDS = 5.0
DEPTH_MAX = 100_000
_OVERVIEW_EVERY = 4
"""Number of depth samples per overview; a change of the dead counts brings it sooner."""
_PURPOSE = "upkeep"


async def sampling(base: WorkerContext, status: StatusCollector) -> tuple[asyncpg.Pool, dict[str, Loop]]:
    """Check the schema's version, and sample the depth every 15 s; return the pool that samples."""

    async def connect() -> asyncpg.Pool:
        pool = await open_pool(base.settings, purpose=_PURPOSE, hints=BY_INDEX)
        base.stack.push_async_callback(pool.close)
        await check_version(pool)
        if not base.settings.database_pooler:  # its limits are other ones
            least, most = base.settings.connections_min, base.settings.connections_max
            if short := await check_connection_limit(pool, least=least, most=most):
                base.events.emit("connections_short", text=short)
        for script in await altered_migrations(pool):
            text = f"{script.name} was applied with other content; run `python -m sea_mq_worker doctor`"
            base.events.emit("migration_altered", text=text)
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

    task = PeriodicTask(work=sampler.sample, store_breaker=breaker, seconds=STEP_SECONDS)
    return pool, {"depth": task.run, "history": record_history}


def consumer_sampling(
    base: WorkerContext,
    status: StatusCollector,
    connection: NatsConnection,
    consumers: Sequence[NatsJetStreamConsumer],
    pool: asyncpg.Pool,
) -> dict[str, Loop]:
    """Sample the durables every 15 s, pause those that have become unfit, and report changed filters."""
    filters: dict[str, Sequence[str]] = {}

    def compare_filter(consumer: NatsJetStreamConsumer, found: Sequence[str]) -> None:
        before = filters.setdefault(f"{consumer.stream} {consumer.name}", found)
        if found != before:
            filters[f"{consumer.stream} {consumer.name}"] = found
            text = _changed_filter(consumer, before, found)
            base.events.emit("consumer_filter_changed", text=text)

    async def sample_all() -> None:
        for consumer in consumers:
            try:
                info = await consumer.look()
                state = await consumer_state(connection, info)
                state = await without_read_ahead(pool, state, limit=DEPTH_MAX)
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
        self._count = 0
        self._dead = (0, 0)

    async def sample(self) -> None:
        await leave_former_primary(self._pool)
        outbox = await depth(self._pool, "outbox", limit=DEPTH_MAX)
        inbox = await depth(self._pool, "inbox", limit=DEPTH_MAX)
        self._record("outbox", outbox)
        self._record("inbox", inbox)
        self._status.set_missed(await recorded_missed(self._pool))
        dead = (outbox.dead, inbox.dead)
        if self._count % _OVERVIEW_EVERY == 0 or dead != self._dead:
            await check_rows_visible(self._pool)
            sessions = f"sea_mq_worker {_PURPOSE}"
            self._status.set_overview(await overview(self._pool, sessions=sessions))
        self._count, self._dead = self._count + 1, dead
        await check_version(self._pool)  # a migration may be too new for this worker

    def _record(self, side: Side, found: Depth) -> None:
        self._base.metrics.set_depth(
            side,
            waiting=found.waiting,
            waiting_seconds=found.waiting_seconds,
            dead=found.dead,
            scheduled=found.scheduled,
        )
        sample = Sample(
            depth=found.waiting,
            oldest_seconds=found.waiting_seconds,
            scheduled=found.scheduled,
            dead=found.dead,
        )
        self._status.set_sample(side, sample)


_LOST_CHECK_SECONDS = 30.0


def lost_event_check(
    base: WorkerContext, pool: asyncpg.Pool, connection: NatsConnection, store_breaker: CircuitBreaker
) -> Loop:
    """Return a loop that compares rows with the stream, at the start and then periodically."""
    reported = ""

    async def check() -> None:
        nonlocal reported
        stream = base.settings.stream
        rows = await acknowledged(pool, stream)
        try:
            why = await lost_since(
                connection, stream, greatest=rows.greatest, shared=rows.shared, some=rows.some
            )
        except (BrokerUnavailableError, ContractError):
            return  # the publisher reports that
        base.metrics.set_events_lost(bool(why))
        if why and not reported:
            loss = f"stream {stream} has lost events whose rows are PUBLISHED: {why}"
            text = f"{loss}; send them again: `{RECONCILE}`"
            base.events.emit("events_lost", text=text)
        reported = why

    return PeriodicTask(work=check, store_breaker=store_breaker, seconds=_LOST_CHECK_SECONDS).run

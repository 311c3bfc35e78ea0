"""Workload: a drain beside millions of published events, with an old snapshot open."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg

from benchmarks.counters import Figure
from benchmarks.drain import OUTBOX_ALONE, drain_with
from benchmarks.stage import Run, Stage

_DATABASE = "history"
# Only triggers forbid an event that begins as a published one; the constraints hold here, too.
_FILL = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, correlation_id, created_at,
        available_at, publish_attempts, first_attempt_at, stream, stream_seq, state, published_at)
SELECT uuidv7(past.age), 'order', n::text, 'order.created',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 997, 'currency', 'EUR',
                          'total', n * 1.25, 'lines',
                          jsonb_build_array(jsonb_build_object('article', n % 89, 'quantity', 2))),
       now() + past.age, uuidv7(past.age), now() + past.age, now() + past.age, 1, now() + past.age,
       'SEA_EVENTS', n + 1, 'PUBLISHED', now() + past.age
  FROM generate_series($2::int, $1::int - 1, $3::int) n
 CROSS JOIN LATERAL (SELECT (n - $1::int) * interval '10 milliseconds' - interval '1 minute' AS age) past
"""


async def history(stage: Stage, *, count: int, published: int) -> dict[str, Figure]:
    """Drain a backlog with nothing beside it, and one beside a history that all rounds have in common."""
    async with stage.run() as run:
        alone = await _drain(run, count)
    async with stage.run(keep=_DATABASE) as run:
        if not await run.database.fetchval("SELECT EXISTS (SELECT FROM outbox_events)"):
            await _fill(run, published)
        async with _old_snapshot(run):
            beside = await _drain(run, count)
    beside = replace(beside, more={"published events beside it": published})
    return {"worker": beside, "worker, no history": alone}


async def _fill(run: Run, published: int) -> None:
    """Insert them over as many connections as there are processors, each its share of every moment."""
    lanes = os.cpu_count() or 1
    await asyncio.gather(*(_fill_lane(run, published, lane, lanes) for lane in range(lanes)))
    await run.database.execute("VACUUM ANALYZE outbox_events")
    await run.server.execute("CHECKPOINT")


async def _fill_lane(run: Run, published: int, lane: int, lanes: int) -> None:
    connection = await asyncpg.connect(run.settings["SEA_MQ_DATABASE_URL"])
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(_FILL, published, lane, lanes)
    finally:
        await connection.close()


@asynccontextmanager
async def _old_snapshot(run: Run) -> AsyncIterator[None]:
    """Let somebody read for long, as a dump does: nothing that dies meanwhile can be cleared away."""
    reader = await asyncpg.connect(run.settings["SEA_MQ_DATABASE_URL"])
    try:
        async with reader.transaction(isolation="repeatable_read", readonly=True):
            await reader.execute("SELECT FROM outbox_events LIMIT 1")
            yield
    finally:
        await reader.close()


async def _drain(run: Run, count: int) -> Figure:
    async with run.worker(OUTBOX_ALONE) as worker:
        return await drain_with(worker, count=count, per_key=0)

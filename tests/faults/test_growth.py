"""Repeated work costs no more the thousandth time: memory, descriptors, pages of a claim."""

import os
import statistics
from datetime import timedelta

import asyncpg
import pytest

from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox import floors
from sea_mq_worker.outbox.event import Published
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.postgres.pool import WORKER_HINTS
from tests.support.processes import open_files, resident_bytes
from tests.support.rows import opened
from tests.support.servers import Database, database_connection
from tests.support.site import Site

MEGABYTE = 2**20
ROUND = 5000
ROUNDS = int(os.environ.get("SEA_MQ_TEST_GROWTH_ROUNDS", "2"))
"""40 are the 200,000 events that the bound is meant for."""
GROWTH_PER_ROUND = MEGABYTE // 2
ALLOCATOR_BYTES = 4 * MEGABYTE
"""What fragments, whatever is done."""

POOLS = {"database_pool_max": 3, "handler_concurrency": 3}
POOLED = 2 * POOLS["database_pool_max"] + POOLS["handler_concurrency"]
"""Which of their connections are open just then is chance, and no growth."""
CHURNED = int(os.environ.get("SEA_MQ_TEST_GROWTH_CHURNED", "20000"))
CLAIM = 500
DECAY_MAX = 5
INSERT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT gen_random_uuid(), 'a', '1', 'made', '{}' FROM generate_series(1, $1::int)"
)
INSERT_KEYED = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)"
    " SELECT gen_random_uuid(), 'a', '1', 'made', '{}', 'key-' || n % 5 FROM generate_series(1, $1::int) n"
)
BLOCKS = (
    "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
    " FROM pg_statio_user_tables WHERE relname = 'outbox_events'"
)


@pytest.mark.fault("L10")
@pytest.mark.slow
async def test_events_leave_nothing_behind_in_the_process(shared: Site) -> None:
    async with shared.worker(**POOLS) as worker:
        await worker.ready()
        await go_round(shared)
        memory, files = resident_bytes(worker.process.pid), open_files(worker.process.pid)
        for _ in range(ROUNDS):
            await go_round(shared)
        grown = resident_bytes(worker.process.pid) - memory
        assert grown < ROUNDS * GROWTH_PER_ROUND + ALLOCATOR_BYTES
        assert open_files(worker.process.pid) <= files + POOLED


async def go_round(shared: Site) -> None:
    """Move events both ways while connections are cut."""
    await shared.database.execute(INSERT, ROUND)
    shared.to_database.cut()
    await shared.send(50)
    shared.to_broker.cut()
    shared.to_handler.cut()
    await shared.quiet(within=60)


@pytest.mark.fault("D12")
@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True], ids=["no keys", "five keys"])
async def test_an_old_snapshot_does_not_make_claims_dear(
    database: Database, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """No version of before can be removed, so that each claim could walk over those of all the others."""
    for name in ("_MARGIN", "_MARK", "_BUILT"):  # the claims of this test take no seconds
        monkeypatch.setattr(floors, name, timedelta())
    async with (
        database_connection(database.dsn) as watcher,
        database_connection(database.dsn) as holder,
        opened(database, hints=WORKER_HINTS) as pool,
    ):
        await watcher.execute(INSERT_KEYED if ordered else INSERT, CHURNED)
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT count(*) FROM outbox_events")
            outbox = PostgresOutboxAdapter(
                pool=pool,
                worker="w",
                lease_seconds=60,
                ordered=ordered,
                hold_dead_keys=False,
                failures_max=10,
            )
            costs = [await cost_of_a_claim(outbox, pool, watcher) for _ in range(CHURNED // CLAIM)]
    # Sweeps from the front come by time, so that of few slow claims many are sweeps.
    assert statistics.median(costs) < DECAY_MAX * statistics.mean(costs[:5])


async def cost_of_a_claim(
    outbox: PostgresOutboxAdapter, pool: asyncpg.Pool, watcher: asyncpg.Connection
) -> int:
    """Claim and settle; return how many pages were touched."""
    before = await blocks(pool, watcher)
    claim = await outbox.find_unpublished(batch_max=CLAIM)
    assert len(claim.events) == CLAIM
    cost = await blocks(pool, watcher) - before
    stored = [Published(event, Stored(stream="S", seq=event.seq, duplicate=False)) for event in claim.events]
    await outbox.mark_published_batch(claim, stored)
    return cost


async def blocks(pool: asyncpg.Pool, watcher: asyncpg.Connection) -> int:
    await pool.execute("SELECT pg_stat_force_next_flush()")
    await pool.execute("SELECT 1")
    return int(await watcher.fetchval(BLOCKS))

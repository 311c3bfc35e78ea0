"""The cost of a search for expired leases depends on the claimed events, not on the waiting ones."""

import asyncpg
import pytest

from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.pool import WORKER_HINTS
from tests.counters import budgets
from tests.counters.meters import Servers
from tests.counters.test_operator_queries import pages
from tests.support.rows import opened
from tests.support.servers import scratch_database

BACKLOG = """
SET LOCAL session_replication_role = replica;
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', n::text, 'order.created', '{}',
       CASE WHEN n % 2 = 0 THEN 'order-' || n / 10 END
  FROM generate_series(1, $1::int) n;
"""
CLAIM = """
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = now() - interval '1 hour', claimed_by = 'w', publish_attempts = 1
 WHERE seq = $1
"""
CLAIMED = "SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED'"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("waiting", [60_000, pytest.param(2_000_000, marks=pytest.mark.long)])
async def test_a_reaper_reads_a_bounded_part_of_a_backlog_and_by_and_by_all_of_it(
    servers: Servers, waiting: int
) -> None:
    async with scratch_database(servers.postgres, prefix="reaper_") as own:
        await migrate(own.dsn)
        owner = await asyncpg.connect(own.dsn)
        async with owner.transaction():
            await owner.execute(BACKLOG.replace("$1", str(waiting)))
            await owner.execute(CLAIM, waiting * 4 // 5)
        await owner.close()
        async with opened(own, hints=WORKER_HINTS) as pool:
            adapter = PostgresOutboxAdapter(
                pool=pool, worker="w", lease_seconds=60.0, ordered=False, hold_dead_keys=False, failures_max=9
            )
            budgets.PAGES_OF_A_REAP.check(await pages(servers, own.name, adapter.reap))
            assert await pool.fetchval(CLAIMED) == 1, "too far behind for two looks"
            looks = 2
            while await pool.fetchval(CLAIMED):
                assert looks < 2 + waiting // 10_000
                await adapter.reap()
                looks += 1

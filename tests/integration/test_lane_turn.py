"""The lane with ordering keys, served by one worker at a time, on a real server."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres.lane_turn import PostgresLaneTurn
from sea_mq_worker.adapters.postgres.schema.migrations import migrate
from sea_mq_worker.domain.errors import StoreUnavailableError
from sea_mq_worker.ports.outbox import OutboxRepository
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.waiting import eventually

HOLDER = """
SELECT l.pid FROM pg_locks l
 WHERE l.locktype = 'advisory' AND l.classid = 7182 AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
async def turns(pool: asyncpg.Pool) -> AsyncIterator[tuple[PostgresLaneTurn, PostgresLaneTurn]]:
    first, second = PostgresLaneTurn(pool=pool), PostgresLaneTurn(pool=pool)
    yield first, second
    await first.leave()
    await second.leave()


def outbox(pool: asyncpg.Pool, turn: PostgresLaneTurn) -> OutboxRepository:
    return PostgresWorld(pool).relay(ordered=True, lane=turn)


async def test_a_killed_workers_lane_is_free_as_soon_as_its_session_ends(
    pool: asyncpg.Pool, turns: tuple[PostgresLaneTurn, PostgresLaneTurn]
) -> None:
    first, second = turns
    assert await first.take()
    assert not await second.take()
    await pool.execute(f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) holder")

    async def is_free() -> bool:
        return not await pool.fetch(HOLDER)

    await eventually(is_free)
    assert await second.take()

    async def is_noticed() -> bool:
        return not await first.take()

    await eventually(is_noticed, what="the first worker stands by")


async def test_a_worker_that_claims_nothing_keeps_no_other_from_claiming(pool: asyncpg.Pool) -> None:
    frozen, standby = PostgresLaneTurn(pool=pool), PostgresLaneTurn(pool=pool, idle_seconds=0.0)
    assert await frozen.take()
    assert await standby.take()
    await add_event(pool, ordering_key="a")
    assert len((await outbox(pool, standby).find_unpublished(batch_max=9)).events) == 1
    assert len(await pool.fetch(HOLDER)) == 1, "the frozen worker still has the lock"
    await frozen.leave()


async def test_each_claim_shows_that_the_lane_is_served(
    pool: asyncpg.Pool, turns: tuple[PostgresLaneTurn, PostgresLaneTurn]
) -> None:
    first, _ = turns
    assert await first.take()
    last_claim = f"SELECT query FROM pg_stat_activity WHERE pid = ({HOLDER})"
    assert "pg_try_advisory_lock" in await pool.fetchval(last_claim)
    await outbox(pool, first).find_unpublished(batch_max=9)
    assert "fresh_heads" in await pool.fetchval(last_claim)


async def test_a_claim_that_loses_its_connection_leaves_the_lane_and_takes_it_again(
    pool: asyncpg.Pool, turns: tuple[PostgresLaneTurn, PostgresLaneTurn]
) -> None:
    first, _ = turns
    await add_event(pool, ordering_key="a")
    assert await first.take()
    async with pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE outbox_events")
        claim = asyncio.create_task(outbox(pool, first).find_unpublished(batch_max=9))

        async def is_waiting() -> bool:
            waiting = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ({HOLDER})"
            return bool(await other.fetchval(waiting))

        await eventually(is_waiting, what="the claim waits for the table")
        await other.execute(f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) holder")
        with pytest.raises(StoreUnavailableError):
            await claim
    assert await first.take()
    assert len((await outbox(pool, first).find_unpublished(batch_max=9)).events) == 1


async def test_services_that_share_a_database_have_lanes_of_their_own(database: Database) -> None:
    await migrate(database.dsn, schema="other")
    async with opened(database) as here:
        turn = PostgresLaneTurn(pool=here)
        assert await turn.take()
        there = await asyncpg.connect(database.dsn, server_settings={"search_path": "other"})
        key = "hashtext(current_schema()::text)"
        assert await there.fetchval(f"SELECT pg_try_advisory_lock(7182, {key})")
        await there.close()
        await turn.leave()


async def test_a_worker_that_cannot_ask_for_its_turn_may_claim(database: Database) -> None:
    async with opened(database) as pool:
        turn = PostgresLaneTurn(pool=pool)
        pool.terminate()
        assert await turn.take(), "so that the claim reports the error"
        await turn.leave()

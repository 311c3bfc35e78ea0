"""The lane with ordering keys, served by one worker at a time, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.ports import OutboxRepository
from sea_mq_worker.postgres.lane import PostgresLaneTurn
from sea_mq_worker.postgres.migrations import migrate
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, as_worker, opened
from tests.support.servers import Database, database_connection
from tests.support.waiting import eventually

HOLDER = """
SELECT l.pid FROM pg_locks l
 WHERE l.locktype = 'advisory' AND l.classid = 7182 AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
END_HOLDER = f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) holder"
LEFT_ALONE_SECONDS = 0.3

Turns: TypeAlias = tuple[PostgresLaneTurn, PostgresLaneTurn]


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """Connections of one worker's session: the server cannot tell whose of several workers they are."""
    async with opened(database, join=as_worker) as made:
        yield made


@pytest.fixture
async def turns(pool: asyncpg.Pool) -> AsyncIterator[Turns]:
    first, second = PostgresLaneTurn(pool=pool), PostgresLaneTurn(pool=pool)
    yield first, second
    await first.leave()
    await second.leave()


def outbox(pool: asyncpg.Pool, turn: PostgresLaneTurn) -> OutboxRepository:
    return PostgresWorld(pool).relay(ordered=True, lane=turn)


async def test_a_killed_workers_lane_is_free_as_soon_as_its_session_ends(
    pool: asyncpg.Pool, turns: Turns
) -> None:
    first, second = turns
    assert await first.take()
    assert not await second.take()
    await pool.execute(END_HOLDER)
    await eventually(lambda: pool.fetch(HOLDER), until=lambda held: not held)
    assert await second.take()
    await eventually(first.take, until=lambda own: not own, what="the first worker stands by")


async def test_a_worker_that_claims_nothing_keeps_no_other_from_claiming(pool: asyncpg.Pool) -> None:
    frozen, standby = PostgresLaneTurn(pool=pool), PostgresLaneTurn(pool=pool, idle_seconds=0.0)
    assert await frozen.take()
    assert await standby.take()
    await add_event(pool, ordering_key="a")
    assert len((await outbox(pool, standby).find_unpublished(batch_max=9)).events) == 1
    assert len(await pool.fetch(HOLDER)) == 1, "the frozen worker still has the lock"
    await frozen.leave()


async def test_each_claim_shows_that_the_lane_is_served(pool: asyncpg.Pool, turns: Turns) -> None:
    first, _ = turns
    assert await first.take()
    last_claim = f"SELECT query FROM pg_stat_activity WHERE pid = ({HOLDER})"
    assert "pg_try_advisory_lock" in await pool.fetchval(last_claim)
    await outbox(pool, first).find_unpublished(batch_max=9)
    assert "fresh_heads" in await pool.fetchval(last_claim)


async def test_a_claim_that_loses_its_connection_leaves_the_lane_and_takes_it_again(
    pool: asyncpg.Pool, turns: Turns
) -> None:
    first, _ = turns
    await add_event(pool, ordering_key="a")
    assert await first.take()
    async with pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE outbox_events")
        claim = asyncio.create_task(outbox(pool, first).find_unpublished(batch_max=9))
        waits = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ({HOLDER})"
        await eventually(lambda: other.fetchval(waits), what="the claim waits for the table")
        await other.execute(END_HOLDER)
        with pytest.raises(StoreUnavailableError):
            await claim
    assert await first.take()
    assert len((await outbox(pool, first).find_unpublished(batch_max=9)).events) == 1


async def test_services_that_share_a_database_have_lanes_of_their_own(
    database: Database, turns: Turns
) -> None:
    await migrate(database.dsn, schema="other")
    assert await turns[0].take()
    async with database_connection(database.dsn, server_settings={"search_path": "other"}) as there:
        key = "hashtext(current_schema()::text)"
        assert await there.fetchval(f"SELECT pg_try_advisory_lock(7182, {key})")


async def test_a_worker_that_cannot_ask_for_its_turn_may_claim(database: Database) -> None:
    async with opened(database) as pool:
        turn = PostgresLaneTurn(pool=pool)
        pool.terminate()
        assert await turn.take(), "so that the claim reports the error"
        await turn.leave()


async def test_a_session_that_is_no_workers_keeps_nobody_from_claiming_and_is_named(
    database: Database, pool: asyncpg.Pool
) -> None:
    told: list[tuple[str, str]] = []
    turn = PostgresLaneTurn(pool=pool, on_event=lambda *event: told.append(event))
    async with database_connection(database.dsn, server_settings={"application_name": "billing"}) as stranger:
        await stranger.execute("SELECT pg_advisory_lock(7182, hashtext(current_schema()::text))")
        assert [await turn.take(), await turn.take()] == [True, True]
        [(event, text)] = told
        assert event == "lane_not_served"
        assert f"session {stranger.get_server_pid()} " in text
        assert "'billing'" in text

    async def has_the_lock() -> bool:
        await turn.take()
        return bool(await pool.fetch(HOLDER))

    await eventually(has_the_lock, what="the worker takes the lane once it is free")
    await turn.leave()


@pytest.mark.parametrize(
    ("events", "hold", "taken"),
    [
        pytest.param([{}], False, True, id="due"),
        pytest.param([{"state": "PENDING", "error": "failed"}], False, True, id="a retry"),
        pytest.param([{"ordering_key": None}], False, False, id="without a key"),
        pytest.param([{"state": "CLAIMED"}, {}], False, False, id="behind a claimed one"),
        pytest.param([{"state": "DEAD"}, {}], True, False, id="held by a dead one"),
        pytest.param([{"state": "DEAD"}, {}], False, True, id="behind a dead one"),
    ],
)
async def test_a_worker_that_leaves_an_event_alone_which_it_might_claim_keeps_nobody_from_claiming(
    pool: asyncpg.Pool, events: list[dict[str, Any]], hold: bool, taken: bool
) -> None:
    told: list[str] = []
    idle = PostgresLaneTurn(pool=pool)
    standby = PostgresLaneTurn(
        pool=pool,
        hold_dead_keys=hold,
        idle_seconds=LEFT_ALONE_SECONDS,
        on_event=lambda event, _text: told.append(event),
    )
    assert await idle.take()
    for event in events:
        await add_event(pool, **({"ordering_key": "a"} | event))

    async def looks() -> bool:
        await idle.fetch("SELECT 1")
        return await standby.take()

    assert not await looks()
    if taken:
        await eventually(looks, within=20 * LEFT_ALONE_SECONDS)
        assert await looks(), "and goes on"
    else:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 2 * LEFT_ALONE_SECONDS:
            assert not await looks()
    assert told == (["lane_not_served"] if taken else [])
    await idle.leave()
    await standby.leave()

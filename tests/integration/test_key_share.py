"""Workers that divide the ordering keys, on a real server."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from sea_mq_worker.outbox.event import Share
from sea_mq_worker.outbox.share import PostgresKeyShare
from sea_mq_worker.postgres.migrations import migrate
from tests.support.outboxes import PostgresWorld, published
from tests.support.rows import add_event, opened
from tests.support.servers import Database

KEYS = 400
FAR = "UPDATE sea_mq_shares SET serves_at = serves_at + $1 * interval '1 second' WHERE worker = 'a'"


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database) as made:
        yield made


@pytest.mark.parametrize("seconds", [-6, 6, -7200, 7200])
async def test_a_worker_that_says_nothing_or_said_it_by_another_clock_is_not_counted(
    pool: asyncpg.Pool, seconds: int
) -> None:
    a, b = (PostgresKeyShare(pool=pool, worker=name) for name in "ab")
    assert await a.take(serves=True) == (0, 1)
    await pool.execute(FAR, seconds)
    assert await b.take(serves=True) == (0, 1)
    rows = await pool.fetchval("SELECT count(*) FROM sea_mq_shares")
    assert rows == (2 if abs(seconds) < 3600 else 1), "rows of workers that ended long ago are deleted"


async def test_a_worker_looks_about_once_a_second_and_at_once_when_it_stops_to_serve(
    pool: asyncpg.Pool,
) -> None:
    now = [100.0]
    share = PostgresKeyShare(pool=pool, worker="a", clock=lambda: now[0])
    await share.take(serves=True)
    await PostgresKeyShare(pool=pool, worker="b").take(serves=True)
    now[0] += 0.9
    assert await share.take(serves=True) == (0, 1)
    now[0] += 0.2
    assert await share.take(serves=True) == (0, 2)
    assert await share.take(serves=False) == (0, 2)
    assert await pool.fetchval("SELECT string_agg(worker, ' ') FROM sea_mq_shares") == "b"


async def test_a_worker_that_cannot_look_keeps_its_share(database: Database) -> None:
    async with opened(database) as pool:
        share = PostgresKeyShare(pool=pool, worker="b")
        await PostgresKeyShare(pool=pool, worker="a").take(serves=True)
        await share.take(serves=True)
        pool.terminate()
        assert await share.take(serves=False) == (1, 2)
        await share.leave()


async def test_services_that_share_a_database_divide_their_own_keys(
    database: Database, pool: asyncpg.Pool
) -> None:
    await migrate(database.dsn, schema="other")
    await PostgresKeyShare(pool=pool, worker="a").take(serves=True)
    async with opened(database, schema="other") as there:
        assert await PostgresKeyShare(pool=there, worker="b").take(serves=True) == (0, 1)


@pytest.mark.parametrize("workers", [2, 4])
async def test_each_event_is_claimed_by_the_worker_that_has_its_key_evenly(
    pool: asyncpg.Pool, workers: int
) -> None:
    await pool.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)"
        " SELECT gen_random_uuid(), 'order', 'o', 'order.created', '{}', 'key-' || n % $1"
        " FROM generate_series(1, 2 * $1::int) n",
        KEYS,
    )
    world = PostgresWorld(pool)
    keys = []
    for place in range(workers):
        relay = world.relay(f"w{place}", ordered=True)
        claim = await relay.find_unpublished(batch_max=1000, share=Share(place, workers))
        keys.append({event.ordering_key for event in claim.events})
        assert len(claim.events) == 2 * len(keys[-1])
    assert sum(map(len, keys)) == len(set.union(*keys)) == KEYS
    assert all(abs(len(each) - KEYS / workers) < KEYS / workers / 5 for each in keys)


async def test_a_worker_that_gets_more_keys_finds_the_events_that_it_had_passed(pool: asyncpg.Pool) -> None:
    for key in "abcdefgh":
        await add_event(pool, ordering_key=key)
    relay = PostgresWorld(pool).relay(ordered=True, clock=lambda: 1.0)
    first = await relay.find_unpublished(batch_max=9, share=Share(0, 2))
    assert 0 < len(first.events) < 8
    await relay.mark_published_batch(first, published(first))
    assert (await relay.find_unpublished(batch_max=9, share=Share(0, 2))).events == ()
    rest = await relay.find_unpublished(batch_max=9, share=Share(0, 1))
    assert len(first.events) + len(rest.events) == 8


async def test_a_key_stays_with_the_worker_that_has_claimed_of_it_while_shares_change(
    pool: asyncpg.Pool,
) -> None:
    for _ in range(2):
        await add_event(pool, ordering_key="a")
    world = PostgresWorld(pool)
    former, heir = world.relay("w1", ordered=True), world.relay("w2", ordered=True)
    await former.find_unpublished(batch_max=1)
    assert (await heir.find_unpublished(batch_max=9)).events == ()


async def test_a_take_over_ends_the_share_of_the_worker_that_is_gone(pool: asyncpg.Pool) -> None:
    await PostgresKeyShare(pool=pool, worker="00c0ffee").take(serves=True)
    await PostgresWorld(pool).relay(ordered=True).take_over("00c0ffee")
    assert await pool.fetchval("SELECT count(*) FROM sea_mq_shares") == 0

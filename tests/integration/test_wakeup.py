"""PostgresWakeup: a commit ends a wait, none is missed, and an idle relay is nearly silent."""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres import wakeup as module
from sea_mq_worker.adapters.postgres.wakeup import PostgresWakeup
from tests.support.servers import Database
from tests.support.waiting import eventually

_WATCHES = """
SELECT EXISTS (
    SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND classid = 7177 AND mode = 'ExclusiveLock' AND granted = $1
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""

POLL_SECONDS = 60.0
PROMPT_SECONDS = 10.0


@asynccontextmanager
async def wakeup(database: Database) -> AsyncIterator[PostgresWakeup]:
    made = PostgresWakeup(dsn=database.dsn, schema="public")
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def producer(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(database.dsn, min_size=2, max_size=8) as pool:
        yield pool


async def insert(producer: asyncpg.Pool | asyncpg.Connection) -> str:
    event_id = str(uuid.uuid4())
    await producer.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
        " VALUES ($1, 'order', 'o-1', 'order.created', '{}')",
        event_id,
    )
    return event_id


class IdleRelay:
    """Does what a lane does, but for publishing: looks for events, and waits when there are none."""

    def __init__(self, wakeup: PostgresWakeup, pool: asyncpg.Pool) -> None:
        self.seen: dict[str, float] = {}
        self.looks = 0
        self._wakeup = wakeup
        self._pool = pool
        self._last_seq = 0

    async def run(self) -> None:
        while True:
            self.looks += 1
            rows = await self._pool.fetch(
                "SELECT id::text, seq FROM outbox_events WHERE id::text <> ALL ($1)", list(self.seen)
            )
            self.seen.update({row["id"]: time.monotonic() for row in rows})
            if not rows:
                await self._wakeup.wait(timeout_seconds=POLL_SECONDS)


@asynccontextmanager
async def running(*relays: IdleRelay) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(relay.run()) for relay in relays]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def asleep(producer: asyncpg.Pool, relays: list[IdleRelay]) -> None:
    """Wait until nobody looks any more, with one relay on watch."""

    async def quiet() -> bool:
        before = [relay.looks for relay in relays]
        await asyncio.sleep(0.3)
        watched = await producer.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7177"
            " AND mode = 'ExclusiveLock' AND granted"
        )
        return watched == 1 and before == [relay.looks for relay in relays]

    await eventually(quiet, what="all relays asleep and one on watch")


async def test_a_commit_ends_the_waits_of_every_lane_and_replica(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one, wakeup(database) as two:
        relays = [IdleRelay(one, producer), IdleRelay(one, producer), IdleRelay(two, producer)]
        async with running(*relays):
            await asleep(producer, relays)
            event_id = await insert(producer)
            committed = time.monotonic()
            for relay in relays:
                await eventually(lambda relay=relay: relay.seen.get(event_id), within=PROMPT_SECONDS)
                assert relay.seen[event_id] - committed < PROMPT_SECONDS


async def test_an_idle_worker_of_two_lanes_is_nearly_silent(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one, wakeup(database) as two:
        relays = [IdleRelay(wake, producer) for wake in (one, one, two, two)]
        async with running(*relays):
            await asleep(producer, relays)
            before = sum(relay.looks for relay in relays)
            await asyncio.sleep(1.0)
            assert sum(relay.looks for relay in relays) - before <= 4


async def test_no_commit_at_a_random_moment_is_missed(database: Database, producer: asyncpg.Pool) -> None:
    chance = random.Random(7)
    sent: dict[str, float] = {}

    async def produce() -> None:
        for _ in range(25):
            await asyncio.sleep(chance.choice([0, 0.002, 0.02, 0.12, 0.25]) * chance.random() * 2)
            async with producer.acquire() as connection, connection.transaction():
                event_id = await insert(connection)
                await asyncio.sleep(chance.choice([0, 0.005, 0.08]) * chance.random())
            sent[event_id] = time.monotonic()

    async with AsyncExitStack() as stack:
        wakes = [await stack.enter_async_context(wakeup(database)) for _ in range(2)]
        pool = await stack.enter_async_context(asyncpg.create_pool(database.dsn, min_size=1, max_size=4))
        relays = [IdleRelay(wake, pool) for wake in (wakes[0], *wakes)]
        await stack.enter_async_context(running(*relays))
        await asyncio.gather(*(produce() for _ in range(8)))
        for relay in relays:
            await eventually(lambda relay=relay: relay.seen.keys() >= sent.keys(), within=PROMPT_SECONDS)
            late = {event: relay.seen[event] - sent[event] for event in sent}
            assert max(late.values()) < PROMPT_SECONDS


async def test_producers_are_silent_while_nobody_is_on_watch(
    database: Database, producer: asyncpg.Pool
) -> None:
    heard: list[object] = []
    async with wakeup(database) as one:
        listener = await asyncpg.connect(database.dsn)
        try:
            key = await listener.fetchval("SELECT hashtext('public')")
            await listener.add_listener(f"outbox_events.{key}", lambda *args: heard.append(args))
            await insert(producer)
            await listener.execute("SELECT 1")
            assert heard == []
            await one.wait(timeout_seconds=POLL_SECONDS)
            await insert(producer)
            await eventually(lambda: heard)
        finally:
            await listener.close()


async def test_an_open_transaction_of_a_producer_slows_the_wait_but_does_not_block_it(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one, producer.acquire() as connection, connection.transaction():
        await insert(connection)
        async with asyncio.timeout(PROMPT_SECONDS):
            for _ in range(3):
                await one.wait(timeout_seconds=0.05)


async def test_it_listens_again_after_its_connection_was_ended(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one:
        relay = IdleRelay(one, producer)
        async with running(relay):
            await asleep(producer, [relay])
            await producer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'sea_mq_worker wakeup' AND datname = current_database()"
            )
            await eventually(lambda: not one.listening)
            await eventually(lambda: one.listening)
            await asleep(producer, [relay])
            event_id = await insert(producer)
            await eventually(lambda: event_id in relay.seen, within=PROMPT_SECONDS)


async def test_without_a_server_waits_last_their_time_out() -> None:
    lonely = PostgresWakeup(dsn="postgresql://nobody@127.0.0.1:1/none", schema="public")
    await lonely.start()
    try:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROMPT_SECONDS):
                await lonely.wait(timeout_seconds=0.1)
        assert 0.1 <= time.monotonic() - began < PROMPT_SECONDS
        assert not lonely.listening
    finally:
        await lonely.close()


async def test_a_claim_that_began_before_the_watch_is_repeated(database: Database) -> None:
    """It may have missed what a silent producer committed meanwhile."""
    async with wakeup(database) as one:
        async with asyncio.timeout(PROMPT_SECONDS):
            for _ in range(2):
                await one.wait(timeout_seconds=POLL_SECONDS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await one.wait(timeout_seconds=POLL_SECONDS)


async def test_a_watch_is_waited_for_behind_the_open_transactions_of_silent_producers(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one, producer.acquire() as connection, connection.transaction():
        await insert(connection)
        async with running(IdleRelay(one, producer)):
            await eventually(lambda: connection.fetchval(_WATCHES, False), what="a relay waits for its watch")


async def test_the_watch_of_a_relay_that_ended_is_taken_over(
    database: Database, producer: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RELY_SECONDS", 0.1)

    async def watched() -> bool:
        await two.wait(timeout_seconds=0.05)
        return bool(await producer.fetchval(_WATCHES, True))

    async with wakeup(database) as two:
        async with wakeup(database) as one:
            await one.wait(timeout_seconds=POLL_SECONDS)
            assert await watched()
        await eventually(lambda: _unwatched(producer), what="the first relay's watch has ended")
        await eventually(watched, what="the second relay is on watch")


async def _unwatched(producer: asyncpg.Pool) -> bool:
    return not await producer.fetchval(_WATCHES, True)

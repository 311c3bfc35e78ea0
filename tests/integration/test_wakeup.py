"""PostgresWakeup: a commit ends a wait, none is missed, and an idle relay is nearly silent."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import asyncpg
import pytest

from sea_mq_worker.outbox import wakeup as module
from sea_mq_worker.outbox.wakeup import PostgresWakeup
from tests.support.rows import add_event
from tests.support.servers import Database
from tests.support.waiting import eventually

_WATCHES = """
SELECT EXISTS (
    SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND classid IN (7177, 7179) AND mode = 'ExclusiveLock' AND granted = $1
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


async def insert(producer: asyncpg.Pool | asyncpg.Connection, *, key: str | None = None) -> str:
    return str(await add_event(producer, ordering_key=key))


class IdleRelay:
    """Does what a lane does, but for publishing: looks for events, and waits when there are none."""

    def __init__(self, wakeup: PostgresWakeup, pool: asyncpg.Pool, *, keyed: bool = False) -> None:
        self.seen: dict[str, float] = {}
        self.looks = 0
        self._lane = wakeup.lane(keyed)
        self._pool = pool
        self._keyed = keyed

    async def run(self) -> None:
        while True:
            self.looks += 1
            rows = await self._pool.fetch(
                "SELECT id::text FROM outbox_events"
                " WHERE id::text <> ALL ($1) AND (ordering_key IS NOT NULL) = $2",
                list(self.seen),
                self._keyed,
            )
            self.seen.update({row["id"]: time.monotonic() for row in rows})
            if not rows:
                await self._lane.wait(timeout_seconds=POLL_SECONDS)


@asynccontextmanager
async def running(*relays: IdleRelay) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(relay.run()) for relay in relays]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def asleep(producer: asyncpg.Pool, relays: list[IdleRelay], *, lanes: int = 1) -> None:
    """Wait until nobody looks any more, with one relay on watch for each lane."""

    async def quiet() -> bool:
        before = [relay.looks for relay in relays]
        await asyncio.sleep(0.3)
        watched = await producer.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid IN (7177, 7179)"
            " AND mode = 'ExclusiveLock' AND granted"
        )
        return watched == lanes and before == [relay.looks for relay in relays]

    await eventually(quiet, what="all relays asleep and one on watch")


async def test_a_commit_ends_the_waits_of_its_lane_in_every_worker_and_of_no_other_lane(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one, wakeup(database) as two:
        lanes = [[IdleRelay(wake, producer, keyed=keyed) for wake in (one, two)] for keyed in (False, True)]
        relays = lanes[0] + lanes[1]
        async with running(*relays):
            for lane, others, key in ((lanes[0], lanes[1], None), (lanes[1], lanes[0], "k")):
                await asleep(producer, relays, lanes=2)
                looks = [relay.looks for relay in others]
                event_id = await insert(producer, key=key)
                for relay in lane:
                    await eventually(partial(relay.seen.get, event_id), within=PROMPT_SECONDS)
                assert [relay.looks for relay in others] == looks


async def test_many_commits_end_the_watch_and_a_quiet_lane_begins_it_again(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one:
        lane = one.lane(False)
        await lane.wait(timeout_seconds=POLL_SECONDS)
        assert lane.announces
        now = asyncio.get_running_loop().time()
        while lane.announces and asyncio.get_running_loop().time() < now + PROMPT_SECONDS:
            await asyncio.gather(*(insert(producer) for _ in range(20)))
        await eventually(lambda: _unwatched(producer), what="the watch has ended")
        async with asyncio.timeout(PROMPT_SECONDS):
            while not lane.announces:
                await lane.wait(timeout_seconds=0.01)


async def test_a_notification_during_a_claim_ends_the_next_wait(
    database: Database, producer: asyncpg.Pool
) -> None:
    async with wakeup(database) as one:
        lane = one.lane(False)
        await lane.wait(timeout_seconds=POLL_SECONDS)
        await insert(producer)
        async with asyncio.timeout(PROMPT_SECONDS):
            await lane.wait(timeout_seconds=POLL_SECONDS)


async def test_no_commit_at_a_random_moment_is_missed(database: Database, producer: asyncpg.Pool) -> None:
    chance = random.Random(7)
    sent: dict[bool, dict[str, float]] = {False: {}, True: {}}

    async def produce() -> None:
        for _ in range(25):
            await asyncio.sleep(chance.choice([0, 0.002, 0.02, 0.12, 0.25]) * chance.random() * 2)
            keyed = chance.random() < 0.5
            async with producer.acquire() as connection, connection.transaction():
                event_id = await insert(connection, key="k" if keyed else None)
                await asyncio.sleep(chance.choice([0, 0.005, 0.08]) * chance.random())
            sent[keyed][event_id] = time.monotonic()

    async with AsyncExitStack() as stack:
        wakes = [await stack.enter_async_context(wakeup(database)) for _ in range(2)]
        pool = await stack.enter_async_context(asyncpg.create_pool(database.dsn, min_size=1, max_size=4))
        relays = [(keyed, IdleRelay(wake, pool, keyed=keyed)) for wake in wakes for keyed in (False, True)]
        await stack.enter_async_context(running(*(relay for _, relay in relays)))
        await asyncio.gather(*(produce() for _ in range(8)))
        for keyed, relay in relays:
            mine = sent[keyed]
            await eventually(
                lambda relay=relay, mine=mine: relay.seen.keys() >= mine.keys(), within=PROMPT_SECONDS
            )
            assert max(relay.seen[event] - mine[event] for event in mine) < PROMPT_SECONDS


async def test_producers_send_no_notification_while_no_worker_waits(
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
            await one.lane(False).wait(timeout_seconds=POLL_SECONDS)
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
                await one.lane(False).wait(timeout_seconds=0.05)


@pytest.mark.fault("D11")
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
                await lonely.lane(False).wait(timeout_seconds=0.1)
        assert 0.1 <= time.monotonic() - began < PROMPT_SECONDS
        assert not lonely.listening
    finally:
        await lonely.close()


async def test_a_claim_that_began_before_the_watch_is_repeated(database: Database) -> None:
    """It may have missed what a silent producer committed meanwhile."""
    async with wakeup(database) as one:
        async with asyncio.timeout(PROMPT_SECONDS):
            await one.lane(False).wait(timeout_seconds=POLL_SECONDS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await one.lane(False).wait(timeout_seconds=POLL_SECONDS)


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
        await two.lane(False).wait(timeout_seconds=0.05)
        return bool(await producer.fetchval(_WATCHES, True))

    async with wakeup(database) as two:
        async with wakeup(database) as one:
            await one.lane(False).wait(timeout_seconds=POLL_SECONDS)
            assert await watched()
        await eventually(lambda: _unwatched(producer), what="the first relay's watch has ended")
        await eventually(watched, what="the second relay is on watch")


async def _unwatched(producer: asyncpg.Pool) -> bool:
    return not await producer.fetchval(_WATCHES, True)

"""Claims of keys with many published events, whose entries an old snapshot keeps in the index."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from sea_mq_worker.outbox import floors
from sea_mq_worker.ports import OutboxRepository
from tests.support.outboxes import PostgresWorld, ids, published
from tests.support.rows import add_event, opened
from tests.support.servers import Database

LONG_AGO = timedelta(hours=1)


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database) as made:
        yield made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a key be busy with its first event, and a transaction old at once."""
    for name, value in (("_BUSY", 1), ("_OLD", -1), ("_MARGIN", 0), ("_MARK", 0), ("_BUILT", 0)):
        monkeypatch.setattr(floors, name, value if name == "_BUSY" else timedelta(microseconds=value))


async def publish(relay: OutboxRepository, count: int = 9) -> list[str]:
    claim = await relay.find_unpublished(batch_max=count)
    await relay.mark_published_batch(claim, published(claim))
    return ids(claim)


async def busy_relay(pool: asyncpg.Pool) -> OutboxRepository:
    """Make a relay that has a floor for key a, and sweeps its index no more."""
    relay = PostgresWorld(pool).relay(ordered=True, clock=lambda: 1.0)
    for _ in range(3):
        await add_event(pool, ordering_key="a")
        await publish(relay)
    return relay


@pytest.mark.clause("event-model-15")
@pytest.mark.usefixtures("at_once")
async def test_what_commits_late_goes_before_the_next_event_of_its_key(pool: asyncpg.Pool) -> None:
    relay = await busy_relay(pool)
    async with pool.acquire() as late:
        transaction = late.transaction()
        await transaction.start()
        due = await late.fetchval("SELECT now() - $1::interval", LONG_AGO)
        held = await add_event(late, ordering_key="a", occurred_at=due, available_at=due)
        for _ in range(2):
            overtaking = await add_event(pool, ordering_key="a")
            assert await publish(relay) == [str(overtaking)]
        await transaction.commit()
    following = await add_event(pool, ordering_key="a")
    assert await publish(relay) == [str(held), str(following)]


@pytest.mark.usefixtures("at_once")
async def test_a_replayed_event_goes_before_those_of_its_key_that_wait(pool: asyncpg.Pool) -> None:
    relay = await busy_relay(pool)
    waiting = [str(await add_event(pool, ordering_key="a")) for _ in range(2)]
    replayed = await pool.fetchval(
        "UPDATE outbox_events SET state = 'PENDING', published_at = NULL, available_at = clock_timestamp(),"
        " failures = 0, first_attempt_at = NULL WHERE seq = 2 RETURNING id::text"
    )
    assert [await publish(relay, count=1) for _ in range(3)] == [[replayed], [waiting[0]], [waiting[1]]]


@pytest.mark.usefixtures("at_once")
async def test_an_event_that_is_given_back_goes_before_the_next_of_its_key(pool: asyncpg.Pool) -> None:
    relay = await busy_relay(pool)
    first, second = [str(await add_event(pool, ordering_key="a")) for _ in range(2)]
    held = await relay.find_unpublished(batch_max=1)
    ahead = await relay.find_unpublished(batch_max=1, following=[held])
    await relay.mark_published_batch(held, published(held))
    lease = "UPDATE outbox_events SET claimed_at = claimed_at - $1::interval WHERE id = $2"
    await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await pool.execute(lease, LONG_AGO, second)
    assert (ids(held), ids(ahead)) == ([first], [second])
    assert (await relay.reap()).leases == 1
    await pool.execute(
        "UPDATE outbox_events SET available_at = now() - $1::interval WHERE id = $2", LONG_AGO, second
    )
    third = str(await add_event(pool, ordering_key="a"))
    assert [await publish(relay), await publish(relay)] == [[second], [third]]

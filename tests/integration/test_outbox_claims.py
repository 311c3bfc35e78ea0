"""Claims of several relays at once, on a real server: order, leases, plans and healing."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.errors import RowsRefusedError
from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox.event import OutboxEvent, Postponed, Published, Released
from sea_mq_worker.outbox.postgres import START
from sea_mq_worker.ports import OutboxRepository
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.queries import load_queries
from tests.support.outboxes import PostgresWorld, published
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.waiting import eventually


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, size_max=8, application_name="test outbox") as made:
        yield made


def relay(pool: asyncpg.Pool, worker: str = "w", **options: Any) -> OutboxRepository:
    return PostgresWorld(pool, failures_max=1000).relay(worker, **options)


async def add(pool: asyncpg.Pool, number: int, *, keys: int = 0) -> None:
    await pool.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)"
        " SELECT gen_random_uuid(), 'order', 'o', 'order.created', '{}', 'k' || nullif(i % nullif($2, 0), -1)"
        " FROM generate_series(1, $1::int) i",
        number,
        keys,
    )


async def work(
    adapter: OutboxRepository, log: dict[str, list[int]], chance: random.Random, ended: asyncio.Event
) -> None:
    """Log runs one event at a time; fail some, and vanish now and then with a claim in hand."""
    while not ended.is_set():
        claim = await adapter.find_unpublished(batch_max=20)
        stopped: set[str] = set()
        done, failed, released = [], [], []
        for event in claim.events:
            key = event.ordering_key or ""
            if key in stopped:
                released.append(Released(event))
            elif chance.random() < 0.05:
                stopped.add(key)
                failed.append(Postponed(event, "no", chance.random() * 0.05, failed=True))
            else:
                await asyncio.sleep(chance.random() * 0.002)
                log[key].append(event.seq)
                done.append(Published(event, Stored("S", event.seq)))
        if chance.random() < 0.04:
            continue
        await adapter.mark_published_batch(claim, done)
        await adapter.increment_attempts_batch(claim, failed)
        await adapter.release(claim, released)
        if not claim.more:
            await asyncio.sleep(0.005)


@pytest.mark.clause("event-model-33", "event-model-15", "event-model-29", "lifecycle-23")
async def test_four_relays_that_fail_and_vanish_keep_every_keys_order(pool: asyncpg.Pool) -> None:
    chance = random.Random(11)
    log: dict[str, list[int]] = defaultdict(list)
    ended = asyncio.Event()
    options: dict[str, Any] = {"ordered": True, "lease_seconds": 1.0, "run_max": 10}
    relays = [relay(pool, f"w{n}", **options) for n in range(4)]

    async def produce() -> None:
        for _ in range(20):
            await add(pool, 60, keys=12)
            await asyncio.sleep(0.01)

    async def all_published() -> bool:
        """End the delays of reaped events, which would only make the test longer."""
        await relays[0].reap()
        await pool.execute(
            "UPDATE outbox_events SET available_at = now()"
            " WHERE state = 'PENDING' AND publish_error LIKE 'the lease%'"
        )
        return not await pool.fetchval("SELECT count(*) FROM outbox_events WHERE state <> 'PUBLISHED'")

    async with asyncio.TaskGroup() as group:
        for adapter in relays:
            group.create_task(work(adapter, log, random.Random(chance.random()), ended))
        await produce()
        await eventually(all_published, within=40, what="all events published")
        ended.set()

    first = {key: list(dict.fromkeys(seqs)) for key, seqs in log.items()}
    assert sum(map(len, first.values())) == 1200
    assert all(seqs == sorted(seqs) for seqs in first.values())


async def test_nothing_behind_a_head_that_another_session_has_locked_is_claimed(pool: asyncpg.Pool) -> None:
    """It may be on its way to a state in which it blocks its key."""
    await add(pool, 3, keys=1)
    adapter = relay(pool, "w", ordered=True)
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM outbox_events ORDER BY seq LIMIT 1 FOR UPDATE")
        assert (await adapter.find_unpublished(batch_max=9)).events == ()
    assert len((await adapter.find_unpublished(batch_max=9)).events) == 3


async def test_a_claim_takes_some_events_of_each_key_and_the_next_one_goes_on(pool: asyncpg.Pool) -> None:
    """What a busy key has waited with does not keep the others waiting."""
    adapter = relay(pool, "w", ordered=True, run_max=3)
    for key in "aaaaaab":
        await add_event(pool, ordering_key=key)
    first = await adapter.find_unpublished(batch_max=7)
    second = await adapter.find_unpublished(batch_max=7, following=[first])
    assert [[event.ordering_key for event in claim.events] for claim in (first, second)] == [
        [*"aaab"],
        [*"aaa"],
    ]
    assert first.more


async def test_a_claim_with_free_places_that_leaves_events_of_a_key_over_is_followed_by_the_next_at_once(
    pool: asyncpg.Pool,
) -> None:
    adapter = relay(pool, "w", ordered=True, run_max=3)
    for key in "aaaaaab":
        await add_event(pool, ordering_key=key)
    first = await adapter.find_unpublished(batch_max=8)
    assert ([event.ordering_key for event in first.events], first.more) == ([*"aaaab"], True)
    second = await adapter.find_unpublished(batch_max=8, following=[first])
    assert ([event.ordering_key for event in second.events], second.more) == ([*"aa"], False)


@pytest.mark.clause("event-model-29")
async def test_a_settlement_is_fenced_by_owner_and_time_of_its_claim(pool: asyncpg.Pool) -> None:
    """Two processes with one name, perhaps in the same microsecond: the owner differs all the same."""
    await add(pool, 2)
    adapter = relay(pool, "same name")
    first, claim = [await one.find_unpublished(batch_max=1) for one in (relay(pool, "same name"), adapter)]
    (other_time, other_owner), (time, owner) = (one.token.split(" ", 1) for one in (first, claim))
    assert (other_time, other_owner) != (time, owner)

    for token in (f"{time} {other_owner}", f"{other_time} {owner}"):
        foreign = replace(claim, token=token)
        assert await adapter.mark_published_batch(foreign, published(claim)) == {}
        assert await adapter.release(foreign, [Released(event) for event in claim.events]) == frozenset()
    assert len(await adapter.mark_published_batch(claim, published(claim))) == 1


async def test_the_time_of_publication_is_that_of_the_rows(pool: asyncpg.Pool) -> None:
    ids = [str(await add_event(pool)) for _ in range(3)]
    adapter = relay(pool)
    claim = await adapter.find_unpublished(batch_max=3)

    returned = await adapter.mark_published_batch(claim, published(claim))

    rows = await pool.fetch("SELECT id::text AS id, published_at FROM outbox_events")
    assert returned == {row["id"]: row["published_at"] for row in rows}
    assert returned.keys() == set(ids)


async def refuse(pool: asyncpg.Pool, event_id: str, trigger: str, deferrable: str = "") -> None:
    """Refuse every change of an event by a trigger."""
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{event_id}' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;"
        f"CREATE {trigger} UPDATE ON outbox_events {deferrable}"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


@pytest.mark.fault("D16")
@pytest.mark.parametrize(
    ("ordered", "trigger"),
    [
        (False, ("CONSTRAINT TRIGGER refuse AFTER", "DEFERRABLE INITIALLY DEFERRED")),
        (True, ("TRIGGER refuse AFTER",)),
    ],
)
async def test_an_event_that_cannot_be_claimed_is_named_and_holds_back_its_key_alone(
    pool: asyncpg.Pool, ordered: bool, trigger: tuple[str, ...]
) -> None:
    await add(pool, 20, keys=4 if ordered else 0)
    rows = await pool.fetch("SELECT id::text, seq, ordering_key FROM outbox_events ORDER BY seq")
    bad = rows[5]
    await refuse(pool, bad["id"], *trigger)
    outbox = relay(pool, ordered=ordered)
    claim = await outbox.find_unpublished(batch_max=100)
    held = {row["id"] for row in rows if ordered and row["ordering_key"] == bad["ordering_key"]}
    held = {row["id"] for row in rows if row["id"] in held and row["seq"] > bad["seq"]}
    assert [id_ for id_, _ in claim.refused] == [bad["id"]]
    assert {event.id for event in claim.events} == {row["id"] for row in rows} - held - {bad["id"]}
    assert len(held) == (3 if ordered else 0)
    again = await outbox.find_unpublished(batch_max=100)
    assert (again.events, again.refused) == ((), ())
    await outbox.mark_published_batch(claim, published(claim))
    await pool.execute("DROP FUNCTION refuse CASCADE")
    rest = await relay(pool, ordered=ordered).find_unpublished(batch_max=100)
    assert {event.id for event in rest.events} == held | {bad["id"]}


@pytest.mark.fault("D16")
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_lease_that_cannot_be_ended_keeps_no_other_from_its_end(
    pool: asyncpg.Pool, ordered: bool
) -> None:
    await add(pool, 20, keys=20 if ordered else 0)
    outbox = relay(pool, ordered=ordered, lease_seconds=0.0)
    claim = await outbox.find_unpublished(batch_max=100)
    assert len(claim.events) == 20
    bad = claim.events[5]
    await refuse(pool, bad.id, "TRIGGER refuse BEFORE")
    with pytest.raises(RowsRefusedError, match=f"seq {bad.seq}: .*not this one"):
        await outbox.reap()
    claimed = await pool.fetch("SELECT id::text FROM outbox_events WHERE state = 'CLAIMED'")
    assert [row["id"] for row in claimed] == [bad.id]
    await pool.execute("DROP FUNCTION refuse CASCADE")
    assert (await outbox.reap()).leases == 1


async def test_a_trigger_that_refuses_every_claim_is_reported_with_its_error(pool: asyncpg.Pool) -> None:
    await add(pool, 40)
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'none'; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(RowsRefusedError, match="none"):
        await relay(pool).find_unpublished(batch_max=100)


@pytest.mark.clause("event-model-14")
async def test_a_partition_key_delays_no_event(pool: asyncpg.Pool) -> None:
    for _ in range(2):
        await add_event(pool, partition_key="tenant-7")
    first = await relay(pool).find_unpublished(batch_max=1)
    await relay(pool).increment_attempts_batch(
        first, [Postponed(first.events[0], "no answer", 60.0, failed=False)]
    )
    second = await relay(pool).find_unpublished(batch_max=1)
    assert first.events[0].seq < second.events[0].seq


@pytest.mark.parametrize("name", ["claim", "claim_ordered"])
async def test_a_claim_returns_the_fields_of_an_event_in_their_order(pool: asyncpg.Pool, name: str) -> None:
    async with pool.acquire() as connection:
        prepared = await connection.prepare(load_queries("outbox")[name])
        names = [attribute.name for attribute in prepared.get_attributes()]
    assert names[names.index("id") :] == list(OutboxEvent._fields)


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_time_of_a_claim_is_the_databases(pool: asyncpg.Pool, ordered: bool) -> None:
    await add(pool, 1, keys=int(ordered))
    claim = await relay(pool, ordered=ordered).find_unpublished(batch_max=1)
    assert claim.at == await pool.fetchval("SELECT claimed_at FROM outbox_events")


async def test_an_event_that_somebody_made_due_at_minus_infinity_has_waited_since_its_claim(
    pool: asyncpg.Pool,
) -> None:
    await add(pool, 3)
    await pool.execute("UPDATE outbox_events SET available_at = '-infinity' WHERE seq = 2")
    claim = await relay(pool).find_unpublished(batch_max=3)
    assert [event.age_seconds < 60 for event in claim.events] == [True] * 3


@pytest.mark.clause("QRY-050")
async def test_services_share_a_database_through_schemas(database: Database) -> None:
    await migrate(database.dsn, schema="other")
    async with opened(database) as here, opened(database, schema="other") as there:
        await add(here, 1, keys=1)
        assert (await relay(there, ordered=True).find_unpublished(batch_max=9)).events == ()
        assert len((await relay(here, ordered=True).find_unpublished(batch_max=9)).events) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_commits_behind_the_start_of_a_look_for_leases_is_no_trace_of_a_clock_set_back(
    pool: asyncpg.Pool, key: str | None
) -> None:
    """As behind a pooler: the transaction begins some round trips before its statement."""
    reap = load_queries("outbox")["reap_ordered" if key else "reap"]
    async with pool.acquire() as looking, looking.transaction():
        await looking.execute("SELECT now()")
        await add_event(pool, ordering_key=key)
        retried = await add_event(pool, ordering_key=key and "other")
        lane = relay(pool, ordered=key is not None)
        claim = await lane.find_unpublished(batch_max=9)
        await lane.increment_attempts_batch(
            claim,
            [Postponed(one, "no", 60.0, failed=False) for one in claim.events if one.id == str(retried)],
        )
        await lane.release(claim, [Released(one) for one in claim.events if one.id != str(retried)])
        [row] = await looking.fetch(reap, 60.0, 100, 5, 100, *START, *START, 60.0, [])
    assert (row["leases"], row["brought_forward"]) == (0, 0)

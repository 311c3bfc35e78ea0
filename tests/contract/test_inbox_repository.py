"""The InboxRepository contract (PORT-047-002), over the in-memory twin and over PostgreSQL."""

import asyncio
import hashlib
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg
import pytest

from sea_mq_worker.adapters.memory.inbox import InboxRow, InboxTable, InMemoryInbox
from sea_mq_worker.adapters.postgres.connection import INBOX_HINTS, connect_pool
from sea_mq_worker.adapters.postgres.inbox import PostgresInboxAdapter
from sea_mq_worker.domain.receipts import (
    Busy,
    Conflict,
    Done,
    FailedHandling,
    InboxEntry,
    Lease,
    Receipt,
    Run,
)
from sea_mq_worker.ports.inbox import InboxRepository
from tests.support.servers import Database

LEASE = 60.0
SUBJECT = "vibespro.event.vibe_created.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the store has of a message."""

    attempts: int
    last_error: str | None
    processed: bool
    leased: bool
    reason: str | None
    dead_lettered: bool
    consumer: str


class World(Protocol):
    def inbox(self, worker: str = "w1") -> InboxRepository: ...

    async def row(self, message_id: str) -> Row: ...

    async def write_by_hand(self, message_id: str) -> None:
        """Insert a row with SDS-047's required columns alone."""
        ...

    async def pass_time(self, seconds: float) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self._now = 1000.0
        self._table = InboxTable(lambda: self._now)

    def inbox(self, worker: str = "w1") -> InboxRepository:
        return InMemoryInbox(table=self._table, worker=worker)

    async def row(self, message_id: str) -> Row:
        row = self._table.rows[message_id]
        return Row(
            attempts=row.attempts,
            last_error=row.last_error,
            processed=row.processed_at is not None,
            leased=row.locked_by is not None,
            reason=row.dead_letter_reason,
            dead_lettered=row.dead_lettered_at is not None,
            consumer=row.entry.consumer,
        )

    async def write_by_hand(self, message_id: str) -> None:
        self._table.rows[message_id] = InboxRow(
            entry=entry(message_id), received_at=self._now, content_hash=None
        )

    async def pass_time(self, seconds: float) -> None:
        self._now += seconds


class PostgresWorld:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool

    def inbox(self, worker: str = "w1") -> InboxRepository:
        return PostgresInboxAdapter(pool=self.pool, worker=worker)

    async def row(self, message_id: str) -> Row:
        row = await self.pool.fetchrow("SELECT * FROM inbox_messages WHERE message_id = $1", message_id)
        assert (row["locked_by"] is None) == (row["locked_until"] is None)
        return Row(
            attempts=row["attempts"],
            last_error=row["last_error"],
            processed=row["processed_at"] is not None,
            leased=row["locked_by"] is not None,
            reason=row["dead_letter_reason"],
            dead_lettered=row["dead_lettered_at"] is not None,
            consumer=row["consumer"],
        )

    async def write_by_hand(self, message_id: str) -> None:
        await self.pool.execute(
            "INSERT INTO inbox_messages (message_id, subject) VALUES ($1, $2)", message_id, SUBJECT
        )

    async def pass_time(self, seconds: float) -> None:
        """Move every row into the past, which is the same to it."""
        moved = ("received_at", "processed_at", "locked_until", "dead_letter_begun_at", "dead_lettered_at")
        changes = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in moved)
        await self.pool.execute(f"UPDATE inbox_messages SET {changes}", seconds)


@pytest.fixture
def memory_world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
async def postgres_world(database: Database) -> AsyncIterator[PostgresWorld]:
    pool = await connect_pool(
        database.dsn,
        schema="public",
        size_max=6,
        application_name="test",
        statement_timeout_seconds=10,
        connect_timeout_seconds=10,
        hints=INBOX_HINTS,
    )
    try:
        yield PostgresWorld(pool)
    finally:
        await pool.close()


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made


def entry(message_id: str | None = None, *, body: bytes = b"{}", **given: Any) -> InboxEntry:
    defaults: dict[str, Any] = {
        "message_id": message_id or str(uuid.uuid4()),
        "subject": SUBJECT,
        "consumer": "sea__from_vibespro",
        "stream": "VIBESPRO_EVENTS",
        "stream_seq": 7,
        "content_hash": hashlib.sha256(body).digest(),
    }
    return InboxEntry(**(defaults | given))


async def insert(inbox: InboxRepository, *entries: InboxEntry) -> list[Receipt]:
    return list(await inbox.insert(entries, lease_seconds=LEASE))


async def lease(inbox: InboxRepository, one: InboxEntry) -> Run:
    [receipt] = await insert(inbox, one)
    assert isinstance(receipt, Run)
    return receipt


async def dead_letter(inbox: InboxRepository, run: Run) -> None:
    assert await inbox.begin_dead_letter(run.lease, reason="REJECTED", detail="422")
    assert await inbox.mark_dead_lettered([run.lease])


def kinds(receipts: list[Receipt]) -> list[type]:
    return [type(receipt) for receipt in receipts]


# --- receiving


@pytest.mark.clause("CMD-051")
async def test_new_messages_are_leased_and_their_attempt_counted(world: World) -> None:
    first, second = entry(), entry()

    one, two = await insert(world.inbox(), first, second)

    assert isinstance(one, Run)
    assert isinstance(two, Run)
    assert (one.lease.message_id, two.lease.message_id) == (first.message_id, second.message_id)
    assert (one.attempts, one.dead_letter_begun_seconds_ago) == (1, 0.0)
    assert await world.row(first.message_id) == Row(
        attempts=1, last_error=None, processed=False, leased=True, reason=None, dead_lettered=False,
        consumer="sea__from_vibespro",
    )  # fmt: skip


async def test_an_empty_batch_has_no_receipts(world: World) -> None:
    assert await insert(world.inbox()) == []


@pytest.mark.clause("CMD-051: on a duplicate, skip processing")
async def test_a_processed_message_is_never_handled_again(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    assert await inbox.mark_processed([run.lease]) == {one.message_id}

    await world.pass_time(10 * LEASE)

    assert await insert(inbox, one) == [Done()]
    row = await world.row(one.message_id)
    assert (row.processed, row.leased, row.attempts) == (True, False, 1)


@pytest.mark.clause("CMD-051: a row that is not processed is no duplicate to skip")
async def test_a_message_whose_worker_died_is_handled_again_once_its_lease_is_over(world: World) -> None:
    one = entry()
    await lease(world.inbox("died"), one)

    assert await insert(world.inbox("heir"), one) == [Busy()]
    await world.pass_time(LEASE + 1)
    again = await lease(world.inbox("heir"), one)

    assert again.attempts == 2


async def test_one_worker_does_not_take_its_own_message_twice(world: World) -> None:
    inbox, one = world.inbox(), entry()
    await lease(inbox, one)

    assert await insert(inbox, one) == [Busy()]


async def test_receipts_keep_the_order_of_their_entries(world: World) -> None:
    inbox = world.inbox()
    done, busy, conflicting = entry(), entry(), entry()
    run = await lease(inbox, done)
    await inbox.mark_processed([run.lease])
    await insert(inbox, busy, conflicting)
    other = entry(conflicting.message_id, body=b"[]")

    receipts = await insert(inbox, entry("f" * 8 + "-ffff" * 4 + "f" * 8), other, done, busy, entry())

    assert kinds(receipts) == [Run, Conflict, Done, Busy, Run]


@pytest.mark.clause("POL-047-003")
async def test_of_equal_ids_in_a_batch_the_first_is_leased(world: World) -> None:
    one, processed = entry(), entry()
    inbox = world.inbox()
    await inbox.mark_processed([(await lease(inbox, processed)).lease])

    receipts = await insert(inbox, one, one, entry(one.message_id, body=b"[]"), processed, processed)

    assert kinds(receipts) == [Run, Busy, Conflict, Done, Done]
    assert (await world.row(one.message_id)).attempts == 1


@pytest.mark.parametrize("ending", ["processed", "dead-lettered", "leased", "free"])
async def test_a_known_id_with_another_content_is_a_conflict_and_changes_nothing(
    world: World, ending: str
) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    if ending == "processed":
        await inbox.mark_processed([run.lease])
    elif ending == "dead-lettered":
        await dead_letter(inbox, run)
    elif ending == "free":
        await inbox.record_error([FailedHandling(lease=run.lease, error="503")])
    before = await world.row(one.message_id)

    other = entry(one.message_id, body=b"[]")
    receipts = await insert(inbox, other, one)

    assert receipts == [Conflict(), Busy()]
    assert await world.row(one.message_id) == before


async def test_a_row_written_by_hand_takes_the_first_content_that_comes(world: World) -> None:
    inbox, one = world.inbox(), entry()
    await world.write_by_hand(one.message_id)

    run = await lease(inbox, one)

    assert run.attempts == 1
    assert (await world.row(one.message_id)).consumer == "sea__from_vibespro"
    assert await insert(inbox, entry(one.message_id, body=b"[]")) == [Conflict()]


async def test_a_message_that_comes_by_two_consumers_is_one_message(world: World) -> None:
    inbox, one = world.inbox(), entry()
    await lease(inbox, one)

    assert await insert(inbox, entry(one.message_id, consumer="other", stream="O", stream_seq=1)) == [Busy()]
    assert (await world.row(one.message_id)).consumer == "sea__from_vibespro"


# --- leases


async def test_an_extended_lease_keeps_others_away(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    await world.pass_time(LEASE - 1)
    assert await inbox.extend([run.lease], lease_seconds=LEASE) == {one.message_id}
    await world.pass_time(LEASE - 1)

    assert await insert(world.inbox("w2"), one) == [Busy()]


async def test_extending_never_shortens_a_lease(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    await inbox.extend([run.lease], lease_seconds=1)
    await world.pass_time(2)

    assert await insert(world.inbox("w2"), one) == [Busy()]


async def test_a_lease_that_ran_out_still_counts_while_nobody_else_has_taken_it(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await world.pass_time(10 * LEASE)

    assert await inbox.mark_processed([run.lease]) == {one.message_id}


@pytest.mark.parametrize("by", ["w1", "w2"])
async def test_who_was_too_slow_changes_nothing(world: World, by: str) -> None:
    """Also where the same worker took the message again: the token is the insert's, not the worker's."""
    slow, one, other = world.inbox("w1"), entry(), entry()
    late = (await lease(slow, one)).lease
    await world.pass_time(LEASE + 1)
    await lease(world.inbox(by), one)
    before = await world.row(one.message_id)
    own = (await lease(slow, other)).lease

    assert await slow.extend([late, own], lease_seconds=LEASE) == {other.message_id}
    assert await slow.record_error([FailedHandling(lease=late, error="late")]) == frozenset()
    assert await slow.begin_dead_letter(late, reason="REJECTED", detail="") == frozenset()
    assert await slow.mark_dead_lettered([late]) == frozenset()
    assert await slow.mark_processed([late, own]) == {other.message_id}
    assert await world.row(one.message_id) == before


@pytest.mark.parametrize("ending", ["processed", "dead-lettered"])
async def test_a_settled_message_is_settled_for_good(world: World, ending: str) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    if ending == "processed":
        await inbox.mark_processed([run.lease])
    else:
        await dead_letter(inbox, run)
    before = await world.row(one.message_id)

    assert await inbox.mark_processed([run.lease]) == frozenset()
    assert await inbox.record_error([FailedHandling(lease=run.lease, error="e")]) == frozenset()
    assert await inbox.begin_dead_letter(run.lease, reason="R", detail="") == frozenset()
    assert await inbox.mark_dead_lettered([run.lease]) == frozenset()
    assert await inbox.extend([run.lease], lease_seconds=LEASE) == frozenset()
    assert await world.row(one.message_id) == before


async def test_nothing_is_written_for_no_lease_or_an_unknown_message(world: World) -> None:
    inbox = world.inbox()
    unknown = Lease(message_id=str(uuid.uuid4()), token="nobody's")

    assert await inbox.mark_processed([]) == frozenset()
    assert await inbox.record_error([]) == frozenset()
    assert await inbox.mark_processed([unknown]) == frozenset()


# --- handlings without an effect


@pytest.mark.clause("PORT-047-002: recordError")
async def test_an_error_frees_the_message_and_spends_its_attempt(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.record_error([FailedHandling(lease=run.lease, error="503 " + "x" * 3000)])

    row = await world.row(one.message_id)
    assert (row.attempts, row.leased, row.processed) == (1, False, False)
    assert row.last_error == "503 " + "x" * 1996
    assert (await lease(world.inbox("w2"), one)).attempts == 2


async def test_what_is_not_counted_gives_its_attempt_back(world: World) -> None:
    inbox, one, two = world.inbox(), entry(), entry()
    runs = [await lease(inbox, one), await lease(inbox, two)]

    await inbox.record_error(
        [FailedHandling(lease=run.lease, error=str(n), counted=n == 1) for n, run in enumerate(runs)]
    )

    rows = [await world.row(message.message_id) for message in (one, two)]
    assert [(row.attempts, row.last_error) for row in rows] == [(0, "0"), (1, "1")]


async def test_success_clears_the_error(world: World) -> None:
    inbox, one = world.inbox(), entry()
    first = await lease(inbox, one)
    await inbox.record_error([FailedHandling(lease=first.lease, error="503")])

    await inbox.mark_processed([(await lease(inbox, one)).lease])

    assert (await world.row(one.message_id)).last_error is None


# --- dead letters


@pytest.mark.clause("CMD-052")
async def test_a_dead_lettered_message_is_done(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.begin_dead_letter(run.lease, reason="REJECTED", detail="422") == {one.message_id}
    assert await insert(world.inbox("w2"), one) == [Busy()]
    assert await inbox.mark_dead_lettered([run.lease]) == {one.message_id}

    assert await insert(inbox, one) == [Done()]
    assert await world.row(one.message_id) == Row(
        attempts=1, last_error="REJECTED: 422", processed=False, leased=False, reason="REJECTED",
        dead_lettered=True, consumer="sea__from_vibespro",
    )  # fmt: skip


@pytest.mark.clause("CMD-052: no duplicate in the DLQ")
async def test_an_unfinished_dead_letter_is_told_to_the_next_with_its_earliest_time(world: World) -> None:
    inbox, one = world.inbox(), entry()
    for _ in range(2):
        run = await lease(inbox, one)
        await inbox.begin_dead_letter(run.lease, reason="REJECTED", detail="422")
        await world.pass_time(LEASE + 40)

    third = await lease(inbox, one)

    assert third.attempts == 3
    assert third.dead_letter_begun_seconds_ago == pytest.approx(2 * (LEASE + 40), abs=5)


async def test_what_was_not_begun_is_not_dead_lettered(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.mark_dead_lettered([run.lease]) == frozenset()
    assert (await world.row(one.message_id)).leased


async def test_a_message_may_still_be_processed_after_a_dead_letter_was_begun(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await inbox.begin_dead_letter(run.lease, reason="REJECTED", detail="422")

    assert await inbox.mark_processed([run.lease]) == {one.message_id}


# --- PostgreSQL alone


async def test_a_row_of_an_open_transaction_is_busy_once_it_commits(postgres_world: PostgresWorld) -> None:
    one = entry()
    async with postgres_world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO inbox_messages (message_id, subject, locked_until, locked_by)"
            " VALUES ($1, $2, now() + interval '1 hour', 'other')",
            one.message_id, SUBJECT,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(insert(postgres_world.inbox(), one))
            await _blocked(postgres_world.pool, waiting)
            await transaction.commit()

    assert waiting.result() == [Busy()]


async def _blocked(pool: asyncpg.Pool, task: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(5):
        while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not task.done()


async def test_text_from_outside_that_postgresql_cannot_store_is_stored_nearly(
    postgres_world: PostgresWorld,
) -> None:
    inbox, one = postgres_world.inbox(), entry(subject="a\0b.event.c.v1")
    run = await lease(inbox, one)

    await inbox.record_error([FailedHandling(lease=run.lease, error="bad \0 and \ud800")])

    assert (await postgres_world.row(one.message_id)).last_error == "bad \ufffd and ?"


@pytest.mark.clause("CMD-051: idempotent by message_id")
async def test_racing_workers_handle_each_message_once_and_never_two_at_a_time(
    postgres_world: PostgresWorld,
) -> None:
    """Six workers, overlapping batches, one handling in ten abandoned as if the worker had died."""
    messages = [entry() for _ in range(300)]
    left = {one.message_id for one in messages}
    holders: Counter[str] = Counter()
    processed: Counter[str] = Counter()

    async def work(seed: int) -> None:
        draw = random.Random(seed)
        inbox = postgres_world.inbox(f"w{seed}")
        while left:
            batch = draw.choices(messages, k=20)
            runs = [run for run in await insert(inbox, *batch) if isinstance(run, Run)]
            holders.update(run.lease.message_id for run in runs)
            assert holders.most_common(1)[0][1] <= 1
            await asyncio.sleep(0)
            abandoned = [run.lease for run in runs if draw.random() < 0.1]
            kept = [run.lease for run in runs if run.lease not in abandoned]
            holders.subtract(run.lease.message_id for run in runs)
            await _let_leases_end(postgres_world.pool, abandoned)
            draw.shuffle(kept)
            done = await inbox.mark_processed(kept)
            assert done == {one.message_id for one in kept}
            processed.update(done)
            left.difference_update(done)

    async with asyncio.TaskGroup() as group:
        for seed in range(6):
            group.create_task(work(seed))

    assert processed == Counter({one.message_id: 1 for one in messages})


async def _let_leases_end(pool: asyncpg.Pool, leases: list[Lease]) -> None:
    ids = sorted(one.message_id for one in leases)
    await pool.execute(
        "UPDATE inbox_messages SET locked_until = now() - interval '1 second' WHERE message_id = ANY($1)", ids
    )

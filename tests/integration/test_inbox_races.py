"""Only PostgreSQL's inbox has these cases: other transactions, racing workers, text it cannot store."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.inbox.message import GivenBack, Lease, LeasedElsewhere
from sea_mq_worker.postgres.pool import WORKER_HINTS
from tests.integration.test_partitions import generic_plan
from tests.support.inboxes import SUBJECT, PostgresWorld, entry, insert, lease
from tests.support.proxy import proxied
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.waiting import eventually

_KNOWN = "SELECT EXISTS (SELECT FROM inbox_messages WHERE message_id = $1)"


@pytest.fixture
async def world(database: Database) -> AsyncIterator[PostgresWorld]:
    async with opened(database, hints=WORKER_HINTS) as pool:
        yield PostgresWorld(pool)


async def test_a_row_of_an_open_transaction_is_busy_once_it_commits(world: PostgresWorld) -> None:
    one = entry()
    async with world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO inbox_messages (message_id, subject, locked_until, locked_by)"
            " VALUES ($1, $2, now() + interval '1 minute', 'other')",
            one.message_id, SUBJECT,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(insert(world.inbox(), one))
            await _blocked(world.pool, waiting)
            await transaction.commit()

    assert waiting.result() == [LeasedElsewhere()]


async def _blocked(pool: asyncpg.Pool, task: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(30):
        while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not task.done()


async def test_text_from_outside_that_postgresql_cannot_store_is_stored_nearly(world: PostgresWorld) -> None:
    inbox, one = world.inbox(), entry(subject="a\0b.event.c.v1")
    run = await lease(inbox, one)

    await inbox.record_error_batch([(run, GivenBack("bad \0 and \ud800", counted=True))])

    assert (await world.row(one.message_id)).last_error == "bad \ufffd and ?"


@pytest.mark.clause("terms-07", "CMD-051-idempotency")
async def test_racing_workers_handle_each_message_once_and_never_two_at_a_time(world: PostgresWorld) -> None:
    """Six workers, overlapping batches, one handling in ten abandoned as if the worker had died."""
    messages = [entry() for _ in range(300)]
    left = {one.message_id for one in messages}
    holders: Counter[str] = Counter()
    processed: Counter[str] = Counter()

    async def work(seed: int) -> None:
        draw = random.Random(seed)
        inbox = world.inbox(f"w{seed}")
        while left:
            batch = draw.choices(messages, k=20)
            runs = [run for run in await insert(inbox, *batch) if isinstance(run, Lease)]
            holders.update(run.message_id for run in runs)
            assert holders.most_common(1)[0][1] <= 1
            await asyncio.sleep(0)
            abandoned = [run for run in runs if draw.random() < 0.1]
            kept = [run for run in runs if run not in abandoned]
            holders.subtract(run.message_id for run in runs)
            await _let_leases_end(world.pool, abandoned)
            draw.shuffle(kept)
            done = await inbox.mark_processed_batch(kept)
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


@pytest.mark.parametrize(
    "name", ["extend", "mark_processed", "record_error", "begin_dead_letter", "mark_dead_lettered"]
)
async def test_a_statement_over_leases_reads_nothing_but_their_rows(name: str, database: Database) -> None:
    """Not what else is unprocessed, the dead-lettered included, although that index is small as a rule."""
    plan = "\n".join(await generic_plan(database, f"inbox.{name}"))
    assert 'Index Scan using "DUPLICATE_MESSAGE"' in plan
    assert "idx_inbox" not in plan


async def test_a_batch_whose_answer_was_lost_is_leased_again_and_counted_once(
    world: PostgresWorld, database: Database
) -> None:
    """The rows are there, and their worker does not know it."""
    one, two = entry(), entry()
    async with (
        proxied(database.dsn) as (proxy, dsn),
        opened(replace(database, dsn=dsn), hints=WORKER_HINTS) as pool,
    ):
        worker = PostgresWorld(pool).inbox()
        await lease(worker, entry())  # the statement is known to the connection from now on
        proxy.drop_to_client()
        lost = asyncio.create_task(insert(worker, one, two))
        await eventually(lambda: world.pool.fetchval(_KNOWN, one.message_id), what="the batch is recorded")
        proxy.cut()
        with pytest.raises(StoreUnavailableError):
            await lost
        proxy.heal()
        receipts = await insert(worker, one, two)

    assert [receipt.attempts for receipt in receipts if isinstance(receipt, Lease)] == [1, 1]


@pytest.mark.clause("POL-047-004")
async def test_a_message_received_before_the_clock_was_set_back_is_processed(world: PostgresWorld) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await world.pool.execute("UPDATE inbox_messages SET received_at = now() + interval '1 hour'")

    assert await inbox.mark_processed_batch([run]) == {one.message_id}
    assert await world.pool.fetchval("SELECT processed_at = received_at FROM inbox_messages")

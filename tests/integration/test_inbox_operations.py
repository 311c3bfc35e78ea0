"""Operators' queries and changes of the inbox, and pruning of both tables, on PostgreSQL."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.records import InboxFilter, InboxState
from sea_mq_worker.operators.tables import PostgresOperations
from tests.support.inboxes import entry
from tests.support.rows import add_message

WHO: dict[str, Any] = {"actor": "ann", "reason": "the handler is fixed"}


def ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


async def listed(operations: PostgresOperations, **given: Any) -> list[UUID]:
    return [message.message_id for message in await operations.list_inbox(InboxFilter(**given))]


# --- inspection


async def test_messages_are_found_by_each_part_of_a_filter(
    operations: PostgresOperations, pool: asyncpg.Pool
) -> None:
    waiting = await add_message(pool, received_at=ago(4))
    dead = await add_message(pool, received_at=ago(3), dead=True)
    processed = await add_message(pool, received_at=ago(2), processed=True)
    handling = await add_message(pool, received_at=ago(1))
    inbox = PostgresInboxAdapter(pool=pool, worker="w")
    await inbox.insert_batch([entry(str(handling))], lease_seconds=60)

    assert await listed(operations) == [handling, processed, dead, waiting]
    for state, message_id in zip(InboxState, (waiting, handling, processed, dead), strict=True):
        assert await listed(operations, states=(state,)) == [message_id]
    assert await listed(operations, ids=(dead,)) == [dead]
    assert await listed(operations, consumer="other") == await listed(operations, subject="other") == []
    assert await listed(operations, since=ago(2.5)) == [handling, processed]
    assert await listed(operations, until=ago(2.5)) == [dead, waiting]
    assert await listed(operations, error_like="rejected") == [dead]
    assert await listed(operations, limit=2) == [handling, processed]
    assert await listed(operations, limit=2, before_id=processed) == [dead, waiting]


# --- pruning


async def test_only_processed_and_closed_messages_older_than_asked_are_pruned(
    operations: PostgresOperations, pool: asyncpg.Pool
) -> None:
    await add_message(pool, received_at=ago(48), processed=True)
    closed = await add_message(pool, received_at=ago(48), dead=True)
    await pool.execute(
        "UPDATE inbox_messages SET dead_letter_reason = 'CLOSED' WHERE message_id = $1", closed
    )
    kept = [
        await add_message(pool, received_at=ago(1), processed=True),
        await add_message(pool, received_at=ago(48), dead=True),
        await add_message(pool, received_at=ago(48)),
    ]

    assert (await operations.prune("inbox", ago(24), **WHO)).deleted == 2

    assert {row["message_id"] for row in await pool.fetch("SELECT * FROM inbox_messages")} == set(kept)


async def test_pruning_reads_range_after_range_of_pages_and_nothing_else(
    operations: PostgresOperations, pool: asyncpg.Pool
) -> None:
    await pool.execute("ALTER TABLE inbox_messages ALTER subject SET STORAGE PLAIN")
    await pool.execute(
        "INSERT INTO inbox_messages (message_id, subject, received_at, processed_at)"
        " SELECT gen_random_uuid(), repeat('s', 5000) || n, now() - interval '1 hour', now()"
        " FROM generate_series(1, 1300) n"
    )
    steps: list[tuple[int, int, int]] = []
    plan = await pool.fetch(f"EXPLAIN {operations.pruning._sql['inbox']}", 0, 500, ago(0), 1)
    assert any("Tid Range Scan" in row[0] for row in plan)

    soon = datetime.now(UTC) + timedelta(days=1)
    turns = iter([True, False])
    part = await operations.pruning.count("inbox", soon, should_continue=lambda: next(turns))
    assert (part.pages, part.pages < part.pages_of) == (500, True)
    assert (await operations.pruning.count("inbox", soon, should_continue=lambda: True)).count == 1300
    first = (await operations.prune("inbox", soon, **WHO, cap=1)).deleted
    assert 1 <= first == part.count

    rest = await operations.prune("inbox", soon, **WHO, on_progress=lambda *step: steps.append(step))

    assert rest.deleted == 1300 - first
    assert [done for done, _, _ in steps[:2]] == [500, 1000]
    assert steps[-1][0] == steps[-1][1]
    assert (await operations.audit(limit=1))[0].affected == rest.deleted

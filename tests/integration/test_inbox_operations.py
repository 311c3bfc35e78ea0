"""Operators' queries and changes of the inbox, and pruning of both tables, on PostgreSQL."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.prune import count_prunable, prune
from sea_mq_worker.operators.records import InboxFilter, InboxState
from sea_mq_worker.operators.tables import SQL, audit, inbox_page
from tests.support.inboxes import entry
from tests.support.rows import add_message

WHO: dict[str, Any] = {"actor": "ann", "reason": "the handler is fixed"}


def ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


async def listed(pool: asyncpg.Pool, **given: Any) -> list[UUID]:
    return [
        message.message_id for message in (await inbox_page(pool, InboxFilter(**given), read_max=None)).rows
    ]


# --- inspection


async def test_messages_are_found_by_each_part_of_a_filter(pool: asyncpg.Pool) -> None:
    waiting = await add_message(pool, received_at=ago(4))
    dead = await add_message(pool, received_at=ago(3), dead=True)
    processed = await add_message(pool, received_at=ago(2), processed=True)
    handling = await add_message(pool, received_at=ago(1))
    inbox = PostgresInboxAdapter(pool=pool, worker="w")
    await inbox.insert_batch([entry(str(handling))], lease_seconds=60)

    assert await listed(pool) == [handling, processed, dead, waiting]
    for state, message_id in zip(InboxState, (waiting, handling, processed, dead), strict=True):
        assert await listed(pool, states=(state,)) == [message_id]
    assert await listed(pool, ids=(dead,)) == [dead]
    assert await listed(pool, consumer="other") == await listed(pool, subject="other") == []
    assert await listed(pool, since=ago(2.5)) == [handling, processed]
    assert await listed(pool, until=ago(2.5)) == [dead, waiting]
    assert await listed(pool, error_like="rejected") == [dead]
    assert await listed(pool, limit=2) == [handling, processed]
    assert await listed(pool, limit=2, before_id=processed) == [dead, waiting]


# --- pruning


async def test_only_processed_and_closed_messages_older_than_asked_are_pruned(pool: asyncpg.Pool) -> None:
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

    assert (await prune(pool, "inbox", ago(24), **WHO)).deleted == 2

    assert {row["message_id"] for row in await pool.fetch("SELECT * FROM inbox_messages")} == set(kept)


async def test_pruning_reads_range_after_range_of_pages_and_nothing_else(pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE inbox_messages ALTER subject SET STORAGE PLAIN")
    await pool.execute(
        "INSERT INTO inbox_messages (message_id, subject, received_at, processed_at)"
        " SELECT gen_random_uuid(), repeat('s', 5000) || n, now() - interval '1 hour', now()"
        " FROM generate_series(1, 1300) n"
    )
    steps: list[tuple[int, int, int]] = []
    plan = await pool.fetch(f"EXPLAIN {SQL['prune_inbox'].sql}", 0, 500, ago(0), 1)
    assert any("Tid Range Scan" in row[0] for row in plan)

    soon = datetime.now(UTC) + timedelta(days=1)
    turns = iter([True, False])
    part = await count_prunable(pool, "inbox", soon, should_continue=lambda: next(turns))
    assert (part.pages, part.pages < part.pages_of) == (500, True)
    assert (await count_prunable(pool, "inbox", soon, should_continue=lambda: True)).count == 1300
    first = (await prune(pool, "inbox", soon, **WHO, cap=1)).deleted
    assert 1 <= first == part.count

    rest = await prune(pool, "inbox", soon, **WHO, on_progress=lambda *step: steps.append(step))

    assert rest.deleted == 1300 - first
    assert [done for done, _, _ in steps[:2]] == [500, 1000]
    assert steps[-1][0] == steps[-1][1]
    assert (await audit(pool, limit=1))[0].affected == rest.deleted

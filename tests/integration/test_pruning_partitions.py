"""Pruning an outbox in partitions: whole ones where all of their events may go, row by row elsewhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.operators.prune import PruneResult, count_prunable, prune
from sea_mq_worker.operators.tables import audit
from sea_mq_worker.postgres.partitions import DroppedPartition, KeptPartition
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.support.partitions import drop, id_of_day, partition_outbox, past_partition
from tests.support.rows import add_event, opened
from tests.support.servers import Database

WHO: dict[str, Any] = {"actor": "ann", "reason": "monthly"}


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """A pool to an outbox in partitions, whose rows may have a past."""
    await partition_outbox(database.dsn)
    async with opened(database, hints=OPERATOR_HINTS) as made:
        yield made


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


async def published(pool: asyncpg.Pool, *, days_ago: int, of_day: int | None = None) -> UUID:
    """Add an event published some days ago, with an id of that day unless another is given."""
    event = id_of_day(days_ago if of_day is None else of_day)
    await add_event(pool, "PUBLISHED", id=event)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "UPDATE outbox_events SET published_at = $2 WHERE id = $1", event, ago(days_ago)
        )
    return event


async def held(pool: asyncpg.Pool) -> set[UUID]:
    return {row["id"] for row in await pool.fetch("SELECT id FROM outbox_events")}


@pytest.mark.clause("lifecycle-29")
async def test_a_partition_all_of_whose_events_may_go_is_dropped_and_the_others_lose_theirs(
    pool: asyncpg.Pool,
) -> None:
    whole = await past_partition(pool, days_ago=40)
    part = await past_partition(pool, days_ago=39)
    empty = await past_partition(pool, days_ago=38)
    for _ in range(3):
        await published(pool, days_ago=40)
    await published(pool, days_ago=39)
    published_late = await published(pool, days_ago=2, of_day=39)
    dead = id_of_day(39)
    await add_event(pool, "DEAD", id=dead)
    elsewhere = UUID("ffffffff-0000-4000-8000-000000000000")
    await add_event(pool, "PUBLISHED", id=elsewhere)
    kept = {published_late, dead, await add_event(pool, "PENDING")}
    reported: list[Any] = []
    steps: list[tuple[int, int, int]] = []

    counted = await count_prunable(pool, "outbox", ago(30), should_continue=lambda: True)
    pruned = await prune(
        pool,
        "outbox",
        ago(30),
        **WHO,
        on_progress=lambda *step: steps.append(step),
        on_partition=reported.append,
    )

    assert (counted.count, counted.partitions) == (4, [whole, empty])
    dropped = [DroppedPartition(name=whole, events=3), DroppedPartition(name=empty, events=0)]
    assert pruned == PruneResult(deleted=4, dropped=dropped)
    assert reported == [
        dropped[0],
        KeptPartition(name=part, reason="1 of its events are not published"),
        dropped[1],
    ]
    assert steps[-1] == (counted.pages_of, counted.pages_of, 4)
    assert await held(pool) == kept | {elsewhere}
    [action] = await audit(pool, limit=9)
    assert action.affected == 4
    assert json.loads(action.selection)["dropped"] == [whole, empty]
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert (await prune(pool, "outbox", soon, **WHO)).deleted == 2
    assert await held(pool) == kept - {published_late}


async def test_a_cap_drops_no_partition_that_holds_more(pool: asyncpg.Pool) -> None:
    small = await past_partition(pool, days_ago=40)
    large = await past_partition(pool, days_ago=39)
    await published(pool, days_ago=40)
    for _ in range(3):
        await published(pool, days_ago=39)

    pruned = await prune(pool, "outbox", ago(30), **WHO, cap=3)

    assert pruned.dropped == [DroppedPartition(name=small, events=1)]
    assert pruned.deleted == 4, "a range of pages is deleted whole"
    assert await pool.fetchval(f"SELECT count(*) FROM {large}") == 0


async def test_what_another_session_drops_meanwhile_is_passed_over(
    pool: asyncpg.Pool, database: Database
) -> None:
    await past_partition(pool, days_ago=40)
    other = await past_partition(pool, days_ago=39)
    await published(pool, days_ago=40)
    await published(pool, days_ago=39)

    async def drop() -> None:
        connection = await asyncpg.connect(database.dsn)
        await connection.execute(f"DROP TABLE IF EXISTS {other}")
        await connection.close()

    def drop_other(_told: object) -> None:
        with ThreadPoolExecutor() as elsewhere:
            elsewhere.submit(asyncio.run, drop()).result()

    pruned = await prune(pool, "outbox", ago(30), **WHO, on_partition=drop_other)

    assert pruned.deleted == 1


async def test_a_partition_goes_only_where_its_lock_shows_what_changed_before(
    pool: asyncpg.Pool, database: Database
) -> None:
    part = await past_partition(pool, days_ago=40)
    await published(pool, days_ago=40)
    await pool.execute(
        f"ALTER DATABASE {database.name} SET default_transaction_isolation = 'repeatable read'"
    )
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
        dropped, reason = await drop(connection, part, ago(30))
        assert (dropped, "must be read committed" in reason) == (False, True)
    await pool.expire_connections()

    pruned = await prune(pool, "outbox", ago(30), **WHO)

    assert pruned.dropped == [DroppedPartition(name=part, events=1)]

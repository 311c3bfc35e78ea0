"""The page's queries of the tables: reasons and counts, within bounds."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest

from sea_mq_worker.operators.changes import close
from sea_mq_worker.operators.records import DeadReason
from sea_mq_worker.operators.tables import BY_INDEX, SQL, dead_events, overview
from tests.support.rows import add_event, add_message, opened
from tests.support.servers import Database


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, hints=BY_INDEX) as made:
        yield made


async def test_reasons_are_counted_the_most_frequent_first_and_workers_by_their_sessions(
    pool: asyncpg.Pool, database: Database
) -> None:
    for error in ("too large", None, "too large", *map(str, range(8))):
        await add_event(pool, "DEAD", error=error)
    await add_event(pool, "PUBLISHED")
    await add_event(pool, error="failed once")
    for _ in range(2):
        await add_message(pool, dead=True)
    await close(pool, [await add_message(pool)], actor="ann", reason="lost")
    other = await asyncpg.connect(database.dsn, server_settings={"application_name": "upkeep"})
    found = await overview(pool, sessions="upkeep")
    await other.close()
    assert found.reasons["outbox"][0] == DeadReason(text="too large", count=2)
    assert len(found.reasons["outbox"]) == 5
    assert found.reasons["inbox"] == [DeadReason(text="REJECTED", count=2)]
    assert found.workers == 1


async def test_dead_events_are_listed_page_by_page_and_by_type_and_error(pool: asyncpg.Pool) -> None:
    dead = [await add_event(pool, "DEAD", error=f"too LARGE {n}", event_type=f"t{n % 2}") for n in range(5)]
    await add_event(pool)

    async def listed(**given: object) -> list[object]:
        filters = {"event_type": None, "error": None, "below": None, "limit": 10, **given}
        return [event.id for event in await dead_events(pool, **filters)]  # type: ignore[arg-type]

    assert await listed() == dead[::-1]
    assert await listed(event_type="t1") == [dead[3], dead[1]]
    assert await listed(error="large 4") == [dead[4]]
    assert await listed(limit=2) == [dead[4], dead[3]]
    last = (await dead_events(pool, event_type=None, error=None, below=None, limit=2))[-1]
    assert await listed(below=last.seq) == dead[2::-1]


async def test_no_sample_reads_through_what_is_published(pool: asyncpg.Pool) -> None:
    """The planner overrates how much is unpublished and dead where most of the unpublished are dead."""
    columns = "id, aggregate_type, aggregate_id, event_type, payload, state, published_at"
    row = "SELECT gen_random_uuid(), 'order', 'o', 't', '{}', $1, $2::timestamptz FROM generate_series(1, $3)"
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for state, published_at, count in (("PUBLISHED", datetime.now(UTC), 4000), ("DEAD", None, 2000)):
            insert = f"INSERT INTO outbox_events ({columns}) {row}"
            await connection.execute(insert, state, published_at, count)
    await pool.execute("VACUUM ANALYZE outbox_events")
    for statement, given in (
        ("overview", (100, 5, "upkeep")),
        ("dead_events", (None, None, None, 100, 10)),
        ("outbox_depth_capped", (100,)),
        ("inbox_depth_capped", (100,)),
    ):
        plan = "\n".join(row[0] for row in await pool.fetch(f"EXPLAIN {SQL[statement].sql}", *given))
        assert not re.search(r"Seq Scan on (outbox_events|inbox_messages)", plan), plan

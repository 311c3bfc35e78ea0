"""Comparison of PUBLISHED rows with their stream, by a bounded sample."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.nats.connection import api
from sea_mq_worker.outbox.maintenance import PublishedRow, PublishedRows, find_loss, published_rows
from tests.support.jetstream import SECOND, connected, create_stream, store
from tests.support.partitions import partition_outbox
from tests.support.servers import Database

PUBLISHED = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, state, published_at, stream, stream_seq)
SELECT gen_random_uuid(), 'order', n::text, 'order.created', '{}', 'PUBLISHED', now(), 'S', n
  FROM generate_series(1, $1::int) n
"""


async def publish(pool: asyncpg.Pool, count: int) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(PUBLISHED, count)


@pytest.mark.parametrize("in_partitions", [False, True])
async def test_the_greatest_sequence_of_a_stream_is_seen(
    pool: asyncpg.Pool, database: Database, in_partitions: bool
) -> None:
    if in_partitions:
        await partition_outbox(database.dsn)
    await publish(pool, 50)

    seen = await published_rows(pool, "S")

    assert (seen.greatest, seen.shared, len(seen.some)) == (50, 0, 3)
    assert await published_rows(pool, "OTHER") == PublishedRows(some=[])


async def test_the_latest_rows_of_a_large_table_are_among_those_that_are_read(pool: asyncpg.Pool) -> None:
    await publish(pool, 30_000)
    assert await pool.fetchval("SELECT pg_relation_size('outbox_events') / 8192") > 400, "all of it is read"

    assert (await published_rows(pool, "S")).greatest == 30_000


async def test_a_stream_that_was_rolled_back_and_went_on_is_known_by_sequences_that_rows_share(
    pool: asyncpg.Pool, nats_url: str, names: str
) -> None:
    await publish(pool, 10)
    await pool.execute("UPDATE outbox_events SET stream_seq = stream_seq - 3 WHERE seq > 6")
    rows = await published_rows(pool, "S")
    async with connected(nats_url) as connection:
        await create_stream(connection, names, f"{names}.>")
        for _ in range(7):
            await store(connection, f"{names}.made", b"{}", {})

        reported = await find_loss(connection, names, rows._replace(some=()))
        well = await find_loss(connection, names, PublishedRows(greatest=7))

    assert (rows.greatest, rows.shared) == (7, 3)
    assert reported.startswith("3 rows name a sequence that")
    assert well == ""


async def test_removed_messages_are_lost_where_no_limit_may_have_dropped_them(
    nats_url: str, names: str
) -> None:
    now = datetime.now(UTC)
    async with connected(nats_url) as connection:

        async def evidence(config: Mapping[str, Any], *, age: timedelta = timedelta(), keep: int = 1) -> str:
            await create_stream(connection, names, f"{names}.>", **config)
            for _ in range(3):
                await store(connection, f"{names}.made", b"{}", {})
            await api(connection, f"STREAM.PURGE.{names}", {"keep": keep})
            row = PublishedRow("e", 2, now - age)
            found = await find_loss(connection, names, PublishedRows(greatest=2, some=[row]))
            await api(connection, f"STREAM.DELETE.{names}")
            return found

        assert "begins at 3" in await evidence({})
        assert "begins at 4" in await evidence({"max_msgs": 10, "discard": "old"}, keep=0)
        day = {"max_age": 86_400 * SECOND, "duplicate_window": SECOND}
        assert await evidence(day | {"max_msgs": 10, "discard": "new"})
        assert not await evidence(day, age=timedelta(days=1))
        assert not await evidence({"max_msgs": 10, "discard": "old"})
        assert not await evidence({"max_bytes": 2**20, "discard": "old"})
        assert not await evidence({"max_msgs_per_subject": 5})
        assert not await evidence({"retention": "interest"})

"""The archive drops a partition of the outbox whole, and only what the lake has of it as it was."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition
from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult
from sea_mq_worker.pipeline.snapshot import read_outbox, snapshot
from sea_mq_worker.settings import Settings
from tests.pipeline.test_archive import DiedError, kept, run, table
from tests.support.partitions import id_of_day, partition_outbox, past_name, past_partition
from tests.support.rows import add_event, opened
from tests.support.servers import Database

A_PAGE_EACH = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, publish_attempts, state, published_at)
SELECT (left($1::text, 24) || lpad(to_hex(i), 12, '0'))::uuid, 'order', 'o', 'order.paid', p.payload, 1,
       'PUBLISHED', $2::timestamptz
  FROM generate_series(1, 300) i
 CROSS JOIN LATERAL (
       SELECT to_jsonb(string_agg(md5(i || '-' || n), '')) AS payload FROM generate_series(1, 55) n) p
"""


@pytest_asyncio.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """A pool to an outbox in partitions of past days, whose events may have a past."""
    await partition_outbox(database.dsn)
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        for days_ago in (9, 8, 7, 6):
            await past_partition(pool, days_ago=days_ago)
        await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
        yield pool


async def add(pool: asyncpg.Pool, state: str, *, days_ago: int) -> str:
    """Add an event of a day, published on it."""
    event = id_of_day(days_ago)
    await add_event(pool, state, id=event)
    at = datetime.now(UTC) - timedelta(days=days_ago)
    await pool.execute(
        "UPDATE outbox_events SET published_at = $2 WHERE id = $1 AND state = 'PUBLISHED'", event, at
    )
    return str(event)


def die_at(start: str) -> Callable[[str], None]:
    def die(progress: str) -> None:
        if progress.startswith(start):
            raise DiedError

    return die


async def test_a_partition_goes_whole_once_the_lake_has_all_of_it_wherever_a_run_dies(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path, database: Database
) -> None:
    lake = str(tmp_path / "lake")
    await pool.execute(A_PAGE_EACH, str(id_of_day(9)), datetime.now(UTC) - timedelta(days=9))
    for days_ago in (8, 8, 7, 7, 6):
        await add(pool, "PUBLISHED", days_ago=days_ago)
    changed = await add(pool, "PUBLISHED", days_ago=6)
    await add(pool, "DEAD", days_ago=7)
    recent = await add_event(pool, "PUBLISHED")
    before = await table(pool)
    with snapshot(settings) as held:
        rows = read_outbox(spark, held, columns=["id"], pages_per_partition=100).collect()
        read = [row["id"] for row in rows]
    assert sorted(read) == sorted(before), "each partition is read, and once"

    # in the lake by two batches, and not dropped yet
    with pytest.raises(DiedError):
        await run(spark, settings, lake, on_progress=die_at("batch 2"), batch_rows=1)
    assert (len(kept(spark, lake)), await table(pool)) == (300, before)

    # the next one is dropped, and the lake does not know yet
    dropped = str(DroppedPartition(name=past_name(8), events=2))
    with pytest.raises(DiedError):
        await run(spark, settings, lake, on_progress=die_at(dropped))
    assert (await table(pool)).keys() == before.keys() - kept(spark, lake).keys()
    assert await pool.fetchval("SELECT sum(affected) FROM operator_actions") == 302

    reports: list[str] = []

    async def meddle() -> None:
        async with opened(database, hints=OPERATOR_HINTS) as other:
            await other.execute("UPDATE outbox_events SET headers = '{}' WHERE id = $1::text::uuid", changed)

    def in_between(progress: str) -> None:
        reports.append(progress)
        if progress.startswith("batch 5") and "verified" in progress:
            asyncio.run(meddle())

    result = await run(spark, settings, lake, on_progress=in_between)

    assert result == ArchiveResult(found=4, batches=2, archived=4, deleted=3, stayed=1, resumed=3)
    reason = "its events differ from those in the lake"
    assert [text for text in reports if "partition" in text] == [
        str(KeptPartition(name=past_name(6), reason=reason))
    ]
    left = await table(pool)
    assert kept(spark, lake).keys() | left.keys() == before.keys()
    assert left.keys() & kept(spark, lake).keys() == {changed}
    assert str(recent) in left
    assert {name: row for name, row in (kept(spark, lake) | left).items() if name != changed} == {
        name: row for name, row in before.items() if name != changed
    }
    partitions = [row[0] for row in await pool.fetch("SELECT partition FROM outbox_partitions()")]
    assert [past_name(days) in partitions for days in (9, 8, 7, 6)] == [False, False, True, True]
    assert await pool.fetchval("SELECT sum(affected) FROM operator_actions") == 305

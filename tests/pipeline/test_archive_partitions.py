"""The archive drops a partition of the outbox whole, and only what the lake has of it as it was."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult
from sea_mq_worker.pipeline.snapshot import read_outbox, snapshot
from sea_mq_worker.postgres.partitions import DroppedPartition, KeptPartition
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.pipeline.archiving import Desk
from tests.pipeline.landing import DiedError
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


@pytest.fixture
async def desk(desk: Desk, database: Database) -> Desk:
    """An outbox in partitions of past days."""
    await partition_outbox(database.dsn)
    for days_ago in (9, 8, 7, 6):
        await past_partition(desk.pool, days_ago=days_ago)
    await desk.pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    return desk


async def add(desk: Desk, state: str, *, days_ago: int) -> str:
    return await desk.add(state, days_ago=days_ago, id=id_of_day(days_ago))


def die_at(start: str) -> Callable[[str], None]:
    def die(progress: str) -> None:
        if progress.startswith(start):
            raise DiedError

    return die


async def test_a_partition_goes_whole_once_the_lake_has_all_of_it_wherever_a_run_dies(
    desk: Desk, database: Database
) -> None:
    await desk.pool.execute(A_PAGE_EACH, str(id_of_day(9)), datetime.now(UTC) - timedelta(days=9))
    for days_ago in (8, 8, 7, 7, 6):
        await add(desk, "PUBLISHED", days_ago=days_ago)
    changed = await add(desk, "PUBLISHED", days_ago=6)
    await add(desk, "DEAD", days_ago=7)
    recent = await add_event(desk.pool, "PUBLISHED")
    before = await desk.table()
    with snapshot(desk.settings) as held:
        read = [
            row["id"]
            for row in read_outbox(desk.spark, held, columns=["id"], pages_per_partition=100).collect()
        ]
    assert sorted(read) == sorted(before), "each partition is read, and once"

    # in the lake by two batches, and not dropped yet
    with pytest.raises(DiedError):
        await desk.run(on_progress=die_at("batch 2"), batch_rows=1)
    assert (len(desk.kept()), await desk.table()) == (300, before)

    # the next one is dropped, and the lake does not know yet
    dropped = str(DroppedPartition(name=past_name(8), events=2))
    with pytest.raises(DiedError):
        await desk.run(on_progress=die_at(dropped))
    assert (await desk.table()).keys() == before.keys() - desk.kept().keys()
    assert await desk.pool.fetchval("SELECT sum(affected) FROM operator_actions") == 302

    reports: list[str] = []

    async def meddle() -> None:
        async with opened(database, hints=OPERATOR_HINTS) as other:
            await other.execute("UPDATE outbox_events SET headers = '{}' WHERE id = $1::text::uuid", changed)

    def in_between(progress: str) -> None:
        reports.append(progress)
        if progress.startswith("batch 5") and "verified" in progress:
            asyncio.run(meddle())

    result = await desk.run(on_progress=in_between)

    assert result == ArchiveResult(found=4, batches=2, archived=4, deleted=3, stayed=1, resumed=3)
    reason = "its events differ from those in the lake"
    assert [text for text in reports if "partition" in text] == [
        str(KeptPartition(name=past_name(6), reason=reason))
    ]
    left = await desk.table()
    assert desk.kept().keys() | left.keys() == before.keys()
    assert left.keys() & desk.kept().keys() == {changed}
    assert str(recent) in left
    assert {name: row for name, row in (desk.kept() | left).items() if name != changed} == {
        name: row for name, row in before.items() if name != changed
    }
    partitions = [row[0] for row in await desk.pool.fetch("SELECT partition FROM outbox_partitions()")]
    assert [past_name(days) in partitions for days in (9, 8, 7, 6)] == [False, False, True, True]
    assert await desk.pool.fetchval("SELECT sum(affected) FROM operator_actions") == 305

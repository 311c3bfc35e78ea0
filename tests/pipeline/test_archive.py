"""The archive moves old published events to the lake, and deletes none that is not there as it was."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.errors import ContractError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.archive import ArchiveResult, archivable
from sea_mq_worker.pipeline.lake import ARCHIVE, Lake
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import Settings
from tests.pipeline.archiving import Desk
from tests.support.outboxes import PostgresWorld
from tests.support.partitions import id_of_day, partition_outbox, past_name, past_partition
from tests.support.rows import add_event, opened
from tests.support.servers import Database

ODD = "'\"\\ \n\t\x01 ünï 漢字 🦑 \u202e :5;: $1"


@pytest.fixture
async def desk(spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path) -> Desk:
    await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    return Desk(spark, settings, pool, tmp_path / "ein See, 100 %")


async def test_outbox_and_lake_together_hold_what_was_inserted(desk: Desk) -> None:
    long_ago = datetime(1492, 10, 12, 1, 2, 3, 456789, tzinfo=UTC)
    for state in ("PENDING", "CLAIMED", "DEAD", "PUBLISHED"):
        await add_event(desk.pool, state)
    await desk.add(aggregate_type=ODD, aggregate_id="", event_type=ODD, partition_key="", headers="{}")
    await desk.add(days_ago=9, payload=json.dumps({"odd": ODD.replace("\x01", ""), "n": 1e300}), error=ODD)
    await desk.add(payload=json.dumps("long " * 1_000_000), ordering_key=ODD, metadata="null")
    await desk.add(days_ago=40, occurred_at=long_ago, created_at=long_ago, error="")
    endless = await desk.add()
    await desk.pool.execute(
        "UPDATE outbox_events SET available_at = 'infinity' WHERE id = $1::text::uuid", endless
    )
    before = {name: row for name, row in (await desk.table()).items() if name != endless}
    expected = ArchiveResult(found=5, unfit=1, dry_run=True)
    assert await asyncio.to_thread(archivable, desk.settings, before=datetime.now(UTC)) == expected

    result = await desk.run()

    assert result == ArchiveResult(found=4, unfit=1, archived=4, deleted=4)
    left = await desk.table()
    assert left.pop(endless)
    assert len(left) == 4
    assert left | desk.kept() == before
    [record] = await desk.pool.fetch("SELECT * FROM operator_actions")
    assert [record[name] for name in ("actor", "action", "reason", "affected", "outcome")] == [
        *("ada", "archive", "old", 4, "done")
    ]
    assert json.loads(record["selection"])["lake"] == desk.lake
    assert await desk.run() == ArchiveResult(unfit=1)
    with pytest.raises(PipelineError, match="must be in the past"):
        await desk.run(before=datetime(9000, 1, 1, tzinfo=UTC))
    await desk.pool.execute("INSERT INTO sea_mq_context (context) VALUES ('orders')")
    with pytest.raises(ContractError, match="belong to the context orders"):
        await desk.run()


async def test_an_event_that_is_replayed_meanwhile_stays_and_a_second_archive_is_refused(
    desk: Desk, database: Database
) -> None:
    replayed, gone, deleted = [await desk.add() for _ in range(3)]
    refused: list[str] = []

    async def meddle() -> None:
        async with opened(database, hints=OPERATOR_HINTS) as other:
            await PostgresWorld(other).replay(replayed)
            await other.execute("DELETE FROM outbox_events WHERE id = $1::text::uuid", deleted)

    def in_between(progress: str) -> None:
        if "copied" in progress:
            asyncio.run(meddle())
            with pytest.raises(PipelineError, match="another archive or erasure is running") as told:
                desk.run_here()
            refused.append(str(told.value))

    result = await desk.run(on_progress=in_between)

    assert result == ArchiveResult(found=3, archived=3, deleted=1, stayed=1)
    assert len(refused) == 1
    assert (await desk.table()).keys() == {replayed}
    assert desk.kept().keys() == {replayed, gone, deleted}
    assert await desk.run() == ArchiveResult()


async def test_what_the_lake_has_otherwise_is_not_deleted_and_what_it_has_already_is_not_copied(
    desk: Desk,
) -> None:
    ids = [await desk.add(headers=None) for _ in range(3)]
    before = await desk.table()

    class DiedError(Exception):
        pass

    def die(_: str) -> None:
        raise DiedError

    with pytest.raises(DiedError):
        await desk.run(on_progress=die)
    assert desk.kept() == before == await desk.table()
    table = Lake(desk.spark, desk.lake).table(ARCHIVE.name)
    for change, back in (
        ("headers = ''", "headers = NULL"),
        (
            "occurred_at = occurred_at + INTERVAL 1 MICROSECOND",
            "occurred_at = occurred_at - INTERVAL 1 MICROSECOND",
        ),
    ):
        desk.spark.sql(f"UPDATE {table} SET {change} WHERE id = '{ids[1]}'")
        with pytest.raises(DataLossError, match=f"row of the event {ids[1]} .* differs from the outbox"):
            await desk.run()
        desk.spark.sql(f"UPDATE {table} SET {back} WHERE id = '{ids[1]}'")
        assert (await desk.table()).keys() == {ids[1]}
    desk.spark.sql(f"ALTER TABLE {table} ADD COLUMN noted STRING")
    later = await desk.add()

    assert await desk.run() == ArchiveResult(found=2, archived=1, deleted=2)
    assert desk.kept().keys() == {*ids, later}
    assert {id_: row for id_, row in desk.kept().items() if id_ != later} == before


async def test_a_partition_whose_events_are_all_in_the_lake_is_dropped(
    desk: Desk, database: Database
) -> None:
    await partition_outbox(database.dsn)
    for days_ago in (9, 8, 7):
        await past_partition(desk.pool, days_ago=days_ago)
    await desk.pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    for state, days_ago in (("PUBLISHED", 9), ("PUBLISHED", 8), ("DEAD", 8)):
        await desk.add(state, days_ago=days_ago, id=id_of_day(days_ago))

    result = await desk.run()

    assert result == ArchiveResult(found=2, archived=2, deleted=2, dropped=(past_name(9), past_name(7)))
    partitions = [row[0] for row in await desk.pool.fetch("SELECT partition FROM outbox_partitions()")]
    assert [past_name(days) in partitions for days in (9, 8, 7)] == [False, True, False]
    assert len(await desk.table()) == 1

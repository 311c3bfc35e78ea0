"""The archive moves old published events to the lake, and deletes none that is not there as it was."""

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.errors import ContractError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.archive import outbox
from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult, count
from sea_mq_worker.pipeline.lake.table import Files, LakeTable
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.pipeline.archiving import Desk
from tests.pipeline.landing import DiedError
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, opened
from tests.support.servers import Database

ODD = "'\"\\ \n\t\x01 ünï 漢字 🦑 \u202e :5;: $1"


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
    reports: list[str] = []

    result = await desk.run(on_progress=reports.append)

    assert result == ArchiveResult(found=4, unfit=1, batches=1, archived=4, deleted=4)
    assert reports == [
        "batch 1: 4 events verified in the lake; 4 of 4 in all",
        "batch 1: 4 of 4 events deleted from the outbox",
    ]
    left = await desk.table()
    assert left.pop(endless)
    assert len(left) == 4
    assert left | desk.kept() == before
    (record,) = await desk.pool.fetch(
        "SELECT actor, action, reason, selection, affected FROM operator_actions"
    )
    assert (*tuple(record)[:3], record["affected"]) == ("ada", "archive", "old", 4)
    assert json.loads(record["selection"])["batch"] == 1
    finished, committed, _ = DeltaTable(f"{desk.lake}/archive").history()
    facts = {(one["sea_mq.job"], one["sea_mq.version"]) for one in (finished, committed)}
    assert facts == {("archive", version("sea-mq-worker"))}
    assert committed["sea_mq.batch"] == finished["sea_mq.batch"] == "1"
    assert committed["sea_mq.range"].startswith("outbox_events pages 0-")
    again = await desk.run()
    assert again == ArchiveResult(unfit=1)
    assert count(desk.settings, desk.lake, before=datetime.now(UTC)) == ArchiveResult(found=1, unfit=1)


async def test_an_event_that_is_replayed_meanwhile_stays_and_a_second_archive_is_refused(
    desk: Desk, database: Database
) -> None:
    replayed, changed, gone = [await desk.add() for _ in range(3)]
    refused: list[str] = []

    async def meddle() -> None:
        async with opened(database, hints=OPERATOR_HINTS) as other:
            await PostgresWorld(other).replay(replayed)
            await other.execute(
                "UPDATE outbox_events SET headers = '{\"a\": 1}' WHERE id = $1::text::uuid", changed
            )

    def in_between(progress: str) -> None:
        if "verified" in progress:
            asyncio.run(meddle())
            with pytest.raises(PipelineError, match="another archive is running") as told:
                desk.run_here()
            refused.append(str(told.value))

    result = await desk.run(on_progress=in_between)

    assert (result.archived, result.deleted, result.stayed, len(refused)) == (3, 1, 2, 1)
    assert (await desk.table()).keys() == {replayed, changed}
    assert desk.kept().keys() == {replayed, changed, gone}


async def test_tables_of_another_context_are_refused(desk: Desk) -> None:
    await desk.pool.execute("INSERT INTO sea_mq_context (context) VALUES ('orders')")
    with pytest.raises(ContractError, match="belong to the context orders"):
        await desk.run()


async def test_what_the_lake_does_not_hold_as_it_was_is_not_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await desk.add(headers=None)
    before = await desk.table()
    write = LakeTable.write

    def damaging(change: Callable[[DataFrame], DataFrame]) -> None:
        def damaged(self: LakeTable, frame: DataFrame) -> Files:
            return write(self, change(frame))

        monkeypatch.setattr(LakeTable, "write", damaged)

    for change in (
        lambda frame: frame.limit(2),
        lambda frame: frame.union(frame.limit(1)),
        lambda frame: frame.fillna({"headers": ""}),
        lambda frame: frame.withColumn("occurred_at", F.expr("occurred_at + INTERVAL 1 MICROSECOND")),
    ):
        damaging(change)
        with pytest.raises(DataLossError, match="differs from PostgreSQL"):
            await desk.run()
        assert await desk.table() == before
    monkeypatch.undo()
    assert not DeltaTable.is_deltatable(f"{desk.lake}/archive")


async def test_a_batch_left_in_the_lake_is_compared_again_before_it_is_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await desk.add()
    before = await desk.table()

    def die(_: str) -> None:
        raise DiedError

    with pytest.raises(DiedError):
        await desk.run(on_progress=die)
    assert desk.kept() == before == await desk.table()

    file = only_file(desk.lake)
    good = file.with_name("good")
    shutil.copy(file, good)
    rewrite(file, "publish_attempts", lambda column: pc.add(column, 1))
    with pytest.raises(DataLossError, match=r"batch 1 was left unfinished, and its event .* Nothing was"):
        await desk.run()
    file.write_bytes(good.read_bytes()[:-1000])
    with pytest.raises(DataLossError, match=r"batch 1 cannot be read back, .*: .*is not a Parquet file"):
        await desk.run()
    assert await desk.table() == before

    good.replace(file)
    monkeypatch.setattr(outbox, "_PROGRESS_SECONDS", -1.0)
    with pytest.raises(DiedError):
        await desk.run(on_progress=die, per_second=1)
    assert len(await desk.table()) == 2, "the run died in its deletion"
    assert await desk.run() == ArchiveResult(deleted=2, resumed=1)
    assert desk.kept() == before
    assert await desk.table() == {}


def only_file(lake: str) -> Path:
    (file,) = Path(lake).rglob("*.parquet")
    return file


def rewrite(file: Path, name: str, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
    """Change a column of a file, as a fault of a disk would not be able to."""
    rows = pq.ParquetFile(file).read()
    at = rows.schema.get_field_index(name)
    pq.write_table(rows.set_column(at, rows.schema.field(at), change(rows.column(name)).cast("int32")), file)

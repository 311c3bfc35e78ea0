"""The archive moves old published events to the lake, and deletes none that is not there as it was."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from typer.testing import CliRunner

from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.cli import app
from sea_mq_worker.pipeline import session
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.archive.digest import KEPT
from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult, archive, count
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import Files, LakeTable
from sea_mq_worker.settings import Settings
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, opened
from tests.support.servers import Database

ODD = "'\"\\ \n\t\x01 ünï 漢字 🦑 \u202e :5;: $1"
OLD = "UPDATE outbox_events SET published_at = $1 WHERE state = 'PUBLISHED'"


@pytest_asyncio.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """A pool that may make rows that the lifecycle does not, as long ago as they like."""
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
        yield pool


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


class DiedError(Exception):
    """The run ends here."""


async def run(*where: Any, **given: Any) -> ArchiveResult:
    """Archive what was published a day ago; it has a loop of its own, and so needs a thread."""
    return await asyncio.to_thread(run_here, *where, **given)


def run_here(spark: SparkSession, settings: Settings, lake: str, **given: Any) -> ArchiveResult:
    before = datetime.now(UTC) - timedelta(days=1)
    who = {"actor": "ada", "reason": "old", "on_progress": print}
    return archive(spark, settings, lake, before=before, **(who | given))


async def published(pool: asyncpg.Pool, days: int = 2, **given: Any) -> str:
    """Insert an event that was published some days ago."""
    event = await add_event(pool, "PUBLISHED", **given)
    at = datetime.now(UTC) - timedelta(days=days)
    await pool.execute("UPDATE outbox_events SET published_at = $2 WHERE id = $1", event, at)
    return str(event)


async def table(pool: asyncpg.Pool) -> dict[str, dict[str, Any]]:
    """Return what the outbox has of each event and the lake keeps."""
    rows = await pool.fetch(f"SELECT {', '.join(KEPT)} FROM outbox_events")
    return {str(row["id"]): {name: _plain(value) for name, value in row.items()} for row in rows}


def kept(spark: SparkSession, lake: str) -> dict[str, dict[str, Any]]:
    """Return what the lake has of each event."""
    rows = LakeTable(lake, ARCHIVE).read(spark).select(*KEPT).collect()
    found = {row["id"]: row.asDict() for row in rows}
    assert len(found) == len(rows)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value  # what is endless has no time zone
        return moment.replace(tzinfo=None)
    return value if value is None or isinstance(value, int) else str(value)


async def test_outbox_and_lake_together_hold_what_was_inserted(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, lake: str
) -> None:
    long_ago = datetime(1492, 10, 12, 1, 2, 3, 456789, tzinfo=UTC)
    for state in ("PENDING", "CLAIMED", "DEAD", "PUBLISHED"):
        await add_event(pool, state)
    await published(pool, aggregate_type=ODD, aggregate_id="", event_type=ODD, partition_key="", headers="{}")
    await published(pool, days=9, payload=json.dumps({"odd": ODD.replace("\x01", ""), "n": 1e300}), error=ODD)
    await published(pool, payload=json.dumps("long " * 1_000_000), ordering_key=ODD, metadata="null")
    await published(pool, days=40, occurred_at=long_ago, created_at=long_ago, error="")
    endless = await published(pool)
    await pool.execute(
        "UPDATE outbox_events SET available_at = 'infinity' WHERE id = $1::text::uuid", endless
    )
    before = {name: row for name, row in (await table(pool)).items() if name != endless}
    reports: list[str] = []

    result = await run(spark, settings, lake, on_progress=reports.append)

    assert result == ArchiveResult(found=4, unfit=1, batches=1, archived=4, deleted=4)
    assert reports == [
        "batch 1: 4 events verified in the lake; 4 of 4 in all",
        "batch 1: 4 of 4 events deleted from the outbox",
    ]
    left = await table(pool)
    assert left.pop(endless)
    assert len(left) == 4
    assert left | kept(spark, lake) == before
    (record,) = await pool.fetch("SELECT actor, action, reason, selection, affected FROM operator_actions")
    assert (*tuple(record)[:3], record["affected"]) == ("ada", "archive", "old", 4)
    assert json.loads(record["selection"])["batch"] == 1
    finished, committed, _ = DeltaTable(f"{lake}/archive").history()
    assert {one["sea_mq.job"] for one in (finished, committed)} == {"archive"}
    assert committed["sea_mq.batch"] == finished["sea_mq.batch"] == "1"
    assert committed["sea_mq.range"].startswith("outbox_events pages 0-")
    again = await run(spark, settings, lake)
    assert again == ArchiveResult(unfit=1)
    assert count(settings, lake, before=datetime.now(UTC)) == ArchiveResult(found=1, unfit=1)


async def test_an_event_that_is_replayed_meanwhile_stays_and_a_second_archive_is_refused(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, lake: str, database: Database
) -> None:
    replayed, changed, gone = [await published(pool) for _ in range(3)]
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
                run_here(spark, settings, lake)
            refused.append(str(told.value))

    result = await run(spark, settings, lake, on_progress=in_between)

    assert (result.archived, result.deleted, result.stayed, len(refused)) == (3, 1, 2, 1)
    assert (await table(pool)).keys() == {replayed, changed}
    assert kept(spark, lake).keys() == {replayed, changed, gone}


async def test_what_the_lake_does_not_hold_as_it_was_is_not_deleted(
    spark: SparkSession,
    settings: Settings,
    pool: asyncpg.Pool,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(3):
        await published(pool, headers=None)
    before = await table(pool)
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
            await run(spark, settings, lake)
        assert await table(pool) == before
    monkeypatch.undo()
    assert not DeltaTable.is_deltatable(f"{lake}/archive")


async def test_an_event_is_not_deleted_if_its_committed_row_differs(
    spark: SparkSession,
    settings: Settings,
    pool: asyncpg.Pool,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await published(pool)
    before = await table(pool)
    commit = LakeTable.commit

    def damaging(self: LakeTable, *given: Any, **named: Any) -> bool:
        done = commit(self, *given, **named)
        rewrite(only_file(lake), "publish_attempts", lambda column: pc.add(column, 1))
        return done

    monkeypatch.setattr(LakeTable, "commit", damaging)
    assert await run(spark, settings, lake) == ArchiveResult(found=1, batches=1, archived=1, stayed=1)
    assert await table(pool) == before


async def test_a_batch_left_in_the_lake_is_compared_again_before_it_is_deleted(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, lake: str
) -> None:
    for _ in range(3):
        await published(pool)
    before = await table(pool)

    def die(_: str) -> None:
        raise DiedError

    with pytest.raises(DiedError):
        await run(spark, settings, lake, on_progress=die)
    assert kept(spark, lake) == before == await table(pool)

    file = only_file(lake)
    good = file.with_name("good")
    shutil.copy(file, good)
    rewrite(file, "publish_attempts", lambda column: pc.add(column, 1))
    with pytest.raises(DataLossError, match=r"batch 1 was left unfinished, and its event .* Nothing was"):
        await run(spark, settings, lake)
    file.write_bytes(good.read_bytes()[:-1000])
    with pytest.raises(DataLossError, match=r"batch 1 cannot be read back, .*: .*is not a Parquet file"):
        await run(spark, settings, lake)
    assert await table(pool) == before

    good.replace(file)
    assert await run(spark, settings, lake) == ArchiveResult(deleted=3, resumed=1)
    assert kept(spark, lake) == before
    assert await table(pool) == {}


def only_file(lake: str) -> Path:
    (file,) = Path(lake).rglob("*.parquet")
    return file


def rewrite(file: Path, name: str, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
    """Change a column of a file, as a fault of a disk would not be able to."""
    rows = pq.ParquetFile(file).read()
    at = rows.schema.get_field_index(name)
    pq.write_table(rows.set_column(at, rows.schema.field(at), change(rows.column(name)).cast("int32")), file)


async def test_an_archive_with_nothing_to_do_starts_no_spark_session(
    settings: Settings, pool: asyncpg.Pool, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: pytest.fail("a session was started"))
    await add_event(pool, "PUBLISHED")

    command = ["pipeline", "archive", "--lake", lake, "--reason", "old", "--before", "1d"]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)

    assert (result.exit_code, result.stdout) == (0, "archived 0 events in 0 batches, deleted 0\n")


def test_a_time_to_come_is_wrong_usage() -> None:
    when = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    command = ["pipeline", "archive", "--lake", "x", "--reason", "old", "--before", when]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, "--before: must be past" in result.output) == (2, True)

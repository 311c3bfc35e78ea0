"""The archive moves old published events to the lake, and deletes none that is not there as it was."""

import asyncio
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from pydantic import SecretStr
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.errors import ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.archive import KEPT, ArchiveResult, archivable, digest
from sea_mq_worker.pipeline.lake import ARCHIVE, Lake
from sea_mq_worker.pipeline.postgres import snapshot
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.postgres.queries import load_named
from sea_mq_worker.settings import Settings
from tests.pipeline.archiving import Desk, limited
from tests.support.outboxes import PostgresWorld
from tests.support.partitions import id_of_day, partition_outbox, past_name, past_partition
from tests.support.rows import add_event, opened
from tests.support.servers import Database

COLUMNS = {
    "aggregate_type aggregate_id event_type partition_key ordering_key stream publish_error": "text",
    "headers metadata": "jsonb",
    "occurred_at created_at available_at first_attempt_at published_at": "time",
    "event_version seq publish_attempts failures stream_seq": "int",
    "correlation_id causation_id": "uuid",
}
NEVER_NULL = (
    *("aggregate_type", "aggregate_id", "event_type", "occurred_at", "created_at", "available_at"),
    *("published_at", "event_version", "seq", "publish_attempts", "failures"),
)
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
    desk.spark.sql(f"UPDATE {table} SET headers = '' WHERE id = '{ids[1]}'")
    with pytest.raises(DataLossError, match=f"row of the event {ids[1]} .* differs from the outbox"):
        await desk.run()
    assert (await desk.table()).keys() == {ids[1]}
    desk.spark.sql(f"UPDATE {table} SET headers = NULL WHERE id = '{ids[1]}'")
    desk.spark.sql(f"ALTER TABLE {table} ADD COLUMN noted STRING")
    later = await desk.add()

    assert await desk.run() == ArchiveResult(found=2, archived=1, deleted=2)
    assert desk.kept().keys() == {*ids, later}
    assert {id_: row for id_, row in desk.kept().items() if id_ != later} == before


@pytest.mark.long
async def test_a_janitor_may_archive_and_a_partition_that_is_then_empty_is_dropped(
    desk: Desk, database: Database
) -> None:
    await partition_outbox(database.dsn)
    for days_ago in (9, 8, 7):
        await past_partition(desk.pool, days_ago=days_ago)
    await desk.pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    for state, days_ago in (("PUBLISHED", 9), ("PUBLISHED", 8), ("DEAD", 8)):
        await desk.add(state, days_ago=days_ago, id=id_of_day(days_ago))

    async with limited(database, desk.pool, "janitor") as dsn:
        settings = desk.settings.model_copy(update={"database_url": SecretStr(dsn)})
        result = await replace(desk, settings=settings).run()

    assert result == ArchiveResult(found=2, archived=2, deleted=2, dropped=(past_name(9), past_name(7)))
    partitions = [row[0] for row in await desk.pool.fetch("SELECT partition FROM outbox_partitions()")]
    assert [past_name(days) in partitions for days in (9, 8, 7)] == [False, True, False]
    assert len(await desk.table()) == 1


@pytest.mark.long
async def test_a_database_that_dies_in_mid_read_is_one_sentence_and_loses_nothing(desk: Desk) -> None:
    await desk.pool.execute(LARGE)
    number = "SELECT count(*) FROM outbox_events"
    own = "datname = current_database() AND application_name LIKE 'sea_mq_worker pipeline %'"
    busy = f"""{own} AND query LIKE 'SELECT "id"%' AND wait_event LIKE 'Client%'"""
    reading = f"SELECT count(*) FROM pg_stat_activity WHERE {busy}"

    running = asyncio.create_task(desk.run())
    while not await desk.pool.fetchval(reading):
        assert not running.done(), running
    await desk.pool.fetch(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}")
    with pytest.raises(WorkerError) as told:
        await running

    assert isinstance(told.value, StoreUnavailableError | PipelineError)
    assert "\n" not in str(told.value)
    assert await desk.pool.fetchval(number) == 120
    assert await desk.run() == ArchiveResult(found=120, archived=120, deleted=120)
    rows = Lake(desk.spark, desk.lake).read(ARCHIVE.name)
    assert rows.agg(fn.count("*"), fn.countDistinct("payload"), fn.min(fn.length("payload"))).collect() == [
        (120, 120, 1_024_000 + 2)
    ]


LARGE = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, state, published_at)
SELECT gen_random_uuid(), 'order', 'o', 'order.paid', to_jsonb(repeat(md5(i::text), 32000)), 'PUBLISHED',
       now() - interval '3 days'
  FROM generate_series(1, 120) i
"""
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
TIMES = st.datetimes(datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
IDS = st.uuids()


@st.composite
def rows_of_any_content(draw: st.DrawFn) -> dict[str, Any]:
    documents = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ).map(json.dumps)
    values: dict[str, Any] = {"id": draw(IDS), "payload": draw(documents)}
    kinds = {"text": TEXTS, "jsonb": documents, "time": TIMES, "int": st.integers(0, 2**31 - 1), "uuid": IDS}
    for names, kind in COLUMNS.items():
        for name in names.split():
            values[name] = draw(kinds[kind] if name in NEVER_NULL else st.none() | kinds[kind])
    return values


async def test_spark_and_postgresql_compute_the_same_digest_of_any_row(desk: Desk) -> None:
    @settings_of_hypothesis(max_examples=300, deadline=None, database=None)
    @given(rows_of_any_content())
    def collect(row: dict[str, Any]) -> None:
        rows.append(row)

    rows: list[dict[str, Any]] = []
    collect()
    names = [*rows[0]]
    for at, row in enumerate(rows):
        row |= {"id": uuid.uuid4(), "seq": at * 10**12}
    for check in await desk.pool.fetch(
        "SELECT conname FROM pg_constraint WHERE conrelid = 'outbox_events'::regclass AND contype = 'c'"
    ):
        await desk.pool.execute(f'ALTER TABLE outbox_events DROP CONSTRAINT "{check[0]}"')
    places = ", ".join(f"${at}" for at, _ in enumerate(names, 1))
    await desk.pool.executemany(
        f"INSERT INTO outbox_events ({', '.join(names)}, state) OVERRIDING SYSTEM VALUE"
        f" VALUES ({places}, 'PUBLISHED')",
        [[row[name] for name in names] for row in rows],
    )
    fragment = (
        load_named("pipeline_archive")["altered"].text.partition("AND md5")[2].partition("<> k.digest")[0]
    )
    theirs = dict(await desk.pool.fetch(f"SELECT id::text, md5{fragment} FROM outbox_events o"))

    def read() -> dict[str, str]:
        with snapshot(desk.settings) as held:
            frame = held.read(desk.spark, "outbox_events", KEPT)
            return dict(frame.select("id", digest()).collect())

    ours = await asyncio.to_thread(read)
    assert len(theirs) == len(rows)
    assert {id_: (ours[id_], text) for id_, text in theirs.items() if ours[id_] != text} == {}

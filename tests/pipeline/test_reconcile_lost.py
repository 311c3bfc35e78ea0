"""reconcile where rows and messages have moved on: broker set back, archive, retention, a receiver."""

import asyncio
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.operators.changes import recorded
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.pipeline import reconcile
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jetstream.state import stream_state
from sea_mq_worker.pipeline.jobs.erase import id_hash
from sea_mq_worker.pipeline.jobs.reconcile import Reconciliation, Requeue, Requeued, _put_back
from sea_mq_worker.pipeline.lake import ARCHIVE, BRONZE, Lake
from sea_mq_worker.pipeline.postgres import snapshot
from sea_mq_worker.pipeline.verdicts import Verdict
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import Settings, config_file
from tests.pipeline.reconcile_world import IN_TIME, World, make_world
from tests.support.jetstream import connected, store
from tests.support.rows import opened
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, running

NONE_IS_OPEN = "SELECT NOT EXISTS (SELECT FROM outbox_events WHERE is_open)"
REQUEUE = Requeue(actor="ada", reason="the stream lost them", cap=1000, dry_run=False)
LOG = logging.getLogger(__name__)
_PACE_SECONDS = 0.2
_BRONZE_1_0 = (
    "seq BIGINT, subject STRING, time TIMESTAMP, headers ARRAY<STRUCT<key: STRING, value: STRING>>, data"
    " BINARY, incarnation STRING, stream STRING, date DATE"
)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.fault("P33")
async def test_what_a_broker_lost_that_was_set_back_is_named_and_put_back(
    pool: asyncpg.Pool, spark: SparkSession, settings_with: Callable[..., Settings], tmp_path: Path
) -> None:
    server = EmbeddedNats(tmp_path / "nats")
    async with server, connected(server.url) as connection:
        world = await make_world(pool, connection, settings_with(nats_url=server.url, **IN_TIME))
        await world.publish(200)
    shutil.copytree(tmp_path / "nats" / "jetstream", tmp_path / "older")
    async with server, connected(server.url) as connection:
        lost = await replace(world, connection=connection).publish(100)
    shutil.rmtree(tmp_path / "nats" / "jetstream")
    shutil.copytree(tmp_path / "older", tmp_path / "nats" / "jetstream")
    async with server, connected(server.url) as connection:
        world = replace(world, connection=connection)
        await world.publish(20)

        out = tmp_path / "out"
        told = await _reconciled(spark, world, requeue=REQUEUE, out=str(out))
        await _relayed(world, tmp_path / "worker.log")
        async with _traffic(world):
            after = await _reconciled(spark, world)

    assert told.hops[0].verdicts == {Verdict.MISSING_IN_STREAM: 100, Verdict.DELIVERED: 220}
    assert set(told.hops[0].examples[Verdict.MISSING_IN_STREAM]) <= set(lost)
    assert "80 lost IDs were acknowledged above its last sequence 220" in told.notes[0]
    assert told.requeued
    assert (told.requeued.lost, told.requeued.replayed) == (100, 100)
    written = [json.loads(line) for file in out.glob("*.json") for line in file.read_text().splitlines()]
    assert {(row["id"], row["verdict"]) for row in written} == {(each, "missing-in-stream") for each in lost}
    assert set(after.hops[0].verdicts) <= {Verdict.DELIVERED, Verdict.PENDING}
    assert after.hops[0].verdicts[Verdict.DELIVERED] >= 320


async def _relayed(world: World, log: Path) -> None:
    environment = {"SEA_MQ_CONFIG": os.environ["SEA_MQ_CONFIG"], "SEA_MQ_ADMIN_PORT": "0"}
    async with running(Deployment(context=world.context, upstream="", environment=environment), log):
        await eventually(lambda: world.pool.fetchval(NONE_IS_OPEN), within=60)


@asynccontextmanager
async def _traffic(world: World) -> AsyncIterator[None]:
    """Publish events all the time, at a pace that leaves the machine to Spark."""

    async def run() -> None:
        while True:
            await world.publish(20)
            await asyncio.sleep(_PACE_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _reconciled(spark: SparkSession, world: World, **wanted: Any) -> Reconciliation:
    found: Reconciliation = await asyncio.to_thread(
        reconcile, spark, world.settings, **{"grace_seconds": 0, "on_progress": LOG.info} | wanted
    )
    return found


@pytest.fixture
async def world(
    pool: asyncpg.Pool, nats_url: str, settings_with: Callable[..., Settings]
) -> AsyncIterator[World]:
    async with connected(nats_url) as connection:
        yield await make_world(pool, connection, settings_with(**IN_TIME))


async def test_lake_prune_replay_and_erasure_are_taken_into_account_by_sender_and_receiver(
    world: World,
    their_database: Database,
    settings_with: Callable[..., Settings],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    lake, pool = str(tmp_path / "lake"), world.pool
    archived = await world.publish(50)
    await asyncio.to_thread(_to_lake, spark, world, lake, landed=28)
    await pool.execute("DELETE FROM outbox_events")
    pruned = await world.publish(10)
    await prune(pool, "outbox", datetime.now(UTC), actor="ada", reason="old")
    here = await world.publish(40)
    async with opened(their_database, hints=OPERATOR_HINTS) as their_pool:
        await replace(world, pool=their_pool).receive(
            await world.contents(), "theirs", without=here[:3], start=61
        )
        erased = {"id_sha256": [id_hash(here[0])]}
        async with recorded(their_pool, "erase", erased, actor="ada", reason="asked"):
            pass
    await world.stored.purge(seq=31)
    await replay_matching(
        pool,
        OutboxFilter(ids=tuple(UUID(each) for each in here[5:8])),
        actor="ada", reason="asked", cap=9, dry_run=False,
    )  # fmt: skip
    await world.relay()
    nobody = str(uuid4())
    await store(world.connection, world.subject, headers={"ce-id": nobody})
    result = await _reconciled(spark, world, lake=lake)

    (outbox,) = result.hops
    assert outbox.verdicts[Verdict.DELIVERED] == 48 + 40
    assert outbox.examples == {
        Verdict.MISSING_IN_STREAM: sorted(archived[28:30]),
        Verdict.PRUNED: sorted([*pruned, nobody]),  # stored within a minute of the prune
    }
    assert (result.rows["archive"], result.rows[f"bronze {world.stream}"]) == (50, 28)
    config = {"context": f"{world.context}-theirs", "database_url": their_database.dsn, **IN_TIME}
    theirs = settings_with(consumers=f"{world.stream}/theirs", **config)
    receiver = await make_world(pool, world.connection, theirs)
    own, inbox = (await _reconciled(spark, receiver, lake=lake)).hops
    assert own.ids == 0
    assert inbox.examples == {
        Verdict.MISSING_IN_INBOX: sorted(here[1:3]),
        Verdict.PRUNED: here[:1],
        Verdict.PENDING: [nobody],
    }
    assert inbox.verdicts[Verdict.DELIVERED] == 37


@pytest.fixture
async def their_database(
    postgres_server: PostgresAddress, template_database: Database
) -> AsyncIterator[Database]:
    async with scratch_database(postgres_server, prefix="test_", template=template_database.name) as own:
        yield own


def _to_lake(
    spark: SparkSession,
    world: World,
    lake: str,
    *,
    landed: int,
    days_ago: Sequence[int] = (0,),
    incarnations: Sequence[str] = ("{created}",),
) -> None:
    """Archive all rows, and land the first messages, once for each day as if that day had been today."""
    options = {"stream": world.stream, "endSeq": str(landed), "config": str(config_file())}
    messages = spark.read.format("jetstream").options(**options).load()
    here, created = Lake(spark, lake), stream_state(world.settings, world.stream).created
    here.create(ARCHIVE)
    here.create(replace(BRONZE, ddl=_BRONZE_1_0))
    names = [name for name in ARCHIVE.columns if name not in {"batch", "context", "date"}]
    with snapshot(world.settings) as held:
        rows = held.read(spark, "outbox_events", names)
        for days in days_ago:
            times = {
                name: F.col(name) - F.lit(timedelta(days=days)) for name in ("created_at", "published_at")
            }
            dated = rows.withColumns({**times, "context": F.lit(world.context), "batch": F.lit(1)})
            here.insert_new("archive", dated.withColumn("date", F.to_date("published_at")), "1 = 0")
    for days in days_ago:
        for name in incarnations:
            moved = messages.withColumn("time", F.col("time") - F.lit(timedelta(days=days)))
            incarnation = F.lit(name.format(created=created))
            dated = moved.withColumns({"incarnation": incarnation, "date": F.to_date("time")}).drop("created")
            here.insert_new("bronze", dated, "1 = 0")


@pytest.mark.long
async def test_since_reads_only_its_time_and_what_rows_name_whatever_the_broker_s_clock_said(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    lake, since = str(tmp_path / "lake"), datetime.now(UTC) - timedelta(days=2)
    await world.publish(5)
    await asyncio.to_thread(_to_lake, spark, world, lake, landed=5, days_ago=(0, 40, 80))
    await world.stored.purge()
    result = await _reconciled(spark, world, lake=lake, since=since)
    assert (result.rows["archive"], result.rows[f"bronze {world.stream}"]) == (5, 5)
    assert result.hops[0].verdicts == {Verdict.DELIVERED: 5}

    await world.publish(5)
    future = datetime.now(UTC) + timedelta(days=3)  # as if the broker's clock had been days behind
    events = await world.pool.fetch("SELECT id FROM outbox_events ORDER BY seq DESC LIMIT 5")
    await world.pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    await world.pool.execute(
        "UPDATE outbox_events SET created_at = $1, published_at = $1 WHERE id = ANY ($2::uuid[])",
        future + timedelta(seconds=1), [row["id"] for row in events],
    )  # fmt: skip
    late = await _reconciled(spark, world, since=future)
    assert late.hops[0].verdicts == {Verdict.DELIVERED: 5}
    assert late.rows[world.stream] == 5


@pytest.mark.long
async def test_a_landed_message_gives_way_to_that_of_a_later_restore(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    ids = await world.publish(5)
    older = ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z#1", "{created}", "{created}#1")
    await asyncio.to_thread(_to_lake, spark, world, lake, landed=5, incarnations=older)
    await world.stored.purge()
    result = await _reconciled(spark, world, lake=lake)
    # The copies of a restore are the same messages; those of a stream deleted in 2020 are others.
    assert result.rows[f"bronze {world.stream}"] == 20
    assert result.hops[0].verdicts == {Verdict.DUPLICATED: 5}
    assert set(result.hops[0].examples[Verdict.DUPLICATED]) == set(ids)


async def test_more_lost_than_the_cap_or_a_dry_run_changes_nothing(
    database: Database, spark: SparkSession
) -> None:
    settings = Settings.model_validate({"database_url": database.dsn, "nats_url": "nats://127.0.0.1:1"})
    rows = [(uuid4().bytes, True, 1), (uuid4().bytes, True, 2), (uuid4().bytes, False, 3)]
    missing = spark.createDataFrame(rows, "id BINARY, in_table BOOLEAN, seq BIGINT")

    def asked(**given: Any) -> Requeued:
        return _put_back(settings, missing, replace(REQUEUE, **{"cap": 2} | given), LOG.info)

    dry = asked(dry_run=True)
    assert (dry.lost, dry.replayed, dry.capped) == (3, 0, False)
    assert dry.archived == [str(UUID(bytes=rows[2][0]))]
    capped = asked(cap=1)
    assert (capped.replayed, capped.capped) == (0, True)


async def test_what_makes_a_result_wrong_is_an_error(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="already exists: name a new folder"):
        await _reconciled(spark, world, out=str(tmp_path))
    with pytest.raises(PipelineError, match="there is no lake"):
        await _reconciled(spark, world, lake=str(tmp_path / "nowhere"))
    await world.publish(3)
    turned = asyncio.Event()

    def purge(line: str) -> None:
        if "read 3" in line:
            asyncio.run_coroutine_threadsafe(_recreated(world), loop).result()
            turned.set()

    loop = asyncio.get_running_loop()
    with pytest.raises(DataLossError, match="recreated or restored during the read"):
        await _reconciled(spark, world, on_progress=purge)
    assert turned.is_set()


async def _recreated(world: World) -> None:
    await world.stored.drop()
    await make_world(world.pool, world.connection, world.settings)

"""reconcile where rows and messages have moved on: broker set back, archive, retention, a receiver."""

import asyncio
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.operators.changes import recorded
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.outbox.maintenance import RECONCILE
from sea_mq_worker.pipeline import session
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile.job import reconcile
from sea_mq_worker.pipeline.jobs.reconcile.lost_events import put_back
from sea_mq_worker.pipeline.jobs.reconcile.result import (
    ReconcileRequest,
    Reconciliation,
    Requeue,
    Requeued,
    Verdict,
)
from sea_mq_worker.pipeline.lake.erased_ids import id_hash
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
from sea_mq_worker.pipeline.lake.table import Conditions, Files, LakeTable, Watermark
from sea_mq_worker.pipeline.snapshot import read_outbox, snapshot
from sea_mq_worker.pipeline.sources.jetstream.state import stream_state
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import Settings, config_file
from tests.pipeline.reconcile_world import IN_TIME, World, make_world
from tests.support.jetstream import connected, store
from tests.support.programs import own_programs
from tests.support.rows import opened
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, running

NONE_IS_OPEN = "SELECT NOT EXISTS (SELECT FROM outbox_events WHERE is_open)"
LOG = logging.getLogger(__name__)
_PACE_SECONDS = 0.2


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.fault("P33")
async def test_what_a_broker_lost_that_was_set_back_is_named_and_put_back(
    *,
    pool: asyncpg.Pool,
    spark: SparkSession,
    settings_with: Callable[..., Settings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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

        told = await asyncio.to_thread(_requeue, spark, monkeypatch, tmp_path / "out")
        await _relayed(world, tmp_path / "worker.log")
        async with _traffic(world):
            after = await _reconciled(spark, world)

    assert told["hops"][0]["verdicts"] == {"missing-in-stream": 100, "delivered": 220}
    assert set(told["hops"][0]["examples"]["missing-in-stream"]) <= set(lost)
    assert "80 lost IDs were acknowledged above its last sequence 220" in told["notes"][0]
    assert (told["requeued"]["lost"], told["requeued"]["replayed"]) == (100, 100)
    assert _written(tmp_path / "out") == set(lost)
    assert set(after.hops[0].verdicts) <= {Verdict.DELIVERED, Verdict.PENDING}
    assert after.hops[0].verdicts[Verdict.DELIVERED] >= 320


def _requeue(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, out: Path) -> dict[str, Any]:
    """Run the command that doctor and log print, in the session of the tests."""

    @contextmanager
    def running(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", running)
    [(_, printed)] = own_programs(RECONCILE)
    command = [*printed, "--grace", "0", "--json", "--out", str(out)]
    runner = CliRunner()
    assert runner.invoke(app, [*command, "--reason", " "]).exit_code == 2
    ended = runner.invoke(app, [*command, "--actor", "ada"])
    assert ended.exit_code == 1
    assert "100 findings of altered, missing-in-inbox, missing-in-stream" in ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


async def _relayed(world: World, log: Path) -> None:
    environment = {"SEA_MQ_CONFIG": os.environ["SEA_MQ_CONFIG"], "SEA_MQ_ADMIN_PORT": "0"}
    async with running(Deployment(context=world.context, upstream="", environment=environment), log):
        await eventually(lambda: world.pool.fetchval(NONE_IS_OPEN), within=60)


def _written(folder: Path) -> set[str]:
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return {json.loads(line)["id"] for line in lines}


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
    request = ReconcileRequest(grace_seconds=0, **wanted)
    return await asyncio.to_thread(reconcile, spark, world.settings, request, on_progress=LOG.info)


@pytest.fixture
async def world(
    pool: asyncpg.Pool, nats_url: str, settings_with: Callable[..., Settings]
) -> AsyncIterator[World]:
    async with connected(nats_url) as connection:
        yield await make_world(pool, connection, settings_with(**IN_TIME))


@pytest.mark.slow
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
    early: int = 0,
) -> None:
    """Archive all rows, and land the first messages, once for each day as if that day had been today.

    ``early``: days by which the clock was behind when the events were published.
    """
    options = {"stream": world.stream, "endSeq": str(landed), "config": str(config_file())}
    messages = spark.read.format("jetstream").options(**options).load()
    archive, bronze = LakeTable(lake, ARCHIVE), LakeTable(lake, BRONZE)
    with snapshot(world.settings) as held:
        rows = read_outbox(spark, held).withColumns({"batch": F.lit(1), "context": F.lit(world.context)})
        days = [{"created_at": each, "published_at": each + early} for each in days_ago]
        archive.commit(_files(archive, rows, days), Watermark("archive", 1))
    created = stream_state(world.settings, world.stream).created
    rows = messages.withColumnRenamed("created", "incarnation")
    switched = StreamProgress(stream=world.stream, created=0).recreated(nanoseconds(created), ())
    bronze.commit(_files(bronze, rows, [{"time": each} for each in days_ago]), *switched)


def _files(table: LakeTable, rows: DataFrame, earlier: Sequence[Mapping[str, int]]) -> Files:
    """Write the rows several times, with times some days earlier, the last one the partition's."""
    written = []
    for days in earlier:
        times = {name: F.col(name) - F.lit(timedelta(days=each)) for name, each in days.items()}
        written.append(table.write(rows.withColumns(times).withColumn("date", F.to_date([*days][-1]))))
    return Files(
        tuple(each for files in written for each in files.actions), sum(files.rows for files in written)
    )


async def test_since_reads_only_the_files_of_its_time(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, read, entries = str(tmp_path / "lake"), [], LakeTable.entries

    def spy(table: LakeTable, skip_unless: Conditions) -> pa.Table:
        found = entries(table, skip_unless)
        read.extend(found["path"].to_pylist())
        return found

    await world.publish(5)
    await asyncio.to_thread(_to_lake, spark, world, lake, landed=5, days_ago=(0, 40, 80), early=2)
    await world.stored.purge()
    monkeypatch.setattr(LakeTable, "entries", spy)
    result = await _reconciled(spark, world, lake=lake, since=datetime.now(UTC) - timedelta(days=1))

    dates = {f"date={datetime.now(UTC).date() - timedelta(days=days)}" for days in (0, 2)}
    assert {path.split("/")[1] for path in read} == dates
    assert (result.rows["archive"], result.rows[f"bronze {world.stream}"]) == (5, 5)
    assert result.hops[0].verdicts == {Verdict.DELIVERED: 5}


async def test_more_lost_than_the_cap_or_a_dry_run_changes_nothing(
    database: Database, spark: SparkSession
) -> None:
    settings = Settings.model_validate({"database_url": database.dsn, "nats_url": "nats://127.0.0.1:1"})
    rows = [(str(uuid4()), True, 1), (str(uuid4()), True, 2), (str(uuid4()), False, 3)]
    missing = spark.createDataFrame(rows, "id string, in_table boolean, seq bigint")

    def asked(**given: Any) -> Requeued:
        how = Requeue(**{"actor": "ada", "reason": "test", "cap": 2, "dry_run": False} | given)
        return put_back(settings, missing, how, LOG.info)

    dry = asked(dry_run=True)
    assert (dry.lost, dry.replayed, dry.capped, dry.archived) == (3, 0, False, [rows[2][0]])
    capped = asked(cap=1)
    assert (capped.replayed, capped.capped) == (0, True)

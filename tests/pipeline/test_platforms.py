"""The jobs run on a cluster, whose executors have environments of their own, and by Spark Connect."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import LandedLake, events_of
from tests.pipeline.reconcile_world import IN_TIME, make_world
from tests.support.documents import ROOT, commands, shell
from tests.support.jetstream import connected, create_stream
from tests.support.spark_cluster import SPARK_HOME, connect_server, standalone_cluster

DOCUMENT = "docs/how-to/pipeline.md"
MESSAGES = 3000
EVENTS = 60
BY = "--actor ada --reason test"
FOREIGN = {
    "spark.app.name": "of an operator",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.shuffle.partitions": "3",
}
FOR_TESTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
    "spark.executor.memory": "600m",
    "spark.log.level": "ERROR",
}
pytestmark = pytest.mark.long


async def test_the_commands_of_the_document_submit_a_job_with_its_packages_to_a_standalone_master(
    stream: Stream, nats_url: str, tmp_path: Path
) -> None:
    """Each executor finds the packages in the archive and the settings in its own environment."""
    environment = {"SEA_MQ_NATS_URL": nats_url, "SEA_MQ_STREAM": stream.name, "SEA_MQ_CONSUMERS": ""}
    await stream.publish(events_of(stream.name, MESSAGES))

    landed = await asyncio.to_thread(land_on_cluster, tmp_path, environment)

    assert landed["rows"] == MESSAGES
    bronze = DeltaTable(tmp_path / "lake" / "bronze").to_pyarrow_table(columns=["seq"])
    assert sorted(bronze["seq"].to_pylist()) == list(range(1, MESSAGES + 1))
    assert FOREIGN.items() <= properties(tmp_path / "log").items()


@pytest.mark.timeout(1200)
async def test_all_jobs_but_land_run_on_a_spark_connect_server(
    spark: SparkSession,
    pool: asyncpg.Pool,
    nats_url: str,
    settings_with: Callable[..., Settings],
    tmp_path: Path,
) -> None:
    settings = settings_with(**IN_TIME)
    lake = LandedLake(spark, tmp_path / "lake", settings)
    async with connected(nats_url) as connection:
        world = await make_world(pool, connection, settings)
        await create_stream(connection, settings.dlq_stream, f"{settings.context}.dlq.>")
        ids = await world.publish(EVENTS)
        await lake.land(world.stream)
        with connect_server(tmp_path) as server:
            printed = await asyncio.to_thread(printed_over_connect, server, lake.folder, ids[0])
        for name in (world.stream, settings.dlq_stream):
            await Stream(connection, name).drop()

    landed, reported, judged, archived, erased, replayed = printed
    assert "needs a Spark session of its own process" in landed
    assert f"{EVENTS} events written, {EVENTS} published" in reported
    assert re.search(rf"delivered +{EVENTS} ", judged)
    assert f"archived {EVENTS} events, deleted {EVENTS}" in archived
    assert "1 events erased" in erased
    assert f"replayed {EVENTS - 1} of {EVENTS - 1} events" in replayed
    assert lake.count("archive") == await pool.fetchval("SELECT count(*) FROM outbox_events") == EVENTS - 1


def printed_over_connect(server: str, lake: Path, one: str) -> list[str]:
    """Run each job, and return what it printed; `land` is refused."""
    where = f"--lake {lake} --master {server}"
    jobs = (
        f"report {where} --out {lake.parent / 'report.html'}",
        f"reconcile {where}",
        f"archive {where} --before 1s {BY}",
        f"erase {where} --id {one} {BY} --yes",
        f"replay {where} --state PUBLISHED {BY} --yes",
    )
    refused = shell(f"! python -m sea_mq_worker pipeline land {where}")
    return [refused, *(shell(f"python -m sea_mq_worker pipeline {job}") for job in jobs)]


def land_on_cluster(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return the result of the job, for which both workers had an executor."""
    run(folder, f"{sys.executable} -m hatchling build -t wheel -d {folder}", {}, at=ROOT)
    (folder / "requirements").symlink_to(ROOT / "requirements")
    (folder / "log").mkdir()
    lines = [command.text for command in commands(DOCUMENT, "On a cluster")]
    *_, submit = [line for line in lines if "spark://" in line]
    for command in [line for line in lines if "spark://" not in line]:
        run(folder, command, {})
    given = {**FOR_TESTS, **FOREIGN, "spark.eventLog.dir": (folder / "log").as_uri()}
    options = " ".join(f"--conf {shlex.quote('='.join(pair))}" for pair in given.items())
    with standalone_cluster(folder, workers=2, environment=environment) as master:
        line = submit.replace("spark://host:7077", f"{master} {options}")
        ran = run(folder, f"{line} --lake {folder / 'lake'} --json", environment)
    assert len(list(folder.glob("worker-*/app-*/*/stderr"))) == 2
    # spark-submit sends stderr, and so the progress, to stdout as well.
    landed: dict[str, Any] = json.loads(ran[ran.index("{\n") :])
    return landed


def run(folder: Path, command: str, environment: dict[str, str], *, at: Path | None = None) -> str:
    """Run a command of a shell, with a Python that has none of the packages for Spark."""
    programs = [SPARK_HOME / "bin", Path(sys.executable).parent, os.environ["PATH"]]
    ran = subprocess.run(
        command,
        shell=True,
        env={
            **os.environ, **environment, "PATH": os.pathsep.join(map(str, programs)),
            "PYSPARK_PYTHON": sys._base_executable,
        },
        cwd=at or folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def properties(log: Path) -> dict[str, str]:
    """Return the properties that Spark used, as its log of events has them."""
    [file] = log.rglob("events_1_*")
    events = map(json.loads, file.read_text().splitlines())
    [found] = (one["Spark Properties"] for one in events if one["Event"] == "SparkListenerEnvironmentUpdate")
    return dict(found)

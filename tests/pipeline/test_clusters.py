"""The jobs run on a cluster, where executors are processes of their own with environments of their own."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import sea_mq_worker
from sea_mq_worker.adapters.nats.connection import api
from sea_mq_worker.pipeline.java import java_home
from tests.pipeline.landing import event, publish
from tests.support.jetstream import connected, create_stream
from tests.support.spark_cluster import SPARK_HOME, standalone_cluster

ENTRY = Path(sea_mq_worker.__path__[0]) / "__main__.py"
MESSAGES = 12_000  # more than one task reads
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.log.level": "ERROR",
}


@pytest.mark.long
async def test_a_job_is_submitted_to_a_standalone_master_with_two_workers(
    nats_url: str, names: str, tmp_path: Path
) -> None:
    """The driver and each executor find the same settings, each in its own environment."""
    environment = {"SEA_MQ_NATS_URL": nats_url, "SEA_MQ_STREAM": names, "SEA_MQ_CONSUMERS": ""}
    async with connected(nats_url) as server:
        await create_stream(server, names, f"{names}.>", allow_direct=True)
        await publish(server, names, [event(names, number) for number in range(MESSAGES)])

        landed = await asyncio.to_thread(land_on_cluster, tmp_path, environment)

        assert landed["rows"] == MESSAGES
        bronze = DeltaTable(tmp_path / "lake" / "bronze").to_pyarrow_table(columns=["seq"])
        assert sorted(bronze["seq"].to_pylist()) == list(range(1, MESSAGES + 1))
        await api(server, f"STREAM.DELETE.{names}")


def land_on_cluster(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return what the job says, which both workers had an executor for."""
    with standalone_cluster(folder, workers=2, environment=environment) as master:
        ran = subprocess.run(
            [
                SPARK_HOME / "bin" / "spark-submit", "--master", master,
                *(part for pair in CONF.items() for part in ("--conf", "=".join(pair))),
                ENTRY, "pipeline", "land", "--lake", folder / "lake", "--json",
            ],
            env={
                **os.environ, **environment,
                "JAVA_HOME": str(java_home(folder / "java")), "PYSPARK_PYTHON": sys.executable,
            },
            cwd=folder, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert len(list(folder.glob("worker-*/app-*/*/stderr"))) == 2
    # spark-submit sends stderr, and so the progress, to stdout as well.
    landed: dict[str, Any] = json.loads(ran.stdout[ran.stdout.index("{") :])
    return landed

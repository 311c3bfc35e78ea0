"""Spark servers on loopback, from the pip package: a standalone master with workers, and Spark Connect."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from sea_mq_worker.pipeline.session import packages
from tests.support.documents import ROOT

SPARK_HOME = Path(pyspark.__path__[0])
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a session of somebody else needs for the lake."""

_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker")
_MASTER = "org.apache.spark.deploy.master.Master"
_START_SECONDS = 180.0
_POLL_SECONDS = 0.1
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_CONNECT_ADDRESS = re.compile(r"Spark Connect server started at: \S+:(\d+)")
_WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(folder: Path, *, workers: int, environment: dict[str, str]) -> Iterator[str]:
    """Run a master and workers of one core each; provide the master's address.

    Args:
        folder: for logs and the workers' files.
        workers: how many.
        environment: what the executors find in theirs.
    """
    with ExitStack() as stack:
        told = folder / "master.log"
        stack.enter_context(_daemon(told, _MASTER, "--port", "0", "--webui-port", "0", environment={}))
        address = _wait_for(told, _ADDRESS)[0]
        for number in range(workers):
            arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            log = folder / f"worker-{number}.log"
            stack.enter_context(_daemon(log, _WORKER, *arguments, address, environment=environment))
        _wait_for(told, _REGISTERED, times=workers)
        yield address


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a Spark Connect server of two cores with Delta Lake; its tasks have this process' environment."""
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars.packages": ",".join(packages()),
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.ui.enabled": "false",
        **DELTA,
    }
    options = (part for pair in properties.items() for part in ("--conf", "=".join(pair)))
    log = folder / "connect.log"
    command = ("spark-submit", "--master", "local[2]", *options, "--class", _CONNECT, "spark-internal")
    with _program(log, *command, environment={"SPARK_DAEMON_MEMORY": "1g", "PYTHONPATH": str(ROOT)}):
        yield f"sc://127.0.0.1:{_wait_for(log, _CONNECT_ADDRESS)[0]}"


@contextmanager
def _daemon(log: Path, main: str, *arguments: str, environment: dict[str, str]) -> Iterator[None]:
    with _program(log, "spark-class", main, "--host", "127.0.0.1", *arguments, environment=environment):
        yield


@contextmanager
def _program(log: Path, name: str, *arguments: str, environment: dict[str, str]) -> Iterator[None]:
    with log.open("w") as errors:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / name, *arguments],
            env={
                **os.environ,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(log: Path, pattern: re.Pattern[str], *, times: int = 1) -> list[str]:
    deadline = time.monotonic() + _START_SECONDS
    while len(found := pattern.findall(log.read_text())) < times:
        if time.monotonic() > deadline:
            raise TimeoutError(log.read_text())
        time.sleep(_POLL_SECONDS)
    return found

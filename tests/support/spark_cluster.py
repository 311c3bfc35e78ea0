"""A standalone Spark master with workers, each a process of its own on loopback, from the pip package."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from sea_mq_worker.pipeline.java import find_java_home

SPARK_HOME = Path(pyspark.__path__[0])

_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker")
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(folder: Path, *, workers: int, environment: dict[str, str]) -> Iterator[str]:
    """Run a master and workers of one core each; provide the master's address.

    Args:
        folder: for the workers' files.
        workers: how many.
        environment: what the executors find in theirs.
    """
    with ExitStack() as stack:
        master = stack.enter_context(_daemon(_MASTER, "--port", "0", "--webui-port", "0", environment={}))
        address = _wait_for(master, _ADDRESS)[1]
        for number in range(workers):
            arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            stack.enter_context(_daemon(_WORKER, *arguments, address, environment=environment))
            _wait_for(master, _REGISTERED)
        yield address


@contextmanager
def _daemon(main: str, *arguments: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [SPARK_HOME / "bin" / "spark-class", main, "--host", "127.0.0.1", *arguments],
        env={
            **os.environ,
            **environment,
            "JAVA_HOME": str(find_java_home()),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _wait_for(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if found := pattern.search(line):
            return found
    raise AssertionError(f"the process ended: {''.join(told)}")

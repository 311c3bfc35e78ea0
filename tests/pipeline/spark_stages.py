"""What a block of work asked of Spark, as the REST API of its web page tells."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession


@dataclass
class Work:
    """Filled at the end of the block.

    Attributes:
        jobs: the descriptions of the Spark jobs, in order.
        shuffled: bytes written for shuffles.
    """

    jobs: list[str] = field(default_factory=list)
    shuffled: int = 0


@contextmanager
def watched(spark: SparkSession) -> Iterator[Work]:
    """Count what the session does during the block, all its threads together."""
    work = Work()
    before = {job["jobId"] for job in _settled(spark)}
    yield work
    jobs = sorted(
        (job for job in _settled(spark) if job["jobId"] not in before), key=lambda job: job["jobId"]
    )
    stages = {stage for job in jobs for stage in job["stageIds"]}
    work.jobs = [job.get("description") or job["name"] for job in jobs]
    work.shuffled = sum(
        stage["shuffleWriteBytes"] for stage in _asked(spark, "stages") if stage["stageId"] in stages
    )


def _settled(spark: SparkSession) -> list[dict[str, Any]]:
    """Return the jobs once the page, which lags behind a little, knows that all have ended."""
    spark.range(1).collect()
    deadline = time.monotonic() + 30
    while True:
        jobs = _asked(spark, "jobs")
        if jobs and all(job["status"] != "RUNNING" for job in jobs):
            return jobs
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _asked(spark: SparkSession, what: str) -> list[dict[str, Any]]:
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found

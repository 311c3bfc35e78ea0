"""Publish a backlog that is too large for one process: ``run --until-empty`` in many Spark tasks.

Each task is a worker with its own name and leases. Therefore running workers, other drains and a repeated or
speculative task cannot publish an event at the same time, and the order of each key is kept. A publisher uses
one core. Spark stops a task by SIGKILL: other workers then take over its claims, as from any killed worker.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa
import uvloop
from pyspark.sql import SparkSession

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.backlog import BacklogCounts, count_backlog
from sea_mq_worker.pipeline.session import described, parallelism
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.settings import Settings, config_file, load_settings
from sea_mq_worker.worker import run_worker


def drain(spark: SparkSession, settings: Settings, *, tasks: int | None = None) -> BacklogCounts:
    """Publish the events that are due now; return what is left when none of them can be published any more.

    ``tasks`` is the number of parallel publishers, by default the cluster's number of cores. Each loads its
    own settings and connects to the servers like a worker.

    Raises:
        ContractError: PostgreSQL, the stream or an executor's settings do not meet the worker's requirements.
        UnavailableError: PostgreSQL is unavailable at the start or at the end.
        WorkerError: a publisher failed.
    """
    publishers = tasks or parallelism(spark)
    found = asyncio.run(count(settings))
    with described(spark, f"drain {found.due} events"):
        ids = spark.range(0, publishers, 1, publishers)
        ids.mapInArrow(partial(_publish, config_file()), "id bigint").collect()
    return asyncio.run(count(settings, since=found.at))


async def count(settings: Settings, *, since: datetime | None = None) -> BacklogCounts:
    """Count the unpublished events of the backlog at a time; None: now."""
    async with open_tables(settings, purpose="backlog") as pool:
        return await count_backlog(pool, since=since)


def _publish(config: str | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a publisher in a task, for ``DataFrame.mapInArrow``; pass the task's input on."""
    settings = load_settings(needs=("database_url", "nats_url"), config=config)
    settings = settings.model_copy(update={"log_level": "warning"})
    code = uvloop.run(run_worker(settings, asyncio.Event(), until_empty=True))
    if code > ExitCode.FAILED:
        kind = ContractError if code is ExitCode.CONTRACT else WorkerError
        raise kind(f"a publisher ended with exit code {code}: the executor's log names the cause")
    return batches

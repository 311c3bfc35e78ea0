"""Publish a backlog that is too large for one process: ``run --until-empty`` in many Spark tasks.

Each task is a worker with its own name and leases. Therefore running workers, other drains and a repeated or
speculative task cannot publish an event at the same time, and the order of each key is kept. A publisher uses
one core. Spark stops a task by SIGKILL: other workers then take over its claims, as from any killed worker.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import uvloop
from pyspark.sql import SparkSession

from sea_mq_worker.application.supervisor import ExitCode
from sea_mq_worker.bootstrap.worker.backlog import BacklogCounts, count_backlog
from sea_mq_worker.bootstrap.worker.run import run_worker
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.pipeline.executor_settings import access_options, executor_settings
from sea_mq_worker.pipeline.session import described, parallelism
from sea_mq_worker.settings import Settings


def drain(spark: SparkSession, settings: Settings, *, tasks: int | None = None) -> BacklogCounts:
    """Publish the events that are due now; return what is left when none of them can be published any more.

    Args:
        spark: the session that runs the tasks. Each task connects to the servers like a worker.
        settings: the driver's settings; each task loads its own.
        tasks: number of parallel publishers; default: the cluster's number of cores.

    Raises:
        ContractError: PostgreSQL, the stream or an executor's settings do not meet the worker's requirements.
        UnavailableError: PostgreSQL is unavailable at the start or at the end.
        WorkerError: a publisher failed.
    """
    count = tasks or parallelism(spark)
    found = asyncio.run(count_backlog(settings))
    with described(spark, f"drain {found.due} events"):
        spark.range(0, count, 1, count).mapInArrow(_Publisher(access_options()), "id bigint").collect()
    return asyncio.run(count_backlog(settings, since=found.at))


@dataclass(frozen=True, slots=True)
class _Publisher:
    """The function of a task, for ``DataFrame.mapInArrow``; it passes its input on."""

    access: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settings = executor_settings(self.access, needs=("database_url", "nats_url")).model_copy(
            update={"log_level": "warning"}
        )
        code = uvloop.run(run_worker(settings, asyncio.Event(), until_empty=True))
        if code > ExitCode.FAILED:
            kind = ContractError if code is ExitCode.CONTRACT else WorkerError
            raise kind(f"a publisher ended with exit code {code}: the executor's log names the cause")
        return batches

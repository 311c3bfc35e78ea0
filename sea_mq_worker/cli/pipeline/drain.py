"""The command ``pipeline drain``: publish a large backlog with many Spark tasks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    MasterOption,
    run_job,
    run_without_spark,
)
from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.bootstrap.worker.backlog import BacklogCounts
    from sea_mq_worker.settings import Settings

TasksOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of parallel publishers (default: the cluster's number of cores)."),
]


def drain(
    *,
    tasks: TasksOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish the outbox's backlog with many parallel publishers, beside running workers.

    Each publisher is a `run --until-empty`. The command may be stopped at any time and run again. Exit code
    0: all events that were due at the start are published; 1: some are left, DEAD or waiting for a retry.
    """

    def count(settings: "Settings") -> "BacklogCounts":
        import asyncio

        from sea_mq_worker.bootstrap.worker.backlog import count_backlog

        return asyncio.run(count_backlog(settings))

    def job(spark: "SparkSession", settings: "Settings") -> "BacklogCounts":
        from sea_mq_worker.pipeline.jobs.drain import drain as drain_

        return drain_(spark, settings, tasks=tasks)

    if dry_run:
        counts = run_without_spark(count, needs=("database_url",))
    else:
        counts = run_job("drain", job, needs=("database_url", "nats_url"), master=master, conf=conf)
    if json:
        print_json(asdict(counts))
    else:
        typer.echo(f"unpublished: {counts}")
    if counts.left and not dry_run:
        raise typer.Exit(EXIT_FAILED)

"""The command ``pipeline drain``: publish a large backlog with many Spark tasks."""

import asyncio
from typing import Annotated

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    MasterOption,
    job_settings,
    open_spark,
    print_result,
)
from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption

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
    with job_settings(*(("database_url",) if dry_run else ("database_url", "nats_url"))) as settings:
        from sea_mq_worker.pipeline.jobs.drain import count
        from sea_mq_worker.pipeline.jobs.drain import drain as drain_

        if dry_run:
            counts = asyncio.run(count(settings))
        else:
            with open_spark("drain", master=master, conf=conf) as spark:
                counts = drain_(spark, settings, tasks=tasks)
    print_result(counts, f"unpublished: {counts}", json=json)
    if counts.left and not dry_run:
        raise typer.Exit(EXIT_FAILED)

"""The command ``pipeline drain``: publish a large backlog with many Spark tasks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    MasterOption,
    print_progress,
    run_job,
)
from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.drain import DrainProgress, DrainResult
    from sea_mq_worker.settings import Settings


TasksOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of parallel publishers (default: the cluster's number of cores)."),
]
UntilEmptyOption = Annotated[
    bool, typer.Option("--until-empty", help="Continue until no event is due, including new events.")
]
RoundOption = Annotated[
    float,
    typer.Option(min=1, help="Seconds that a task works before it reports its counts and can stop."),
]


def drain(
    *,
    tasks: TasksOption = None,
    until_empty: UntilEmptyOption = False,
    round_seconds: RoundOption = 10.0,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish the outbox's backlog with many parallel publishers, beside running workers.

    The command ends when all events that were due at its start are published. The first SIGTERM or SIGINT
    ends it after the current round with all claims settled. The second ends it immediately, and claims last
    until their leases expire. Exit code 0: drained; 1: events remain, not counting dead ones.
    """

    def job(spark: "SparkSession", settings: "Settings") -> "DrainResult":
        import asyncio

        from sea_mq_worker.cli.signals import stop_on_signals
        from sea_mq_worker.pipeline.jobs.drain import drain as drain_

        async def main() -> "DrainResult":
            stop = asyncio.Event()
            stop_on_signals(stop)
            return await drain_(
                spark,
                settings,
                stop=stop,
                on_progress=_print_progress,
                tasks=tasks,
                until_empty=until_empty,
                dry_run=dry_run,
                round_seconds=round_seconds,
            )

        return asyncio.run(main())

    result = run_job("drain", job, needs=("database_url", "nats_url"), master=master, conf=conf)
    if json:
        print_json(asdict(result) | {"left": result.left, "dry_run": dry_run})
    else:
        typer.echo(_summary(result, dry_run=dry_run))
    if result.left and not dry_run:
        raise typer.Exit(EXIT_FAILED)


def _print_progress(progress: "DrainProgress") -> None:
    text = f"drain: {progress.left:,} left, {progress.per_second:,.0f} a second"
    if progress.left and progress.seconds_left is not None:
        text += f", about {_clock(progress.seconds_left)} remaining"
    if progress.trouble:
        text += f"; waiting: {progress.trouble}"
    print_progress(text)


def _summary(result: "DrainResult", *, dry_run: bool) -> str:
    if dry_run:
        return (
            f"{result.backlog:,} events would be drained by {result.tasks} tasks; "
            f"{result.postponed:,} failed events wait for their retry"
        )
    text = (
        f"backlog {result.backlog:,}, left {result.left:,}; {result.tasks} tasks published "
        f"{result.published:,} in {_clock(result.seconds)} ({result.per_second:,.0f} a second)"
    )
    if result.dead:
        text += f"; {result.dead:,} ended DEAD, see `outbox list --state DEAD`"
    if result.stopped and result.left:
        text += "; stopped, run the same command to continue"
    elif result.left:
        text += (
            f"; {result.due:,} are claimed or wait for an earlier event of their key,"
            f" {result.postponed:,} wait for their retry"
        )
    return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"

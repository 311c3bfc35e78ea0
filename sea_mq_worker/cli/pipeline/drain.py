"""``pipeline drain``: publish a large backlog by many Spark tasks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.pipeline.support import ConfOption, DryRunOption, MasterOption, run_job, say
from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.drain import DrainProgress, DrainResult
    from sea_mq_worker.settings import Settings


TasksOption = Annotated[
    int | None,
    typer.Option(min=1, help="Relays side by side; as many as the cluster has cores unless given."),
]
UntilEmptyOption = Annotated[
    bool, typer.Option("--until-empty", help="Go on until nothing is due, new events included.")
]
RoundOption = Annotated[
    float, typer.Option(min=1, help="How long a task works before it tells its counts, and before a stop.")
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
    """Publish the outbox's backlog by many relays at once, beside running workers.

    Ends when nothing is left of what was due at its start. The first SIGTERM or SIGINT ends it after the
    round under way, with all claims settled; the second at once: claims then last as long as their leases.
    Exit code 0: drained; 1: events are left, dead ones not counted.
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
                on_progress=_tell,
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


def _tell(progress: "DrainProgress") -> None:
    text = f"drain: {progress.left:,} left, {progress.per_second:,.0f} a second"
    if progress.left and progress.seconds_left is not None:
        text += f", about {_clock(progress.seconds_left)} to go"
    if progress.trouble:
        text += f"; waits: {progress.trouble}"
    say(text)


def _summary(result: "DrainResult", *, dry_run: bool) -> str:
    if dry_run:
        return (
            f"{result.backlog:,} events would be drained by {result.tasks} tasks; "
            f"{result.postponed:,} that have failed wait for their retry"
        )
    text = (
        f"backlog {result.backlog:,}, left {result.left:,}; {result.tasks} tasks published "
        f"{result.published:,} in {_clock(result.seconds)} ({result.per_second:,.0f} a second)"
    )
    if result.dead:
        text += f"; {result.dead:,} ended DEAD, see `outbox list --state DEAD`"
    if result.stopped and result.left:
        text += "; stopped, the same command goes on"
    elif result.left:
        text += f"; {result.due:,} are held or behind an earlier event, {result.postponed:,} to retry later"
    return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"

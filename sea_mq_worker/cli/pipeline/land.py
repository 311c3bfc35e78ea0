"""``pipeline land``: streams into the lake."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    LakeOption,
    MasterOption,
    lake_of,
    look,
    run_job,
    say,
)
from sea_mq_worker.cli.support import JsonOption, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.land.job import LandProgress, LandResult
    from sea_mq_worker.settings import Settings

_NEEDS = ("nats_url",)
_POLL_SECONDS = 0.2


_Stream = Annotated[
    list[str] | None,
    typer.Option(help="Stream to land; may be repeated. SEA_MQ_STREAM and the consumers' unless given."),
]
_Every = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="Go on, with so long a pause when caught up."),
]
_BatchRows = Annotated[int, typer.Option(min=1, help="Most messages in one commit.")]
_AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Go on where messages are gone that were to be landed; say which."),
]
_DedupeDays = Annotated[
    int | None,
    typer.Option(min=0, help="Days back that copies of an id are looked for; all unless given."),
]
_LateSeconds = Annotated[
    float, typer.Option(min=0, help="An event stored so long after it occurred counts as late.")
]
_CompactFiles = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Merge a partition's small files where they are more; 0: never."),
]
_VacuumHours = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Delete merged files and those of killed runs after so many hours; no query may run longer.",
    ),
]


def land(
    *,
    lake: LakeOption = None,
    stream: _Stream = None,
    every: _Every = None,
    batch_rows: _BatchRows = 500_000,
    accept_loss: _AcceptLoss = False,
    dedupe_days: _DedupeDays = None,
    late_seconds: _LateSeconds = 60.0,
    compact_files: _CompactFiles = 50,
    vacuum_hours: _VacuumHours = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Land streams in the lake: as received, one row per event, and counted; each message once.

    Runs until all that the streams hold at the start is landed, or goes on with --every. It may be killed at
    any time and run again. The first SIGTERM or SIGINT ends it after the batch under way, the second at once.
    Exit code 1: a stream no longer holds what was to be landed, or another failure.
    """
    where = lake_of(lake)
    given = {
        "batch_rows": batch_rows,
        "accept_loss": accept_loss,
        "dedupe_days": dedupe_days,
        "late_seconds": late_seconds,
        "compact_files": compact_files or None,
        "vacuum_hours": vacuum_hours,
    }

    def left(settings: "Settings") -> None:
        _show_left(settings, where, stream or _streams(settings), json=json)

    def job(spark: "SparkSession", settings: "Settings") -> None:
        streams = stream or _streams(settings)
        _work(spark, settings, lake=where, streams=streams, given=given, every=every, json=json)

    if dry_run:
        look(left, needs=_NEEDS)
    else:
        run_job("land", job, needs=_NEEDS, master=master, conf=conf)


def _work(
    spark: "SparkSession",
    settings: "Settings",
    *,
    lake: str,
    streams: list[str],
    given: dict[str, Any],
    every: float | None,
    json: bool,
) -> None:
    """Land once, or again and again."""
    from sea_mq_worker.cli.pipeline.signals import stopping_on_signals
    from sea_mq_worker.pipeline.jobs.land.job import LandOptions
    from sea_mq_worker.pipeline.jobs.land.job import land as land_

    with stopping_on_signals() as is_stopping:
        once = partial(
            land_,
            spark,
            settings,
            lake=lake,
            streams=streams,
            options=LandOptions(**given),
            on_progress=_tell,
            is_stopping=is_stopping,
        )
        if every is None:
            _show(once(), json=json)
        else:
            _repeat(once, every, is_stopping, json=json)


def _show_left(settings: "Settings", lake: str, streams: list[str], *, json: bool) -> None:
    from sea_mq_worker.pipeline.jobs.land.job import count

    found = count(settings, lake=lake, streams=streams)
    if json:
        print_json(asdict(found))
        return
    for each in found.streams:
        typer.echo(
            f"{each.stream}: {each.left:,} messages would be landed, behind sequence {each.last_seq:,}"
        )


def _streams(settings: "Settings") -> list[str]:
    return list(dict.fromkeys([settings.stream, *(consumer.stream for consumer in settings.consumers)]))


def _repeat(
    once: "Callable[[], LandResult]", pause: float, is_stopping: Callable[[], bool], *, json: bool
) -> None:
    """Land again and again, through outages of NATS; show the runs that found something."""
    from sea_mq_worker.domain.errors import UnavailableError
    from sea_mq_worker.pipeline.spark_errors import translated

    while not is_stopping():
        try:
            with translated():
                result = once()
        except UnavailableError as error:
            say(f"land: waits: {error}")
        else:
            if result.rows or result.events or result.missing:
                _show(result, json=json)
        _wait(pause, is_stopping)


def _wait(seconds: float, is_stopping: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not is_stopping() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _tell(progress: "LandProgress") -> None:
    say(
        f"land: {progress.stream}: {progress.rows:,} messages, {progress.per_second:,.0f} a second, "
        f"{progress.left:,} left"
    )


def _show(result: "LandResult", *, json: bool) -> None:
    for text in result.missing:
        say(f"land: missing: {text}")
    if json:
        print_json(asdict(result))
        return
    for stream in result.streams:
        typer.echo(
            f"{stream.stream}: landed {stream.rows:,} messages up to sequence {stream.last_seq:,}, "
            f"{stream.left:,} left"
        )
    typer.echo(
        f"{result.events:,} new events, {result.partitions:,} days counted, "
        f"{result.compacted:,} partitions compacted, {result.seconds:,.1f} s"
    )

"""The command ``pipeline land``: copy streams into the lake."""

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
    print_progress,
    required_lake,
    run_job,
    run_without_spark,
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
    typer.Option(help="Stream to land; may be repeated (default: SEA_MQ_STREAM and the consumers' streams)."),
]
_Every = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="Repeat until stopped, with this pause between runs."),
]
_BatchRows = Annotated[int, typer.Option(min=1, help="Commit at most this many messages at once.")]
_AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Continue if messages were deleted before they could be landed, and report them.",
    ),
]
_DedupeDays = Annotated[
    int | None,
    typer.Option(min=0, help="Search this many days back for copies of a message ID (default: no limit)."),
]
_LateSeconds = Annotated[
    float, typer.Option(min=0, help="Count an event as late if stored this many seconds after it occurred.")
]
_CompactFiles = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Merge a partition's small files if there are more than N (0: never)."
    ),
]
_VacuumHours = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Delete merged files and files of killed runs after this many hours (default: never);"
        " no query may run longer.",
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
    """Copy streams into the lake, each message once: as received, as one row per event, and as counts.

    The command ends when all messages that the streams contained at its start are landed; with --every it
    repeats. It may be killed at any time and run again. The first SIGTERM or SIGINT ends it after the current
    batch, the second immediately. Exit code 1: messages were deleted before they could be landed, or another
    failure.
    """
    where = required_lake(lake)
    given = {
        "batch_rows": batch_rows,
        "accept_loss": accept_loss,
        "dedupe_days": dedupe_days,
        "late_seconds": late_seconds,
        "compact_files": compact_files or None,
        "vacuum_hours": vacuum_hours,
    }

    def remaining(settings: "Settings") -> None:
        _print_remaining(settings, where, stream or _streams(settings), json=json)

    def job(spark: "SparkSession", settings: "Settings") -> None:
        streams = stream or _streams(settings)
        _land(spark, settings, lake=where, streams=streams, given=given, every=every, json=json)

    if dry_run:
        run_without_spark(remaining, needs=_NEEDS)
    else:
        run_job("land", job, needs=_NEEDS, master=master, conf=conf)


def _land(
    spark: "SparkSession",
    settings: "Settings",
    *,
    lake: str,
    streams: list[str],
    given: dict[str, Any],
    every: float | None,
    json: bool,
) -> None:
    """Land once, or repeatedly with ``every``."""
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
            on_progress=_print_progress,
            is_stopping=is_stopping,
        )
        if every is None:
            _print_result(once(), json=json)
        else:
            _repeat(once, every, is_stopping, json=json)


def _print_remaining(settings: "Settings", lake: str, streams: list[str], *, json: bool) -> None:
    from sea_mq_worker.pipeline.jobs.land.job import count

    found = count(settings, lake=lake, streams=streams)
    if json:
        print_json(asdict(found))
        return
    for each in found.streams:
        typer.echo(f"{each.stream}: {each.left:,} messages would be landed, after sequence {each.last_seq:,}")


def _streams(settings: "Settings") -> list[str]:
    return list(dict.fromkeys([settings.stream, *(consumer.stream for consumer in settings.consumers)]))


def _repeat(
    once: "Callable[[], LandResult]", pause: float, is_stopping: Callable[[], bool], *, json: bool
) -> None:
    """Land repeatedly, also across outages of NATS; print the results of runs that found something."""
    from sea_mq_worker.domain.errors import UnavailableError
    from sea_mq_worker.pipeline.spark_errors import translated

    while not is_stopping():
        try:
            with translated():
                result = once()
        except UnavailableError as error:
            print_progress(f"land: waiting: {error}")
        else:
            if result.rows or result.events or result.missing:
                _print_result(result, json=json)
        _wait(pause, is_stopping)


def _wait(seconds: float, is_stopping: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not is_stopping() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _print_progress(progress: "LandProgress") -> None:
    print_progress(
        f"land: {progress.stream}: {progress.rows:,} messages, {progress.per_second:,.0f} a second, "
        f"{progress.left:,} left"
    )


def _print_result(result: "LandResult", *, json: bool) -> None:
    for text in result.missing:
        print_progress(f"land: missing: {text}")
    if json:
        print_json(asdict(result))
        return
    for stream in result.streams:
        typer.echo(
            f"{stream.stream}: landed {stream.rows:,} messages up to sequence {stream.last_seq:,}, "
            f"{stream.left:,} left"
        )
    typer.echo(
        f"{result.events:,} new events, {result.partitions:,} days recounted, "
        f"{result.compacted:,} partitions compacted, {result.seconds:,.1f} s"
    )

"""The command ``pipeline land``: copy streams into the lake."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    LakeOption,
    MasterOption,
    job_settings,
    open_spark,
    print_progress,
    print_result,
    required_lake,
)
from sea_mq_worker.cli.support import JsonOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.land.job import LandOptions, LandResult
    from sea_mq_worker.settings import Settings

_POLL_SECONDS = 0.2
_VACUUM_HOURS = 168
_VACUUM_SECONDS = 3600.0
_ROWS_WITHOUT_SPARK = 2_000_000
"""One process lands fewer messages in less time than Spark needs for its start."""


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
        help="Delete merged files and files of killed runs after this many hours (default: 168 with --every,"
        " otherwise never); no query may run longer.",
    ),
]
_Schemas = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Also write a typed table for each JSON Schema of this folder, named <type>.v<version>.json.",
    ),
]
_MetricsFile = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Write metrics to this file after each run, for node_exporter's textfile collector.",
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
    schemas: _Schemas = None,
    metrics_file: _MetricsFile = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Copy streams into the lake, each message once: as received, as one row per event, and as counts.

    The command ends when all messages that the streams contained at its start are landed; with --every it
    repeats. It may be killed at any time and run again. The first SIGTERM or SIGINT ends it after the current
    batch, the second immediately. It starts Spark for more than 2,000,000 messages, or for any if a master or
    a property is given; otherwise it works in one process. Exit code 1: messages were deleted before they
    could be landed, or another failure.
    """
    where = required_lake(lake)
    with job_settings("nats_url") as settings:
        from sea_mq_worker.pipeline.jobs.land.job import LandOptions
        from sea_mq_worker.pipeline.jobs.typed.event_schemas import load_event_schemas

        names = stream or [settings.stream, *(consumer.stream for consumer in settings.consumers)]
        if dry_run:
            _print_remaining(settings, where, names, json=json)
            return
        options = LandOptions(
            batch_rows=batch_rows,
            accept_loss=accept_loss,
            dedupe_days=dedupe_days,
            late_seconds=late_seconds,
            compact_files=compact_files or None,
            vacuum_hours=vacuum_hours,
            event_schemas=load_event_schemas(schemas) if schemas else (),
        )
        with _session(_left(settings, where, names), master, conf) as spark:
            once = partial(_land_once, spark, settings, metrics_file, lake=where, streams=names)
            _run(once, options, every, json=json)


def _session(
    left: int, master: str | None, conf: list[str] | None
) -> AbstractContextManager["SparkSession | None"]:
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started Spark
    rows_without_spark = 0 if master or conf or is_submitted else _ROWS_WITHOUT_SPARK
    return open_spark("land", master=master, conf=conf) if left > rows_without_spark else nullcontext()


def _left(settings: "Settings", lake: str, streams: list[str]) -> int:
    """Count the messages to land; none while NATS is unavailable, for which one process waits."""
    from sea_mq_worker.errors import UnavailableError
    from sea_mq_worker.pipeline.jobs.land.job import count

    try:
        return sum(each.left for each in count(settings, lake=lake, streams=streams).streams)
    except UnavailableError:
        return 0


def _land_once(
    spark: "SparkSession | None", settings: "Settings", metrics_file: Path | None, **given: Any
) -> "LandResult":
    from sea_mq_worker.pipeline.jobs.land.job import land as land_
    from sea_mq_worker.pipeline.metrics_file import write_metrics

    result = land_(spark, settings, on_progress=print_progress, **given)
    if metrics_file:
        metrics = {
            each.stream: {"rows": each.rows, "lag_sequences": each.left, "seconds": result.seconds}
            for each in result.streams
        }
        write_metrics(metrics_file, "land", metrics)
    return result


def _run(
    once: Callable[..., "LandResult"], options: "LandOptions", pause: float | None, *, json: bool
) -> None:
    """Land once; with a pause repeatedly, also across outages of NATS; print results with rows."""
    from sea_mq_worker.errors import UnavailableError
    from sea_mq_worker.pipeline.errors import translated
    from sea_mq_worker.pipeline.signals import stopping_on_signals

    with stopping_on_signals() as is_stopping:
        if pause is None:
            _print_result(once(options=options, is_stopping=is_stopping), json=json)
            return
        vacuum_at = 0.0
        while not is_stopping():
            is_due = time.monotonic() >= vacuum_at
            hours = (options.vacuum_hours or _VACUUM_HOURS) if is_due else None
            try:
                with translated():
                    result = once(options=replace(options, vacuum_hours=hours), is_stopping=is_stopping)
            except UnavailableError as error:
                print_progress(f"land: waiting: {error}")
            else:
                vacuum_at = time.monotonic() + _VACUUM_SECONDS if is_due else vacuum_at
                if result.rows or result.events or result.missing:
                    _print_result(result, json=json)
            until = time.monotonic() + pause
            while not is_stopping() and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)


def _print_remaining(settings: "Settings", lake: str, streams: list[str], *, json: bool) -> None:
    from sea_mq_worker.pipeline.jobs.land.job import count

    found = count(settings, lake=lake, streams=streams)
    lines = [
        f"{each.stream}: {each.left:,} messages would be landed, after sequence {each.last_seq:,}"
        for each in found.streams
    ]
    print_result(found, "\n".join(lines), json=json)


def _print_result(result: "LandResult", *, json: bool) -> None:
    for text in result.missing:
        print_progress(f"land: missing: {text}")
    lines = [
        f"{each.stream}: landed {each.rows:,} messages up to sequence {each.last_seq:,}, {each.left:,} left"
        for each in result.streams
    ]
    lines.append(
        f"{result.events:,} new events, {result.partitions:,} days recounted, "
        f"{result.compacted:,} partitions compacted, {result.seconds:,.1f} s"
    )
    if result.violations:
        lines.append(
            f"{result.violations:,} events violate their schema; the table typed/quarantine has the reasons"
        )
    print_result(result, "\n".join(lines), json=json)

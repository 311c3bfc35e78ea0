"""The command ``pipeline archive``: move old published events from the outbox to the lake."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

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
from sea_mq_worker.cli.support import EXIT_USAGE, ActorOption, JsonOption, ReasonOption, abort, moment

if TYPE_CHECKING:
    from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult

BeforeOption = Annotated[
    datetime,
    typer.Option(
        "--before",
        parser=moment,
        metavar="TIME",
        help="Archive events published before this time: ISO 8601, or an age such as 30d.",
    ),
]
BatchOption = Annotated[
    int, typer.Option(min=1000, help="Approximate number of events written and verified per batch.")
]
PaceOption = Annotated[
    int, typer.Option(min=1, help="Delete at most about this many events a second, to spare the worker.")
]


def archive(
    *,
    before: BeforeOption,
    reason: ReasonOption,
    actor: ActorOption,
    lake: LakeOption = None,
    batch_rows: BatchOption = 500_000,
    per_second: PaceOption = 20_000,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Move published events from the outbox to the lake; verify each batch before deleting its events.

    A batch is read back from the lake and must match PostgreSQL's event count and content. An event that is
    replayed in the meantime stays in the outbox. A partition whose events are all verified is dropped. The
    command may run beside workers, and may be repeated after any interruption: it first finishes the batches
    of an earlier run, regardless of --before. Exit code 0: done; 1: the lake differs from PostgreSQL, or a
    server failed.
    """
    if before > datetime.now(UTC):
        abort("--before: must be past; otherwise events would leave on publication", EXIT_USAGE)
    where = required_lake(lake)
    with job_settings("database_url") as settings:
        from sea_mq_worker.pipeline.jobs.archive import job

        result = job.count(settings, where, before=before)
        if not dry_run and (result.found or result.resumed):
            with open_spark("archive", master=master, conf=conf) as spark:
                result = job.archive(
                    spark,
                    settings,
                    where,
                    before=before,
                    actor=actor,
                    reason=reason,
                    on_progress=print_progress,
                    batch_rows=batch_rows,
                    per_second=per_second,
                )
    result = replace(result, dry_run=dry_run)
    print_result(result, _summary(result), json=json)


def _summary(result: "ArchiveResult") -> str:
    if result.dry_run:
        text = f"{result.found:,} events would be archived"
        if result.resumed is not None:
            text += f"; first, unfinished batches from {result.resumed} on would be deleted from the outbox"
    else:
        text = f"archived {result.archived:,} events in {result.batches} batches, deleted {result.deleted:,}"
        if result.resumed is not None:
            text += f" (including batches from {result.resumed} on, left unfinished by an earlier run)"
        for partition in result.dropped:
            text += f"; {partition}"
        if result.stayed:
            text += f"; {result.stayed:,} stayed: they were replayed or changed in the meantime"
    if result.unfit:
        text += f"; {result.unfit:,} cannot be archived: they have times outside the years 2 to 9998"
    return text

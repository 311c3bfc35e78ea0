"""``pipeline archive``: move old published events from the outbox to the lake."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, moment
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
from sea_mq_worker.cli.prune import partition_text
from sea_mq_worker.cli.support import EXIT_USAGE, JsonOption, abort, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.archive.result import ArchiveProgress, ArchiveResult
    from sea_mq_worker.settings import Settings

_NEEDS = ("database_url",)

BeforeOption = Annotated[
    datetime,
    typer.Option(
        "--before", parser=moment, metavar="TIME", help="Published before: ISO 8601, or an age: 30d."
    ),
]
BatchOption = Annotated[
    int, typer.Option(min=1000, help="Events that are written and proved at a time, about.")
]
PaceOption = Annotated[int, typer.Option(min=1, help="Pace of the deletion, so that the worker is not hurt.")]


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
    """Move published events from the outbox to the lake, each batch proved there before it is deleted here.

    Read back from the lake, a batch must have the number and the content that PostgreSQL tells; an event that
    is replayed meanwhile stays in the outbox. A partition is dropped whole where all that it holds is proved.
    May run beside workers, and again after whatever ended it: unfinished batches of an earlier run are done
    first, whatever --before says. Exit code 0: done; 1: the lake does not have what PostgreSQL has, or a
    server failed.
    """
    if before > datetime.now(UTC):
        abort("--before: must be past, or events would leave as soon as they are published", EXIT_USAGE)
    where = lake_of(lake)
    if dry_run:
        result = look(partial(_count, where, before), needs=_NEEDS)
    else:
        given = {"before": before, "actor": actor, "reason": reason}
        given |= {"batch_rows": batch_rows, "per_second": per_second}
        result = run_job("archive", partial(_archive, where, given), needs=_NEEDS, master=master, conf=conf)
    if json:
        print_json(asdict(result) | {"dry_run": dry_run})
    else:
        typer.echo(_summary(result, dry_run=dry_run))


def _count(lake: str, before: datetime, settings: "Settings") -> "ArchiveResult":
    from sea_mq_worker.pipeline.jobs.archive.job import count

    return count(settings, lake, before=before)


def _archive(
    lake: str, given: Mapping[str, Any], spark: "SparkSession", settings: "Settings"
) -> "ArchiveResult":
    from sea_mq_worker.pipeline.jobs.archive.job import archive

    return archive(spark, settings, lake, on_progress=_tell, **given)


def _tell(progress: "ArchiveProgress") -> None:
    if progress.partition:
        say(partition_text(progress.partition))
        return
    text = f"batch {progress.batch}: {progress.rows:,} events proved in the lake, {progress.gone:,} deleted"
    if progress.total:
        text += f"; {progress.done:,} of {progress.total:,}"
    say(text)


def _summary(result: "ArchiveResult", *, dry_run: bool) -> str:
    if dry_run:
        text = f"{result.found:,} events would be archived"
        if result.resumed is not None:
            text += f", after what is unfinished from batch {result.resumed} on is deleted from the outbox"
    else:
        text = f"archived {result.archived:,} events in {result.batches} batches, deleted {result.deleted:,}"
        if result.resumed is not None:
            text += f" (from batch {result.resumed} on, left unfinished by an earlier run, among them)"
        for partition in result.dropped:
            text += f"; {partition_text(partition)}"
        if result.stayed:
            text += f"; {result.stayed:,} stayed, replayed or changed meanwhile"
    if result.unfit:
        text += f"; {result.unfit:,} stay for good, with times beyond the years 2 to 9998"
    return text

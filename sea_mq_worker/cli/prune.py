"""``prune``: delete old finished events and messages."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, moment
from sea_mq_worker.cli.support import EXIT_USAGE, JsonOption, abort, print_json, run_command
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition, Prunable, PruneResult

if TYPE_CHECKING:
    from sea_mq_worker.domain.read_models import OnProgress
    from sea_mq_worker.settings import Settings

_COUNT_SECONDS_MAX = 30.0
"""Cap on a dry run for each table: somebody waits at the terminal."""


class PrunedTable(StrEnum):
    """A table that a prune deletes from."""

    OUTBOX = "outbox"
    INBOX = "inbox"


BeforeOption = Annotated[
    datetime,
    typer.Option(
        "--before",
        parser=moment,
        metavar="TIME",
        help="Delete rows finished before this time: ISO 8601, or an age such as 30d.",
    ),
]
SideOption = Annotated[
    PrunedTable | None, typer.Option("--side", help="Prune only this table (default: both).")
]
DeliverableOption = Annotated[
    bool,
    typer.Option("--deliverable", help="Also delete inbox rows whose message a stream can still redeliver."),
]
CapOption = Annotated[int | None, typer.Option("--cap", min=1, help="Stop after about N rows of each table.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count for at most 30 s and delete nothing.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Output: deleted rows of each table, and the partitions dropped among them."""

    before: datetime
    deleted: Mapping[PrunedTable, int]
    dropped: Sequence[DroppedPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldPrune:
    """Output of a dry run."""

    before: datetime
    would_delete: Mapping[PrunedTable, Prunable]


def prune(
    *,
    before: BeforeOption,
    reason: ReasonOption,
    actor: ActorOption,
    side: SideOption = None,
    deliverable: DeliverableOption = False,
    cap: CapOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Delete rows finished before a time: published events, processed or closed messages; keep all others.

    A message has its effect again if it is delivered after its row was deleted. So prune keeps the rows of
    messages that a consumed stream still holds. A partition whose events may all be deleted is dropped. If
    interrupted, run the same command again.
    """
    sides = [side] if side else list(PrunedTable)
    if dry_run:
        counted = run_command(
            lambda settings: _count(settings, sides, before, deliverable=deliverable), needs=("database_url",)
        )
        _print_counts(before, counted, json=json)
        return
    how = {"actor": actor, "reason": reason, "cap": cap}
    results = run_command(
        lambda settings: _prune(settings, sides, before, deliverable=deliverable, how=how),
        needs=("database_url",),
    )
    _print_pruned(before, results, json=json)


async def _count(
    settings: "Settings", sides: Sequence[PrunedTable], before: datetime, *, deliverable: bool
) -> Mapping[PrunedTable, Prunable]:
    from sea_mq_worker.operations.database import operations

    counted = {}
    async with operations(settings) as tables:
        for side in sides:
            until = await _until(settings, side, before, deliverable=deliverable)
            end = time.monotonic() + _COUNT_SECONDS_MAX
            with _progress(side) as report:
                counted[side] = await tables.count_prunable(
                    side, until, should_continue=partial(_is_before, end), on_progress=report
                )
    return counted


async def _prune(
    settings: "Settings",
    sides: Sequence[PrunedTable],
    before: datetime,
    *,
    deliverable: bool,
    how: Mapping[str, Any],
) -> Mapping[PrunedTable, PruneResult]:
    from sea_mq_worker.operations.database import operations

    results = {}
    async with operations(settings) as tables:
        prunes: Mapping[PrunedTable, Callable[..., Awaitable[PruneResult]]] = {
            PrunedTable.OUTBOX: partial(tables.prune_outbox, on_partition=_print_partition),
            PrunedTable.INBOX: tables.prune_inbox,
        }
        for side in sides:
            until = await _until(settings, side, before, deliverable=deliverable)
            with _progress(side) as report:
                results[side] = await prunes[side](until, on_progress=report, **how)
    return results


def _is_before(end: float) -> bool:
    return time.monotonic() < end


def _print_counts(before: datetime, counted: "Mapping[PrunedTable, Prunable]", *, json: bool) -> None:
    if json:
        print_json(WouldPrune(before=before, would_delete=counted))
        return
    for side, one in counted.items():
        part = f" in {one.pages} of {one.pages_of} pages, stopped counting there" * (one.pages < one.pages_of)
        whole = f", {', '.join(one.partitions)} whole" if one.partitions else ""
        typer.echo(f"{side}: would delete {one.count}{whole}{part}")


def _print_pruned(before: datetime, results: Mapping[PrunedTable, PruneResult], *, json: bool) -> None:
    deleted = {side: one.deleted for side, one in results.items()}
    dropped = [partition for one in results.values() for partition in one.dropped]
    if json:
        print_json(Pruned(before=before, deleted=deleted, dropped=dropped))
        return
    for side, one in results.items():
        typer.echo("; ".join([f"{side}: deleted {one.deleted}", *map(str, one.dropped)]))


def _print_partition(partition: DroppedPartition | KeptPartition) -> None:
    typer.echo(str(partition), err=True)


@contextmanager
def _progress(side: PrunedTable) -> "Iterator[OnProgress]":
    """Show progress on stderr: a bar on a terminal, ten lines in a log."""
    seen = 0
    with typer.progressbar(length=100, label=side, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def report(done: int, total: int, changed: int) -> None:
            nonlocal seen
            percent = 100 * done // total
            bar.update(percent - seen)
            if not sys.stderr.isatty() and percent // 10 > seen // 10:
                typer.echo(f"{side}: page {done} of {total}, {changed} rows", err=True)
            seen = percent

        yield report


async def _until(settings: "Settings", side: PrunedTable, before: datetime, *, deliverable: bool) -> datetime:
    """Return ``before``, or for the inbox the earlier time since when a consumed stream holds messages."""
    from sea_mq_worker.operations.consumed_streams import oldest_deliverable

    if side is PrunedTable.OUTBOX or deliverable or not settings.consumers:
        return before
    if not settings.nats_url.get_secret_value():
        abort(
            "SEA_MQ_NATS_URL: is required to find out what the consumed streams can still deliver; "
            "--deliverable prunes without it",
            EXIT_USAGE,
        )
    kept = await oldest_deliverable(settings)
    if kept is None or before <= kept.since:
        return before
    typer.echo(
        f"inbox: rows since {kept.since:%Y-%m-%d %H:%M} stay, {kept.stream} can still deliver", err=True
    )
    return kept.since

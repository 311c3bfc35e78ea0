"""``prune``: delete old finished events and messages."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.support import (
    EXIT_USAGE,
    ActorOption,
    JsonOption,
    ReasonOption,
    abort,
    moment,
    print_json,
    run_command,
    with_options,
)
from sea_mq_worker.operators.records import DroppedPartition, KeptPartition, Prunable, PruneResult, Referenced

if TYPE_CHECKING:
    from sea_mq_worker.operators.database import Tables
    from sea_mq_worker.operators.records import OnProgress
    from sea_mq_worker.settings import Settings


_COUNT_SECONDS_MAX = 30.0
"""Cap on a dry run for each table: somebody waits at the terminal."""


class PrunedTable(StrEnum):
    """A table that a prune deletes from."""

    OUTBOX = "outbox"
    INBOX = "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Output: deleted rows of each table, the partitions dropped among them, and rows that are referenced."""

    before: datetime
    deleted: Mapping[PrunedTable, int]
    dropped: Sequence[DroppedPartition]
    stay: Mapping[PrunedTable, Referenced]


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldPrune:
    """Output of a dry run."""

    before: datetime
    would_delete: Mapping[PrunedTable, Prunable]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """The options of the command."""

    before: Annotated[
        datetime,
        typer.Option(
            "--before",
            parser=moment,
            metavar="TIME",
            help="Delete rows finished before this time: ISO 8601, or an age such as 30d.",
        ),
    ]
    reason: ReasonOption
    actor: ActorOption
    side: Annotated[
        PrunedTable | None, typer.Option("--side", help="Prune only this table (default: both).")
    ] = None
    deliverable: Annotated[
        bool,
        typer.Option(
            "--deliverable", help="Also delete inbox rows whose message a stream can still redeliver."
        ),
    ] = False
    cap: Annotated[
        int | None, typer.Option("--cap", min=1, help="Stop after about N rows of each table.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count for at most 30 s and delete nothing.")] = (
        False
    )


@with_options
def prune(*, request: PruneRequest, json: JsonOption = False) -> None:
    """Delete rows finished before a time: published events, processed or closed messages; keep all others.

    A message has its effect again if it is delivered after its row was deleted. So prune keeps the rows of
    messages that a consumed stream still holds; while NATS does not answer, it prunes only the outbox and
    exits with 1. A partition whose events may all be deleted is dropped. If interrupted, run the same command
    again.
    """
    results: dict[PrunedTable, Any] = {}
    try:
        run_command(lambda settings: _prune(settings, request, results), needs=("database_url",))
    finally:
        print_results = _print_counts if request.dry_run else _print_pruned
        if results:
            print_results(request.before, results, json=json)


async def _prune(settings: "Settings", request: PruneRequest, results: dict[PrunedTable, Any]) -> None:
    """Add the result of each table to ``results``: of a dry run a ``Prunable``, else a ``PruneResult``."""
    from sea_mq_worker.errors import ContractError
    from sea_mq_worker.operators.database import operations

    sides = [request.side] if request.side else list(PrunedTable)
    keeps_deliverable = PrunedTable.INBOX in sides and settings.consumers and not request.deliverable
    if keeps_deliverable and not settings.nats_url.get_secret_value():
        abort(
            "SEA_MQ_NATS_URL: is required to find out what the consumed streams can still deliver; "
            "--deliverable prunes without it",
            EXIT_USAGE,
        )
    refused: list[ContractError] = []
    async with operations(settings) as tables:
        for side in sides:
            try:
                until = request.before
                if side is PrunedTable.INBOX and keeps_deliverable:
                    until = await _undeliverable_until(settings, request.before)
                results[side] = await _prune_side(tables, side, until, request)
            except ContractError as error:  # of this table: the other one is pruned all the same
                refused.append(error)
    if refused:
        raise refused[0]


async def _prune_side(tables: "Tables", side: PrunedTable, until: datetime, request: PruneRequest) -> Any:
    with _progress(side) as report:
        if request.dry_run:
            is_in_time = partial(_is_before, time.monotonic() + _COUNT_SECONDS_MAX)
            return await tables.pruning.count(side, until, should_continue=is_in_time, on_progress=report)
        return await tables.prune(
            side,
            until,
            actor=request.actor,
            reason=request.reason,
            cap=request.cap,
            on_progress=report,
            on_partition=_print_partition,
        )


def _is_before(end: float) -> bool:
    return time.monotonic() < end


def _print_counts(before: datetime, counted: "Mapping[PrunedTable, Prunable]", *, json: bool) -> None:
    if json:
        print_json(WouldPrune(before=before, would_delete=counted))
        return
    for side, one in counted.items():
        part = f" in {one.pages} of {one.pages_of} pages, stopped counting there" * (one.pages < one.pages_of)
        whole = f", {', '.join(one.partitions)} whole" if one.partitions else ""
        stay = f"; {one.stay}" if one.stay.count else ""
        typer.echo(f"{side}: would delete {one.count}{whole}{part}{stay}")


def _print_pruned(before: datetime, results: Mapping[PrunedTable, PruneResult], *, json: bool) -> None:
    deleted = {side: one.deleted for side, one in results.items()}
    dropped = [partition for one in results.values() for partition in one.dropped]
    if json:
        stay = {side: one.stay for side, one in results.items() if one.stay.count}
        print_json(Pruned(before=before, deleted=deleted, dropped=dropped, stay=stay))
        return
    for side, one in results.items():
        stays = [str(one.stay)] if one.stay.count else []
        typer.echo("; ".join([f"{side}: deleted {one.deleted}", *map(str, one.dropped), *stays]))


def _print_partition(partition: DroppedPartition | KeptPartition) -> None:
    typer.echo(str(partition), err=True)


@contextmanager
def _progress(side: PrunedTable) -> "Iterator[OnProgress]":
    """Show progress on stderr: a bar on a terminal, ten lines in a log."""
    seen = 0
    with typer.progressbar(length=100, label=side, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def report(done: int, total: int, changed: int) -> None:
            nonlocal seen
            percent = 100 * done // max(total, 1)  # partitions may be empty
            bar.update(percent - seen)
            if not sys.stderr.isatty() and percent // 10 > seen // 10:
                typer.echo(f"{side}: page {done} of {total}, {changed} rows", err=True)
            seen = percent

        yield report


async def _undeliverable_until(settings: "Settings", before: datetime) -> datetime:
    """Return ``before``, or the earlier time since when a consumed stream holds messages."""
    from sea_mq_worker.operators.streams import oldest_deliverable

    kept = await oldest_deliverable(settings)
    if kept is None or before <= kept.since:
        return before
    typer.echo(
        f"inbox: rows since {kept.since:%Y-%m-%d %H:%M} stay, {kept.stream} can still deliver", err=True
    )
    return kept.since

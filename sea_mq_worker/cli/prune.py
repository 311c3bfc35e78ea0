"""``prune``: delete old finished events and messages."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
)

if TYPE_CHECKING:
    from asyncpg import Pool

    from sea_mq_worker.operators.prune import OnProgress, Prunable
    from sea_mq_worker.settings import Settings

_COUNT_SECONDS_MAX = 30.0
"""Cap on a dry run for each table: somebody waits at the terminal."""


class PrunedTable(StrEnum):
    """A table that a prune deletes from."""

    OUTBOX = "outbox"
    INBOX = "inbox"


def prune(
    *,
    before: Annotated[
        datetime,
        typer.Option(
            "--before",
            parser=moment,
            metavar="TIME",
            help="Delete rows finished before this time: ISO 8601, or an age such as 30d.",
        ),
    ],
    reason: ReasonOption,
    actor: ActorOption,
    side: Annotated[
        PrunedTable | None, typer.Option("--side", help="Prune only this table (default: both).")
    ] = None,
    deliverable: Annotated[
        bool,
        typer.Option(
            "--deliverable", help="Also delete inbox rows whose message a stream can still redeliver."
        ),
    ] = False,
    cap: Annotated[
        int | None, typer.Option("--cap", min=1, help="Stop after about N rows of each table.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count for at most 30 s and delete nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete rows finished before a time: published events, processed or closed messages; keep all others.

    A message has its effect again if it is delivered after its row was deleted. So prune keeps the rows of
    messages that a consumed stream still holds; while NATS does not answer, it prunes only the outbox and
    exits with 1. A partition whose events may all be deleted is dropped. If interrupted, run the same command
    again.
    """
    results: dict[PrunedTable, Any] = {}  # PruneResult, or Prunable of a dry run

    async def run(settings: "Settings") -> None:
        from sea_mq_worker.errors import ContractError
        from sea_mq_worker.operators import prune as pruning
        from sea_mq_worker.operators.tables import open_tables

        sides = [side] if side else list(PrunedTable)
        keeps_deliverable = not deliverable and _has_deliverable(settings, sides)
        refused: list[ContractError] = []
        async with open_tables(settings) as pool:
            for one in sides:
                try:
                    until = before
                    if one is PrunedTable.INBOX and keeps_deliverable:
                        until = await _undeliverable_until(settings, before)
                    if dry_run:
                        results[one] = await _count(pool, one, until)
                    else:
                        with _progress(one) as report:
                            results[one] = await pruning.prune(
                                pool,
                                one.value,
                                until,
                                actor=actor,
                                reason=reason,
                                cap=cap,
                                on_progress=report,
                                on_partition=lambda partition: typer.echo(str(partition), err=True),
                            )
                except ContractError as error:  # of this table: the other one is pruned all the same
                    refused.append(error)
        if refused:
            raise refused[0]

    try:
        run_command(run, needs=("database_url",))
    finally:
        if results:
            (_print_counts if dry_run else _print_pruned)(before, results, json=json)


def _has_deliverable(settings: "Settings", sides: Sequence[PrunedTable]) -> bool:
    """Return whether a stream may redeliver messages of the inbox; abort if it cannot be asked."""
    if PrunedTable.INBOX not in sides or not settings.consumers:
        return False
    if not settings.nats_url.get_secret_value():
        abort(
            "SEA_MQ_NATS_URL: is required to find out what the consumed streams can still deliver; "
            "--deliverable prunes without it",
            EXIT_USAGE,
        )
    return True


async def _count(pool: "Pool", side: PrunedTable, until: datetime) -> "Prunable":
    from sea_mq_worker.operators.prune import count_prunable

    in_time = partial(_is_before, time.monotonic() + _COUNT_SECONDS_MAX)
    with _progress(side) as report:
        return await count_prunable(pool, side.value, until, should_continue=in_time, on_progress=report)


def _is_before(end: float) -> bool:
    return time.monotonic() < end


def _print_counts(before: datetime, counted: Mapping[PrunedTable, Any], *, json: bool) -> None:
    if json:
        print_json({"before": before, "would_delete": counted})
        return
    for side, one in counted.items():
        part = f" in {one.pages} of {one.pages_of} pages, stopped counting there" * (one.pages < one.pages_of)
        whole = f", {', '.join(one.partitions)} whole" if one.partitions else ""
        stay = f"; {one.stay}" if one.stay.count else ""
        typer.echo(f"{side}: would delete {one.count}{whole}{part}{stay}")


def _print_pruned(before: datetime, results: Mapping[PrunedTable, Any], *, json: bool) -> None:
    if json:
        deleted = {side: one.deleted for side, one in results.items()}
        dropped = [partition for one in results.values() for partition in one.dropped]
        stay = {side: one.stay for side, one in results.items() if one.stay.count}
        print_json({"before": before, "deleted": deleted, "dropped": dropped, "stay": stay})
        return
    for side, one in results.items():
        stays = [str(one.stay)] if one.stay.count else []
        typer.echo("; ".join([f"{side}: deleted {one.deleted}", *map(str, one.dropped), *stays]))


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
    from sea_mq_worker.operators.streams import oldest_deliverable, open_broker

    async with open_broker(settings) as connection:
        kept = await oldest_deliverable(connection, {consumer.stream for consumer in settings.consumers})
    if kept is None or before <= kept.since:
        return before
    typer.echo(
        f"inbox: rows since {kept.since:%Y-%m-%d %H:%M} stay, {kept.stream} can still deliver", err=True
    )
    return kept.since

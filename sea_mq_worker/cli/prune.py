"""``prune``: delete old finished events and messages."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sea_mq_worker.cli import support as ui
from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.records import Side

if TYPE_CHECKING:
    from asyncpg import Pool

    from sea_mq_worker.operators.prune import OnProgress
    from sea_mq_worker.settings import Settings

_COUNT_SECONDS_MAX = 30.0
"""Cap on a dry run for each table: somebody waits at the terminal."""


def prune(
    *,
    before: Annotated[
        datetime,
        typer.Option(
            "--before",
            parser=ui.moment,
            metavar="TIME",
            help="Delete rows finished before this time: ISO 8601, or an age such as 30d.",
        ),
    ],
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    side: Annotated[
        Side | None, typer.Option("--side", help="Prune only this table (default: both).")
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
    json: ui.JsonOption = False,
) -> None:
    """Delete rows finished before a time: published events, processed or closed messages; keep all others.

    A message has its effect again if it is delivered after its row was deleted. So prune keeps the rows of
    messages that a consumed stream still holds; while NATS does not answer, it prunes only the outbox and
    exits with 1. A partition whose events may all be deleted is dropped. If interrupted, run the same command
    again.
    """
    results: dict[Side, Any] = {}  # PruneResult, or Prunable of a dry run

    async def change(pool: "Pool", one: Side, until: datetime) -> None:
        from sea_mq_worker.operators import prune as pruning

        with _progress(one) as report:
            if dry_run:
                results[one] = await pruning.count_prunable(
                    pool, one, until, should_continue=_clock(), on_progress=report
                )
                return
            results[one] = await pruning.prune(
                pool,
                one,
                until,
                actor=actor,
                reason=reason,
                cap=cap,
                on_progress=report,
                on_partition=lambda partition: typer.echo(str(partition), err=True),
            )

    sides: Sequence[Side] = (side,) if side else get_args(Side)
    try:
        ui.run_command(
            lambda settings: _each(settings, sides, before, change, deliverable=deliverable),
            needs=("database_url",),
        )
    finally:
        if results:
            _print(before, results, dry_run=dry_run, json=json)


async def _each(
    settings: "Settings",
    sides: Sequence[Side],
    before: datetime,
    change: "Callable[[Pool, Side, datetime], Awaitable[None]]",
    *,
    deliverable: bool,
) -> None:
    """Change one table after the other, and raise the first error at the end."""
    from sea_mq_worker.operators.tables import open_tables

    keeps = "inbox" in sides and bool(settings.consumers) and not deliverable
    if keeps and not settings.nats_url.get_secret_value():
        ui.abort(
            "SEA_MQ_NATS_URL: is required to find out what the consumed streams can still deliver; "
            "--deliverable prunes without it",
            ui.EXIT_USAGE,
        )
    refused: list[ContractError] = []
    async with open_tables(settings) as pool:
        for one in sides:
            try:
                until = before
                if one == "inbox" and keeps:
                    until = await _undeliverable_until(settings, before)
                await change(pool, one, until)
            except ContractError as error:  # of this table: the other one is changed all the same
                refused.append(error)
    if refused:
        raise refused[0]


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


def _clock() -> Callable[[], bool]:
    end = time.monotonic() + _COUNT_SECONDS_MAX
    return lambda: time.monotonic() < end


@contextmanager
def _progress(side: Side) -> "Iterator[OnProgress]":
    """Show progress on stderr: a bar on a terminal, ten lines in a log."""
    seen = 0
    is_log = not sys.stderr.isatty()
    with typer.progressbar(length=100, label=side, file=sys.stderr, hidden=is_log) as bar:

        def report(done: int, total: int, changed: int) -> None:
            nonlocal seen
            percent = 100 * done // max(total, 1)  # partitions may be empty
            bar.update(percent - seen)
            if is_log and percent // 10 > seen // 10:
                typer.echo(f"{side}: page {done} of {total}, {changed} rows", err=True)
            seen = percent

        yield report


def _print(before: datetime, results: Mapping[Side, Any], *, dry_run: bool, json: bool) -> None:
    if json and dry_run:
        ui.print_json({"before": before, "would_delete": results})
    elif json:
        deleted = {side: one.deleted for side, one in results.items()}
        dropped = [partition for one in results.values() for partition in one.dropped]
        stay = {side: one.stay for side, one in results.items() if one.stay.count}
        ui.print_json({"before": before, "deleted": deleted, "dropped": dropped, "stay": stay})
    else:
        for side, one in results.items():
            if dry_run:
                whole = f", {', '.join(one.partitions)} whole" if one.partitions else ""
                part = f" in {one.pages} of {one.pages_of} pages, stopped counting there"
                said = [f"{side}: would delete {one.count}{whole}{part * (one.pages < one.pages_of)}"]
            else:
                said = [f"{side}: deleted {one.deleted}", *map(str, one.dropped)]
            typer.echo("; ".join([*said, *([str(one.stay)] if one.stay.count else [])]))

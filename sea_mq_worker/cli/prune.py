"""``prune``: what is finished and old is deleted."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, moment
from sea_mq_worker.cli.support import EXIT_USAGE, JsonOption, abort, print_json, run_command
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition, Prunable, PruneResult

if TYPE_CHECKING:
    from sea_mq_worker.domain.read_models import OnProgress
    from sea_mq_worker.settings import Settings

_COUNT_SECONDS_MAX = 30.0


class PrunedTable(StrEnum):
    """A side of the worker."""

    OUTBOX = "outbox"
    INBOX = "inbox"


BeforeOption = Annotated[
    datetime, typer.Option("--before", parser=moment, metavar="TIME", help="ISO 8601, or an age: 30d.")
]
SideOption = Annotated[PrunedTable | None, typer.Option("--side", help="Only this side.")]
DeliverableOption = Annotated[
    bool, typer.Option("--deliverable", help="Inbox rows too whose message a stream can still deliver.")
]
CapOption = Annotated[int | None, typer.Option("--cap", min=1, help="Stop after about so many on each side.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count, for half a minute at most.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The answer: how many rows of each side are gone, and in which whole partitions some of them."""

    before: datetime
    deleted: Mapping[PrunedTable, int]
    dropped: Sequence[DroppedPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldPrune:
    """The answer of a dry run."""

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
    """Delete what was published, processed or closed before a time; all else stays, whatever its age.

    A message that comes again after its row is gone has its effect again: so the rows of what the consumed
    streams still hold stay too. A partition of the outbox all of whose events may go is dropped whole. Tables
    are read once, page by page; cut short, it can be done again.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import operations

        counted: dict[PrunedTable, Prunable] = {}
        results: dict[PrunedTable, PruneResult] = {}
        async with operations(settings) as tables:
            prunes: Mapping[PrunedTable, Callable[..., Awaitable[PruneResult]]] = {
                PrunedTable.OUTBOX: partial(tables.prune_outbox, on_partition=_tell_partition),
                PrunedTable.INBOX: tables.prune_inbox,
            }
            for one in [side] if side else PrunedTable:
                as_given = one is PrunedTable.OUTBOX or deliverable
                until = before if as_given else await _forgotten(settings, before)
                with _watched(one) as tell:
                    if dry_run:
                        counted[one] = await tables.count_prunable(
                            one, until, go_on=_for(_COUNT_SECONDS_MAX), on_progress=tell
                        )
                    else:
                        results[one] = await prunes[one](
                            until, actor=actor, reason=reason, cap=cap, on_progress=tell
                        )
        if dry_run:
            _tell_counts(before, counted, json=json)
        else:
            _tell_pruned(before, results, json=json)

    run_command(work, needs=("database_url",))


def _for(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _tell_counts(before: datetime, counted: "Mapping[PrunedTable, Prunable]", *, json: bool) -> None:
    if json:
        print_json(WouldPrune(before=before, would_delete=counted))
        return
    for side, one in counted.items():
        part = f" in {one.pages} of {one.pages_of} pages, counted no further" * (one.pages < one.pages_of)
        whole = f", {', '.join(one.partitions)} whole" if one.partitions else ""
        typer.echo(f"{side}: would delete {one.count}{whole}{part}")


def _tell_pruned(before: datetime, results: Mapping[PrunedTable, PruneResult], *, json: bool) -> None:
    deleted = {side: one.deleted for side, one in results.items()}
    dropped = [partition for one in results.values() for partition in one.dropped]
    if json:
        print_json(Pruned(before=before, deleted=deleted, dropped=dropped))
        return
    for side, one in results.items():
        typer.echo("; ".join([f"{side}: deleted {one.deleted}", *map(partition_text, one.dropped)]))


def partition_text(told: DroppedPartition | KeptPartition) -> str:
    """Say what became of a partition whose time is over."""
    match told:
        case DroppedPartition(name=name, events=events):
            return f"dropped partition {name}, {events:,} events"
        case KeptPartition(name=name, reason=reason):
            return f"partition {name} goes row by row: {reason}"


def _tell_partition(told: DroppedPartition | KeptPartition) -> None:
    typer.echo(partition_text(told), err=True)


@contextmanager
def _watched(side: PrunedTable) -> "Iterator[OnProgress]":
    """Show progress where it is in nobody's way: a bar to people, ten lines to a log."""
    seen = 0
    with typer.progressbar(length=100, label=side, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def tell(done: int, total: int, changed: int) -> None:
            nonlocal seen
            percent = 100 * done // total
            bar.update(percent - seen)
            if not sys.stderr.isatty() and percent // 10 > seen // 10:
                typer.echo(f"{side}: page {done} of {total}, {changed} rows", err=True)
            seen = percent

        yield tell


async def _forgotten(settings: "Settings", before: datetime) -> datetime:
    """Return up to when no consumed stream has a message any more, at most ``before``."""
    from sea_mq_worker.operations.retention import oldest_deliverable

    if not settings.consumers:
        return before
    if not settings.nats_url.get_secret_value():
        abort(
            "SEA_MQ_NATS_URL: is required to ask what the consumed streams can still deliver; "
            "--deliverable does not ask",
            EXIT_USAGE,
        )
    kept = await oldest_deliverable(settings)
    if kept is None or before <= kept.since:
        return before
    typer.echo(
        f"inbox: rows since {kept.since:%Y-%m-%d %H:%M} stay, {kept.stream} can still deliver", err=True
    )
    return kept.since

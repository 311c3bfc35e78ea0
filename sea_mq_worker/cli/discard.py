"""``outbox discard``: DEAD events that can never be sent are given up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, SinceOption, UntilOption, YesOption
from sea_mq_worker.cli.filters import (
    AggregateOption,
    CorrelationOption,
    ErrorOption,
    KeyOption,
    TypeOption,
    event_filter,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    abort,
    confirm,
    print_json,
    run_command,
)
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import OutboxFilter

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

_CHOICES = "ids, or --type, --key, --aggregate, --correlation, --since, --until, --error"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardOutput:
    """The answer: how many events match, and the ids of those that are deleted."""

    matched: int
    discarded: Sequence[str]
    dry_run: bool


def discard(
    *,
    ids: Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...")] = None,
    reason: ReasonOption,
    actor: ActorOption,
    type_: TypeOption = None,
    key: KeyOption = None,
    aggregate: AggregateOption = None,
    correlation: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    cap: Annotated[int, typer.Option("--cap", min=1, help="If more match, none is deleted.")] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Delete DEAD events for good, chosen by id or by filters; the audit keeps all of them but their content.

    It is for what can never be sent, as an event without a valid subject. What died of something that is
    mended can be replayed.
    """
    which = event_filter(
        (EventState.DEAD,), ids=ids, type_=type_, key=key, aggregate=aggregate, correlation=correlation,
        since=since, until=until, error=error,
    )  # fmt: skip
    if not any((ids, type_, key, aggregate, correlation, since, until, error)):
        abort(f"say which events: {_CHOICES}", EXIT_USAGE)

    async def work(settings: "Settings") -> DiscardOutput:
        chosen = await _chosen(settings, which, cap)
        if dry_run or not chosen:
            return DiscardOutput(matched=len(chosen), discarded=(), dry_run=dry_run)
        confirm(len(chosen), "events will be deleted for good", yes=yes)
        from sea_mq_worker.operations.database import operations

        async with operations(settings) as tables:
            gone = await tables.discard(chosen, selection=which, actor=actor, reason=reason)
        return DiscardOutput(matched=len(chosen), discarded=sorted(map(str, gone)), dry_run=False)

    result = run_command(work, needs=("database_url",))
    _tell(result, json=json)
    left = len(set(ids or ())) - result.matched
    if left > 0:
        abort(f"not there, or not DEAD: {left} of those named", EXIT_FAILED)


async def _chosen(settings: "Settings", which: OutboxFilter, cap: int) -> list[UUID]:
    """Count first, so that a slip of the filters is seen before it has an effect."""
    from sea_mq_worker.operations.database import replays

    async with replays(settings) as tables:
        chosen = [one.id for one in await tables.choose(which, limit=cap + 1)]
    if len(chosen) > cap:
        abort(f"more than {cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
    return chosen


def _tell(result: DiscardOutput, *, json: bool) -> None:
    if json:
        print_json(result)
    elif result.dry_run:
        typer.echo(f"{result.matched} would be deleted")
    else:
        typer.echo(f"discarded {len(result.discarded)} of {result.matched}")

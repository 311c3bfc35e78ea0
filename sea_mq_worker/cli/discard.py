"""``outbox discard``: delete DEAD events that can never be sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, YesOption
from sea_mq_worker.cli.filter_options import NO_CHOICE, EventOptions, IdsArgument
from sea_mq_worker.cli.option_groups import with_options
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
from sea_mq_worker.domain.filters import OutboxFilter

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardOutput:
    """Output: the number of matching events, and the IDs of the deleted ones."""

    matched: int
    discarded: Sequence[str]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRequest:
    """The options of the command."""

    ids: IdsArgument = None
    reason: ReasonOption
    actor: ActorOption
    events: EventOptions
    cap: Annotated[int, typer.Option("--cap", min=1, help="Delete nothing if more than N match.")] = 1000
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the matches and delete nothing.")] = False
    yes: YesOption = False


@with_options
def discard(*, request: DiscardRequest, json: JsonOption = False) -> None:
    """Delete DEAD events for good, by ID or by filters; the audit keeps everything but their content.

    Use it for events that can never be sent, such as one without a valid subject. If you have fixed the cause
    of the failure, use `outbox replay` instead.
    """
    if not (request.ids or request.events.given):
        abort(NO_CHOICE, EXIT_USAGE)
    result = run_command(lambda settings: _discard(settings, request), needs=("database_url",))
    _print_output(result, json=json)
    left = len(set(request.ids or ())) - result.matched
    if left > 0:
        abort(f"not there, or not DEAD: {left} of the named events", EXIT_FAILED)


async def _discard(settings: "Settings", request: DiscardRequest) -> DiscardOutput:
    from sea_mq_worker.operations.database import operations

    which = request.events.filter((EventState.DEAD,), request.ids)
    chosen = await _choose(settings, which, request.cap)
    if request.dry_run or not chosen:
        return DiscardOutput(matched=len(chosen), discarded=(), dry_run=request.dry_run)
    confirm(len(chosen), "events will be deleted for good", yes=request.yes)
    async with operations(settings) as tables:
        deleted = await tables.discard(chosen, selection=which, actor=request.actor, reason=request.reason)
    return DiscardOutput(matched=len(chosen), discarded=sorted(map(str, deleted)), dry_run=False)


async def _choose(settings: "Settings", which: OutboxFilter, cap: int) -> list[UUID]:
    """Return the matching IDs; abort if they are more than the cap, since the filters may be wrong."""
    from sea_mq_worker.operations.database import replays

    async with replays(settings) as tables:
        chosen = [one.id for one in await tables.choose(which, limit=cap + 1)]
    if len(chosen) > cap:
        abort(f"more than {cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
    return chosen


def _print_output(result: DiscardOutput, *, json: bool) -> None:
    if json:
        print_json(result)
    elif result.dry_run:
        typer.echo(f"{result.matched} would be deleted")
    else:
        typer.echo(f"discarded {len(result.discarded)} of {result.matched}")

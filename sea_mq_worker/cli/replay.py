"""``outbox replay``: events that were published, or ended, are published again."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import ActorOption, SinceOption, UntilOption, YesOption
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
from sea_mq_worker.domain.replay_records import ReplayResult, ReplayStep

if TYPE_CHECKING:
    from sea_mq_worker.domain.replay_records import Replay
    from sea_mq_worker.settings import Settings

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_EXIT_INTERRUPTED = 130

IdsArgument = Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept for the audit. Required.")]
StateOption = Annotated[
    list[EventState] | None, typer.Option("--state", help="PUBLISHED or DEAD; both unless given.")
]
ResumeOption = Annotated[
    int | None, typer.Option("--resume", metavar="ACTION", help="Go on with a replay that was cut short.")
]
CapOption = Annotated[
    int, typer.Option("--cap", min=1, help="If more match, none is replayed, unless by --resume.")
]
RateOption = Annotated[int, typer.Option("--rate", min=1, help="Put back at most so many a second.")]
AheadOption = Annotated[
    int, typer.Option("--ahead", min=1, help="At most so many put back that no worker has taken yet.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What was asked for."""

    which: OutboxFilter
    actor: str
    reason: str
    resume: int | None
    cap: int
    per_second: int
    ahead: int
    dry_run: bool
    yes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(ReplayResult):
    """The answer."""

    dry_run: bool


def replay(
    *,
    ids: IdsArgument = None,
    reason: ReasonOption = "",
    actor: ActorOption,
    state: StateOption = None,
    type_: TypeOption = None,
    key: KeyOption = None,
    aggregate: AggregateOption = None,
    correlation: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    resume: ResumeOption = None,
    cap: CapOption = 1000,
    rate: RateOption = 500,
    ahead: AheadOption = 1000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Publish PUBLISHED or DEAD events again, chosen by id or by filters, the earliest first.

    What the stream may still remember waits until its duplicate window is over. A large replay is fed in
    portions, so that new events never wait for more than --ahead old ones. Stopped by Ctrl-C or killed, it
    has put back what it has told; that is published, and --resume goes on with the rest.
    """
    which = event_filter(
        _replayable(state), ids=ids, type_=type_, key=key, aggregate=aggregate, correlation=correlation,
        since=since, until=until, error=error,
    )  # fmt: skip
    chosen_by = any((ids, state, type_, key, aggregate, correlation, since, until, error))
    _check_choice(chosen_by=chosen_by, resume=resume, reason=reason)
    order = ReplayRequest(
        which=which, actor=actor, reason=reason, resume=resume,
        cap=cap, per_second=rate, ahead=ahead, dry_run=dry_run, yes=yes,
    )  # fmt: skip
    result = run_command(lambda settings: _carry_out(order, settings), needs=("database_url",))
    _tell(result, dry_run=dry_run, json=json)
    left = len(set(ids or ())) - result.matched
    if left > 0:
        abort(f"not there, or neither PUBLISHED nor DEAD: {left} of those named", EXIT_FAILED)


async def _carry_out(order: ReplayRequest, settings: "Settings") -> ReplayResult:
    """Count first, so that a slip of the filters is seen before it has an effect."""
    from sea_mq_worker.operations.database import replays

    async with replays(settings) as tables:
        old = await tables.load(order.resume) if order.resume else None
        which = old.which if old else order.which
        chosen = await tables.choose(which, limit=None if old else order.cap + 1, goes_on=old)
        if not old and len(chosen) > order.cap:
            abort(f"more than {order.cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
        if order.dry_run or not (chosen or old):
            return ReplayResult(matched=len(chosen), replayed=0)
        confirm(len(chosen), "events will be published again", yes=order.yes)
        begun = old or await tables.begin(which, actor=order.actor, reason=order.reason)
        steps = tables.feed(
            begun,
            chosen,
            per_second=order.per_second,
            ahead=order.ahead,
        )
        replayed = await _watched(steps, begun, len(chosen))
        return ReplayResult(matched=len(chosen), replayed=replayed)


async def _watched(steps: AsyncIterator[ReplayStep], begun: "Replay", total: int) -> int:
    """Return how many this run has put back; cut short, say how it goes on."""
    from asyncio import CancelledError

    from sea_mq_worker.domain.errors import UnavailableError

    left = (
        f"what was put back is published; the rest: python -m sea_mq_worker outbox replay --resume {begun.id}"
    )
    try:
        return await _show(steps, total, before=begun.replayed)
    except CancelledError:
        abort(f"\nstopped: {left}", _EXIT_INTERRUPTED)
    except UnavailableError as error:
        abort(f"\n{error}: {left}", EXIT_FAILED)


async def _show(steps: AsyncIterator[ReplayStep], total: int, *, before: int) -> int:
    """Draw a bar where somebody looks at it; return how many were put back besides those of earlier runs."""
    replayed = done = 0
    with typer.progressbar(length=total, label=_label(0), file=sys.stderr) as bar:
        async for step in steps:
            bar.label = _label(step.waiting)
            bar.update(step.done - done)
            done, replayed = step.done, step.replayed - before
    return replayed


def _label(waiting: int) -> str:
    return "replay (waits for workers to take what is put back)" if waiting else "replay"


def _replayable(state: Sequence[EventState] | None) -> tuple[EventState, ...]:
    states = tuple(state or _TERMINAL)
    if not set(states) <= set(_TERMINAL):
        abort(
            "--state: only PUBLISHED and DEAD events can be replayed, the others are on their way", EXIT_USAGE
        )
    return states


def _check_choice(*, chosen_by: bool, resume: int | None, reason: str) -> None:
    if resume is not None and chosen_by:
        abort("--resume: goes on with what was chosen then; leave ids and filters out", EXIT_USAGE)
    if resume is None and not chosen_by:
        abort(
            "say which events: ids, or --state, --type, --key, --aggregate, --correlation, --since, --until, "
            "--error",
            EXIT_USAGE,
        )
    if resume is None and not reason.strip():
        abort("--reason: is required and must not be blank, it is kept for the audit", EXIT_USAGE)


def _tell(result: ReplayResult, *, dry_run: bool, json: bool) -> None:
    if json:
        print_json(Replayed(matched=result.matched, replayed=result.replayed, dry_run=dry_run))
    elif dry_run:
        typer.echo(f"{result.matched} would be replayed")
    else:
        typer.echo(f"replayed {result.replayed} of {result.matched}")

"""``outbox replay``: publish PUBLISHED or DEAD events again."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import ActorOption, DryRunOption, YesOption
from sea_mq_worker.cli.filter_options import NO_CHOICE, EventOptions, IdsArgument
from sea_mq_worker.cli.option_groups import with_options
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    abort,
    confirm,
    echo_safe,
    print_json,
    run_command,
)
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.replay_records import ReplayResult, ReplayStep

if TYPE_CHECKING:
    from sea_mq_worker.domain.replay_records import Replay
    from sea_mq_worker.settings import Settings

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The options of the command."""

    ids: IdsArgument = None
    reason: Annotated[
        str,
        typer.Option("--reason", help="Reason of the change; kept for the audit. Required without --resume."),
    ] = ""
    actor: ActorOption
    state: Annotated[
        list[EventState] | None,
        typer.Option("--state", metavar="[PUBLISHED|DEAD]", help="State; may be repeated (default: both)."),
    ] = None
    events: EventOptions
    resume: Annotated[
        int | None,
        typer.Option(
            "--resume", metavar="ACTION", help="Continue the interrupted replay with this audit ID."
        ),
    ] = None
    cap: Annotated[
        int, typer.Option("--cap", min=1, help="Replay nothing if more than N match, except with --resume.")
    ] = 1000
    per_second: Annotated[int, typer.Option(min=1, help="Replay at most N events per second.")] = 500
    ahead: Annotated[
        int, typer.Option("--ahead", min=1, help="Wait while N replayed events have not been claimed yet.")
    ] = 1000
    dry_run: DryRunOption = False
    yes: YesOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(ReplayResult):
    """Output of `replay`.

    Attributes:
        window_seconds: the stream's deduplication window; null: NATS did not answer.
        last_due_at: when the last event goes out; null: at once, or unknown as the window.
    """

    dry_run: bool
    window_seconds: float | None
    last_due_at: datetime | None


@with_options
def replay(*, request: ReplayRequest, json: JsonOption = False) -> None:
    """Publish PUBLISHED or DEAD events again, chosen by ID or by filters, earliest first.

    An event that the stream still remembers waits for the end of the deduplication window. A large replay
    runs in portions, so that new events wait for at most --ahead replayed ones. If interrupted, the events
    reported so far will be published; continue with --resume.
    """
    which = request.events.filter(_replayable(request.state), request.ids)
    _check_choice(request)
    result, window_seconds = run_command(
        lambda settings: _replay(settings, which, request), needs=("database_url",)
    )
    _print_output(result, window_seconds, dry_run=request.dry_run, json=json)
    left = len(set(request.ids or ())) - result.matched
    if left > 0:
        abort(f"not there, or neither PUBLISHED nor DEAD: {left} of the named events", EXIT_FAILED)


async def _replay(
    settings: "Settings", which: OutboxFilter, request: ReplayRequest
) -> tuple[ReplayResult, float | None]:
    """Count before changing rows: the filters may be wrong."""
    from sea_mq_worker.operations.broker import duplicate_window_seconds
    from sea_mq_worker.operations.database import replays
    from sea_mq_worker.operations.replay import feed_replay, result_of

    async with replays(settings) as tables:
        old = await tables.load(request.resume) if request.resume else None
        which = old.which if old else which
        chosen = await tables.choose(which, limit=None if old else request.cap + 1, resumed=old)
        if not old and len(chosen) > request.cap:
            abort(f"more than {request.cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
        if request.dry_run or not (chosen or old):
            return result_of(chosen, 0), await duplicate_window_seconds(settings)
        confirm(len(chosen), "events will be published again", yes=request.yes)
        begun = old or await tables.begin(which, actor=request.actor, reason=request.reason)
        steps = feed_replay(tables, begun, chosen, per_second=request.per_second, ahead=request.ahead)
        replayed = await _follow(steps, begun, len(chosen))
        return result_of(chosen, replayed), await duplicate_window_seconds(settings)


async def _follow(steps: AsyncIterator[ReplayStep], begun: "Replay", total: int) -> int:
    """Return how many events this run has replayed; if interrupted, abort with the command to continue."""
    from asyncio import CancelledError

    from sea_mq_worker.domain.errors import UnavailableError

    left = (
        "replayed events will be published; continue with: "
        f"python -m sea_mq_worker outbox replay --resume {begun.id}"
    )
    try:
        return await _show(steps, total, before=begun.replayed)
    except CancelledError:
        abort(f"\nstopped: {left}", _EXIT_INTERRUPTED)
    except UnavailableError as error:
        abort(f"\n{error}: {left}", EXIT_FAILED)


async def _show(steps: AsyncIterator[ReplayStep], total: int, *, before: int) -> int:
    """Show a progress bar, or report the first wait to a log; return how many events this run replayed."""
    replayed = done = 0
    has_waited = False
    hidden = not sys.stderr.isatty()
    with typer.progressbar(length=total, label=_label(0), file=sys.stderr, hidden=hidden) as bar:
        async for step in steps:
            bar.label = _label(step.waiting)
            if hidden and step.waiting and not has_waited:
                typer.echo(bar.label, err=True)
                has_waited = True
            bar.update(step.done - done)
            done, replayed = step.done, step.replayed - before
    return replayed


def _label(waiting: int) -> str:
    return "replay (waiting for workers to claim replayed events)" if waiting else "replay"


def _replayable(state: Sequence[EventState] | None) -> tuple[EventState, ...]:
    states = tuple(state or _TERMINAL)
    if not set(states) <= set(_TERMINAL):
        abort(
            "--state: only PUBLISHED and DEAD events can be replayed, the others will be published",
            EXIT_USAGE,
        )
    return states


def _check_choice(request: ReplayRequest) -> None:
    is_chosen = bool(request.ids or request.state or request.events.given)
    if request.resume is not None:
        if is_chosen:
            abort("--resume: continues with the events chosen then; leave ids and filters out", EXIT_USAGE)
        return
    if not is_chosen:
        abort(NO_CHOICE, EXIT_USAGE)
    if not request.reason.strip():
        abort("--reason: is required and must not be blank, it is kept for the audit", EXIT_USAGE)


def _print_output(result: ReplayResult, window_seconds: float | None, *, dry_run: bool, json: bool) -> None:
    from sea_mq_worker.operations.replay import due_at, outlook

    now = datetime.now(UTC)
    if json:
        due = due_at(result, window_seconds, now=now)
        more = Replayed(**asdict(result), dry_run=dry_run, window_seconds=window_seconds, last_due_at=due)
        print_json(more)
        return
    typer.echo(
        f"{result.matched} would be replayed"
        if dry_run
        else f"replayed {result.replayed} of {result.matched}"
    )
    if result.matched:
        echo_safe(*outlook(result, window_seconds, now=now), err=True)

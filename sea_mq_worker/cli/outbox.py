"""``outbox list|summary|show|replay|mark-dead|discard``: events of the outbox."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    NO_CHOICE,
    ActorOption,
    AfterOption,
    DryRunOption,
    EventOptions,
    GroupsOption,
    IdsArgument,
    JsonOption,
    LimitOption,
    ReadOption,
    ReasonOption,
    YesOption,
    abort,
    change_rows,
    confirm,
    echo_safe,
    print_fields,
    print_groups,
    print_json,
    print_list,
    print_result,
    query_database,
    run_command,
    with_options,
)
from sea_mq_worker.operators.ports import ReplayResult, ReplayStep
from sea_mq_worker.operators.records import READ_MAX, OutboxFilter
from sea_mq_worker.outbox.event import EventState

if TYPE_CHECKING:
    from sea_mq_worker.operators.ports import Replay
    from sea_mq_worker.settings import Settings


# --- ``outbox replay``: publish PUBLISHED or DEAD events again.

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
    from sea_mq_worker.operators.database import replays
    from sea_mq_worker.operators.replay import feed_replay, result_of
    from sea_mq_worker.operators.streams import duplicate_window_seconds

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

    from sea_mq_worker.errors import UnavailableError

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
    from sea_mq_worker.operators.replay import due_at, outlook

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


# --- ``outbox discard``: delete DEAD events that can never be sent.


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
    _print_discarded(result, json=json)
    left = len(set(request.ids or ())) - result.matched
    if left > 0:
        abort(f"not there, or not DEAD: {left} of the named events", EXIT_FAILED)


async def _discard(settings: "Settings", request: DiscardRequest) -> DiscardOutput:
    from sea_mq_worker.operators.database import operations

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
    from sea_mq_worker.operators.database import replays

    async with replays(settings) as tables:
        chosen = [one.id for one in await tables.choose(which, limit=cap + 1)]
    if len(chosen) > cap:
        abort(f"more than {cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
    return chosen


def _print_discarded(result: DiscardOutput, *, json: bool) -> None:
    if json:
        print_json(result)
    elif result.dry_run:
        typer.echo(f"{result.matched} would be deleted")
    else:
        typer.echo(f"discarded {len(result.discarded)} of {result.matched}")


app = typer.Typer(help="List, replay, mark dead or discard events of the outbox.", no_args_is_help=True)
app.command("replay")(replay)
app.command("discard")(discard)

_UNFINISHED = (EventState.PENDING, EventState.CLAIMED, EventState.DEAD)
_COLUMNS = ("id", "state", "event_type", "ordering_key", "attempts", "failures", "created_at", "last_error")
_TOO_MANY = (
    "read less with --read; --state DEAD, --key, --correlation and IDs (`where`) find events of a large "
    "backlog at once; or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)
_TOO_LONG = (
    "PUBLISHED events are found by --correlation, or by ID (`where`); any other filter reads the whole table "
    "with --read 0, or if IDs are not UUIDv7; leave PUBLISHED out, or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedDead:
    """Output of `mark-dead`: IDs now DEAD, and IDs left because they were not PENDING."""

    marked_dead: Sequence[str]
    left: Sequence[str]


@app.command("list")
@with_options
def list_(
    *,
    state: Annotated[
        list[EventState] | None,
        typer.Option("--state", help="State; may be repeated (default: all but PUBLISHED)."),
    ] = None,
    events: EventOptions,
    after: AfterOption = None,
    limit: LimitOption = 100,
    read: ReadOption = READ_MAX,
    json: JsonOption = False,
) -> None:
    """List events, newest first, without their content.

    With --correlation and without --state, events of every state are listed.

    Order, --since and --until go by the time at which events occurred. If PUBLISHED events are included and
    no index fits, they go by the time encoded in the ID.
    """
    states = tuple(state) if state else tuple(EventState) if events.correlation_id else _UNFINISHED
    which = replace(events.filter(states), before_id=after, limit=limit)
    too_long = _TOO_LONG if EventState.PUBLISHED in states else _TOO_MANY
    page = query_database(lambda tables: tables.outbox_page(which, read_max=read or None), too_long=too_long)
    what = "unpublished events" if states is _UNFINISHED else "events"
    print_list(page, _COLUMNS, what=what, json=json)


@app.command("summary")
def summary(groups: GroupsOption = 5, json: JsonOption = False) -> None:
    """Count unfinished events by state, type, key and error, most frequent first."""
    print_groups(
        lambda tables, read_max: tables.outbox_summary(read_max=read_max, groups_max=groups),
        what="unfinished events",
        json=json,
    )


@app.command("show")
def show(
    event_id: Annotated[UUID, typer.Argument(metavar="ID", help="Event ID.")], json: JsonOption = False
) -> None:
    """Show one event with its payload."""
    event = query_database(lambda tables: tables.show_outbox(event_id))
    if event is None:
        abort(
            f"there is no event {event_id}; `python -m sea_mq_worker outbox list` lists the events",
            EXIT_FAILED,
        )
    (print_json if json else print_fields)(asdict(event))


@app.command("mark-dead")
def mark_dead(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Event IDs.")],
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """Mark PENDING events DEAD so that they are not published; exit 1 if one was not PENDING."""
    ended = change_rows(lambda tables: tables.mark_dead(ids, actor=actor, reason=reason))
    left_is = "not PENDING, or being published by a worker; see `python -m sea_mq_worker outbox show {}`"
    output = (lambda ended, left: MarkedDead(marked_dead=ended, left=left)) if json else None
    print_result(ended, ids, word="marked dead", left_is=left_is, output=output)

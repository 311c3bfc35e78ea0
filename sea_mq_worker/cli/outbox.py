"""``outbox list|summary|show|replay|mark-dead|discard``: events of the outbox."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli import support as ui
from sea_mq_worker.operators.records import READ_MAX, OutboxFilter
from sea_mq_worker.outbox.event import EventState

if TYPE_CHECKING:
    from asyncpg import Pool

    from sea_mq_worker.operators.replay import Replay, ReplayResult, ReplayStep
    from sea_mq_worker.settings import Settings

app = typer.Typer(help="List, replay, mark dead or discard events of the outbox.", no_args_is_help=True)

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_UNFINISHED = (EventState.PENDING, EventState.CLAIMED, EventState.DEAD)
_EXIT_INTERRUPTED = 130
_COLUMNS = ("id", "state", "event_type", "ordering_key", "attempts", "failures", "created_at", "last_error")
_TOO_MANY = (
    "read less with --read; --state DEAD, --key, --correlation and IDs (`where`) find events of a large "
    "backlog at once; or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)
_TOO_LONG = (
    "PUBLISHED events are found by --correlation, or by ID (`where`); any other filter reads the whole table "
    "with --read 0, or if IDs are not UUIDv7; leave PUBLISHED out, or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)

# --- The options that filter events. A new one needs a field of ``OutboxFilter``, and a condition in the
# statements ``list_outbox``, ``list_outbox_by_id`` and ``choose`` of ``sql/queries/operators.sql``.


def _aggregate(text: str | None) -> str | None:
    if text is not None and not all(map(str.strip, text.split("/", 1))):
        raise typer.BadParameter("expected TYPE or TYPE/ID, neither of them blank")
    return text


IdsArgument = Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...", help="Event IDs.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Event type.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Ordering key.")]
AggregateOption = Annotated[
    str | None,
    typer.Option(
        "--aggregate", metavar="TYPE[/ID]", help="Aggregate type, or one aggregate.", callback=_aggregate
    ),
]
CorrelationOption = Annotated[UUID | None, typer.Option("--correlation", help="Correlation ID.")]


def _filter(
    event_type: str | None,
    ordering_key: str | None,
    aggregate: str | None,
    correlation_id: UUID | None,
    error_like: str | None,
    *,
    since: datetime | None,
    until: datetime | None,
) -> OutboxFilter:
    aggregate_type, _, aggregate_id = (aggregate or "").partition("/")
    return OutboxFilter(
        event_type=event_type,
        ordering_key=ordering_key,
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id or None,
        correlation_id=correlation_id,
        since=since,
        until=until,
        error_like=error_like,
    )


# --- ``outbox replay``: publish PUBLISHED or DEAD events again.


@app.command("replay")
def replay(
    *,
    ids: IdsArgument = None,
    reason: Annotated[
        str,
        typer.Option("--reason", help="Reason of the change; kept for the audit. Required without --resume."),
    ] = "",
    actor: ui.ActorOption,
    state: Annotated[
        list[EventState] | None,
        typer.Option("--state", metavar="[PUBLISHED|DEAD]", help="State; may be repeated (default: both)."),
    ] = None,
    event_type: TypeOption = None,
    ordering_key: KeyOption = None,
    aggregate: AggregateOption = None,
    correlation_id: CorrelationOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error_like: ui.ErrorOption = None,
    resume: Annotated[
        int | None,
        typer.Option(
            "--resume", metavar="ACTION", help="Continue the interrupted replay with this audit ID."
        ),
    ] = None,
    cap: Annotated[
        int, typer.Option("--cap", min=1, help="Replay nothing if more than N match, except with --resume.")
    ] = 1000,
    per_second: Annotated[int, typer.Option(min=1, help="Replay at most N events per second.")] = 500,
    ahead: Annotated[
        int, typer.Option("--ahead", min=1, help="Wait while N replayed events have not been claimed yet.")
    ] = 1000,
    dry_run: ui.DryRunOption = False,
    yes: ui.YesOption = False,
    json: ui.JsonOption = False,
) -> None:
    """Publish PUBLISHED or DEAD events again, chosen by ID or by filters, earliest first.

    An event that the stream still remembers waits for the end of the deduplication window. A large replay
    runs in portions, so that new events wait for at most --ahead replayed ones. If interrupted, the events
    reported so far will be published; continue with --resume.
    """
    which = _filter(event_type, ordering_key, aggregate, correlation_id, error_like, since=since, until=until)
    _check_replay(resume, reason, state, is_chosen=bool(ids or state or which != OutboxFilter()))
    which = replace(which, states=tuple(state or _TERMINAL), ids=tuple(ids) if ids else None)

    async def run(settings: "Settings") -> "tuple[ReplayResult, float | None]":
        from sea_mq_worker.operators import replay as replays
        from sea_mq_worker.operators.streams import duplicate_window_seconds
        from sea_mq_worker.operators.tables import open_tables

        async with open_tables(settings) as pool:
            old = await replays.load(pool, resume) if resume else None
            wanted, most = (old.which, None) if old else (which, cap)
            limit = None if most is None else most + 1
            chosen = await replays.choose(pool, wanted, limit=limit, resumed=old)
            replayed = 0
            may = ui.may_change(len(chosen), "events", "published again", cap=most, dry_run=dry_run, yes=yes)
            if may or (old and not dry_run):  # one that was cut short at its very end is to be finished
                begun = old or await replays.begin(pool, wanted, actor=actor, reason=reason)
                held = settings.outbox_dead_key == "hold"
                steps = replays.feed_replay(
                    pool, begun, chosen, hold_dead_keys=held, per_second=per_second, ahead=ahead
                )
                replayed = await _follow(steps, begun, len(chosen))
            return replays.result_of(chosen, replayed), await duplicate_window_seconds(settings)

    result, window_seconds = ui.run_command(run, needs=("database_url",))
    _print_replayed(result, window_seconds, dry_run=dry_run, json=json)
    left = len(set(ids or ())) - result.matched
    if left > 0:
        ui.abort(f"not there, or neither PUBLISHED nor DEAD: {left} of the named events", ui.EXIT_FAILED)


def _check_replay(
    resume: int | None, reason: str, state: Sequence[EventState] | None, *, is_chosen: bool
) -> None:
    if not set(state or ()) <= set(_TERMINAL):
        ui.abort(
            "--state: only PUBLISHED and DEAD events can be replayed, the others will be published",
            ui.EXIT_USAGE,
        )
    if resume is not None and is_chosen:
        ui.abort("--resume: continues with the events chosen then; leave ids and filters out", ui.EXIT_USAGE)
    if resume is None and not is_chosen:
        ui.abort(ui.NO_CHOICE, ui.EXIT_USAGE)
    if resume is None and not reason.strip():
        ui.abort("--reason: is required and must not be blank, it is kept for the audit", ui.EXIT_USAGE)


async def _follow(steps: "AsyncIterator[ReplayStep]", begun: "Replay", total: int) -> int:
    """Show a progress bar, or report the first wait to a log; return how many events this run replayed.

    If interrupted, abort with the command to continue.
    """
    from asyncio import CancelledError

    from sea_mq_worker.errors import UnavailableError

    left = (
        "replayed events will be published; continue with: "
        f"python -m sea_mq_worker outbox replay --resume {begun.id}"
    )
    replayed = done = 0
    has_waited = False
    hidden = not sys.stderr.isatty()
    try:
        with typer.progressbar(length=total, label="replay", file=sys.stderr, hidden=hidden) as bar:
            async for step in steps:
                bar.label = "replay" + " (waiting for workers to claim replayed events)" * bool(step.waiting)
                if hidden and step.waiting and not has_waited:
                    typer.echo(bar.label, err=True)
                    has_waited = True
                bar.update(step.done - done)
                done, replayed = step.done, step.replayed - begun.replayed
    except CancelledError:
        ui.abort(f"\nstopped: {left}", _EXIT_INTERRUPTED)
    except UnavailableError as error:
        ui.abort(f"\n{error}: {left}", ui.EXIT_FAILED)
    return replayed


def _print_replayed(
    result: "ReplayResult", window_seconds: float | None, *, dry_run: bool, json: bool
) -> None:
    from sea_mq_worker.operators.replay import due_at, outlook

    now = datetime.now(UTC)
    if json:
        due = due_at(result, window_seconds, now=now)
        more = {"dry_run": dry_run, "window_seconds": window_seconds, "last_due_at": due}
        ui.print_json(asdict(result) | more)
        return
    done = f"replayed {result.replayed} of {result.matched}"
    typer.echo(f"{result.matched} would be replayed" if dry_run else done)
    if result.matched:
        ui.echo_safe(*outlook(result, window_seconds, now=now), err=True)


# --- ``outbox discard|mark-dead``: give events up.


@app.command("discard")
def discard(
    *,
    ids: IdsArgument = None,
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    event_type: TypeOption = None,
    ordering_key: KeyOption = None,
    aggregate: AggregateOption = None,
    correlation_id: CorrelationOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error_like: ui.ErrorOption = None,
    cap: Annotated[int, typer.Option("--cap", min=1, help="Delete nothing if more than N match.")] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the matches and delete nothing.")] = False,
    yes: ui.YesOption = False,
    json: ui.JsonOption = False,
) -> None:
    """Delete DEAD events for good, by ID or by filters; the audit keeps everything but their content.

    Use it for events that can never be sent, such as one without a valid subject. If you have fixed the cause
    of the failure, use `outbox replay` instead.
    """
    which = _filter(event_type, ordering_key, aggregate, correlation_id, error_like, since=since, until=until)
    if not ids and which == OutboxFilter():
        ui.abort(ui.NO_CHOICE, ui.EXIT_USAGE)
    which = replace(which, states=(EventState.DEAD,), ids=tuple(ids) if ids else None)

    async def run(pool: "Pool") -> tuple[int, Sequence[str]]:
        from sea_mq_worker.operators import changes
        from sea_mq_worker.operators.replay import choose

        chosen = [one.id for one in await choose(pool, which, limit=cap + 1)]
        if not ui.may_change(len(chosen), "events", "deleted for good", cap=cap, dry_run=dry_run, yes=yes):
            return len(chosen), ()
        deleted = await changes.discard(pool, chosen, selection=which, actor=actor, reason=reason)
        return len(chosen), sorted(map(str, deleted))

    matched, discarded = ui.on_tables(run)
    if json:
        ui.print_json({"matched": matched, "discarded": discarded, "dry_run": dry_run})
    else:
        typer.echo(f"{matched} would be deleted" if dry_run else f"discarded {len(discarded)} of {matched}")
    left = len(set(ids or ())) - matched
    if left > 0:
        ui.abort(f"not there, or not DEAD: {left} of the named events", ui.EXIT_FAILED)


@app.command("mark-dead")
def mark_dead(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Event IDs.")],
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    json: ui.JsonOption = False,
) -> None:
    """Mark PENDING events DEAD so that they are not published; exit 1 if one was not PENDING."""
    from sea_mq_worker.operators import changes

    ended = ui.on_tables(lambda pool: changes.mark_dead(pool, ids, actor=actor, reason=reason))
    left_is = "not PENDING, or being published by a worker; see `python -m sea_mq_worker outbox show {}`"
    ui.print_result(ended, ids, word="marked dead", left_is=left_is, json=json)


# --- ``outbox list|summary|show``.


@app.command("list")
def list_(
    *,
    state: Annotated[
        list[EventState] | None,
        typer.Option("--state", help="State; may be repeated (default: all but PUBLISHED)."),
    ] = None,
    event_type: TypeOption = None,
    ordering_key: KeyOption = None,
    aggregate: AggregateOption = None,
    correlation_id: CorrelationOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error_like: ui.ErrorOption = None,
    after: ui.AfterOption = None,
    limit: ui.LimitOption = 100,
    read: ui.ReadOption = READ_MAX,
    json: ui.JsonOption = False,
) -> None:
    """List events, newest first, without their content.

    With --correlation and without --state, events of every state are listed.

    Order, --since and --until go by the time at which events occurred. If PUBLISHED events are included and
    no index fits, they go by the time encoded in the ID.
    """
    from sea_mq_worker.operators.tables import outbox_page

    states = tuple(state) if state else tuple(EventState) if correlation_id else _UNFINISHED
    which = _filter(event_type, ordering_key, aggregate, correlation_id, error_like, since=since, until=until)
    which = replace(which, states=states, before_id=after, limit=limit)
    too_long = _TOO_LONG if EventState.PUBLISHED in states else _TOO_MANY
    page = ui.on_tables(lambda pool: outbox_page(pool, which, read_max=read or None), too_long=too_long)
    what = "unpublished events" if states is _UNFINISHED else "events"
    ui.print_list(page, _COLUMNS, what=what, json=json)


@app.command("summary")
def summary(groups: ui.GroupsOption = 5, json: ui.JsonOption = False) -> None:
    """Count unfinished events by state, type, key and error, most frequent first."""
    from sea_mq_worker.operators import tables

    bounds = {"read_max": ui.SUMMARY_READ_MAX, "groups_max": groups}
    found = ui.on_tables(lambda pool: tables.summary(pool, "outbox", **bounds))
    ui.print_summary(found, what="unfinished events", json=json)


@app.command("show")
def show(
    event_id: Annotated[UUID, typer.Argument(metavar="ID", help="Event ID.")], json: ui.JsonOption = False
) -> None:
    """Show one event with its payload."""
    from sea_mq_worker.operators.tables import show_outbox

    event = ui.on_tables(lambda pool: show_outbox(pool, event_id))
    if event is None:
        listed = "`python -m sea_mq_worker outbox list` lists the events"
        ui.abort(f"there is no event {event_id}; {listed}", ui.EXIT_FAILED)
    ui.print_fields(asdict(event), json=json)

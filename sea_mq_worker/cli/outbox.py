"""``outbox list|show|replay|bury``: events (Open Outbox, operator)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.adapters.postgres.records import OutboxFilter, ReplayResult
from sea_mq_worker.cli.arguments import (
    ActorOption,
    ErrorOption,
    LimitOption,
    ReasonOption,
    SinceOption,
    UntilOption,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    act,
    ask,
    fail,
    print_fields,
    print_json,
    print_records,
)
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.settings import Settings

app = typer.Typer(help="Events in the outbox: look, replay, bury.", no_args_is_help=True)

_WITHOUT_YES_MAX = 10
_UNFINISHED = (EventState.PENDING, EventState.CLAIMED, EventState.DEAD)
_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_COLUMNS = ("id", "state", "event_type", "ordering_key", "attempts", "failures", "created_at", "last_error")

TypeOption = Annotated[str | None, typer.Option("--type", help="Event type.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Ordering key.")]


@app.command("list")
def list_(
    *,
    state: Annotated[
        list[EventState] | None,
        typer.Option("--state", help="In this state; may be repeated. All but PUBLISHED unless given."),
    ] = None,
    type_: TypeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List events, the latest first, without their content."""
    which = OutboxFilter(
        states=tuple(state or _UNFINISHED),
        event_type=type_,
        ordering_key=key,
        since=since,
        until=until,
        error_like=error,
        limit=limit,
    )

    found = ask(lambda tables: tables.list_outbox(which))
    print_records(found, _COLUMNS, json=json, empty="no events")


@app.command("show")
def show(event_id: Annotated[UUID, typer.Argument(metavar="ID")], json: JsonOption = False) -> None:
    """Show all of one event, its payload too."""
    event = ask(lambda tables: tables.show_outbox(event_id))
    if event is None:
        fail(f"there is no event {event_id}; `sea-mq-worker outbox list` shows which are", EXIT_FAILED)
    (print_json if json else print_fields)(asdict(event))


@app.command("replay")
def replay(
    *,
    ids: Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...")] = None,
    reason: ReasonOption,
    actor: ActorOption,
    state: Annotated[
        list[EventState] | None, typer.Option("--state", help="PUBLISHED or DEAD; both unless given.")
    ] = None,
    type_: TypeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    cap: Annotated[int, typer.Option(min=1, help="If more match, none is replayed.")] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help=f"Needed above {_WITHOUT_YES_MAX} events.")] = False,
    json: JsonOption = False,
) -> None:
    """Publish PUBLISHED or DEAD events again, chosen by id or by filters, the earliest first.

    What the stream may still remember waits until its duplicate window is over.
    """
    states = _replayable(state)
    if not any((ids, state, type_, key, since, until, error)):
        fail("say which events: ids, or --state, --type, --key, --since, --until, --error", EXIT_USAGE)
    which = OutboxFilter(
        states=states,
        ids=tuple(ids) if ids else None,
        event_type=type_,
        ordering_key=key,
        since=since,
        until=until,
        error_like=error,
    )

    who: dict[str, Any] = {"actor": actor, "reason": reason, "cap": cap}

    async def work(settings: Settings) -> None:
        result = await _replay(settings, which, who, dry_run=dry_run, yes=yes)
        _tell_replayed(result, dry_run=dry_run, json=json)
        if len(set(ids or ())) > result.matched:
            fail("the others are not there, or neither PUBLISHED nor DEAD", EXIT_FAILED)

    act(work, needs=("database_url", "nats_url"))


@app.command("bury")
def bury(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...")],
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """End PENDING events as DEAD, so that they are not published; exit 1 where one was not PENDING."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.bootstrap.operator import operations

        async with operations(settings) as tables:
            buried = await tables.bury(ids, actor=actor, reason=reason)
        left = sorted(str(event_id) for event_id in set(ids) - buried)
        if json:
            print_json({"buried": sorted(map(str, buried)), "left": left})
        else:
            typer.echo(f"buried {len(buried)} of {len(set(ids))}")
        if left:
            text = "not PENDING, or in a relay's hands just now; see `sea-mq-worker outbox show`"
            fail("\n".join(f"{event_id}: {text}" for event_id in left), EXIT_FAILED)

    act(work, needs=("database_url",))


def _replayable(state: Sequence[EventState] | None) -> tuple[EventState, ...]:
    states = tuple(state or _TERMINAL)
    if not set(states) <= set(_TERMINAL):
        fail(
            "--state: only PUBLISHED and DEAD events can be replayed, the others are on their way", EXIT_USAGE
        )
    return states


async def _replay(
    settings: Settings, which: OutboxFilter, who: Mapping[str, Any], *, dry_run: bool, yes: bool
) -> ReplayResult:
    """Count first, so that a slip of the filters is seen before it has an effect."""
    from sea_mq_worker.bootstrap.operator import duplicate_window_seconds, operations

    given = {**who, "duplicate_window_seconds": await duplicate_window_seconds(settings)}
    async with operations(settings) as tables:
        found = await tables.replay(which, dry_run=True, **given)
        _check_size(found.matched, cap=who["cap"], dry_run=dry_run, yes=yes)
        return found if dry_run else await tables.replay(which, dry_run=False, **given)


def _check_size(matched: int, *, cap: int, dry_run: bool, yes: bool) -> None:
    if matched > cap:
        fail(f"more than {cap} events match; narrow the filters, or raise --cap", EXIT_USAGE)
    if matched > _WITHOUT_YES_MAX and not (dry_run or yes):
        fail(f"{matched} events match; look with --dry-run, then say --yes", EXIT_USAGE)


def _tell_replayed(result: ReplayResult, *, dry_run: bool, json: bool) -> None:
    if json:
        print_json(asdict(result) | {"dry_run": dry_run})
    elif dry_run:
        typer.echo(f"{result.matched} would be replayed")
    else:
        typer.echo(f"replayed {result.replayed} of {result.matched}")

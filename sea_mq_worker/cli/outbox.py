"""``outbox list|summary|show|replay|mark-dead|discard``: events of the outbox."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli import discard, replay
from sea_mq_worker.cli.arguments import ActorOption, LimitOption, ReasonOption
from sea_mq_worker.cli.filter_options import EventOptions
from sea_mq_worker.cli.listings import AfterOption, GroupsOption, ReadOption, print_groups, print_list
from sea_mq_worker.cli.option_groups import with_options
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    JsonOption,
    abort,
    change_rows,
    print_fields,
    print_json,
    print_result,
    query_database,
)
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import READ_MAX

app = typer.Typer(help="List, replay, mark dead or discard events of the outbox.", no_args_is_help=True)
app.command("replay")(replay.replay)
app.command("discard")(discard.discard)

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

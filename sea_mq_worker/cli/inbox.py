"""``inbox list|summary|show|close|resume``: messages that were received."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import ActorOption, LimitOption, ReasonOption, SinceOption, UntilOption
from sea_mq_worker.cli.filters import ErrorOption
from sea_mq_worker.cli.pagination import AfterOption, ReadOption, print_list
from sea_mq_worker.cli.summary import GroupsOption, print_groups
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    JsonOption,
    abort,
    echo_safe,
    print_fields,
    print_json,
    print_result,
    query_database,
    run_command,
)
from sea_mq_worker.domain.read_models import READ_MAX, InboxFilter, InboxState

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

app = typer.Typer(help="Messages in the inbox: look, count, give up, go on.", no_args_is_help=True)

_UNFINISHED = (InboxState.WAITING, InboxState.HANDLING, InboxState.DEAD_LETTERED)
_TOO_LONG = (
    "PROCESSED messages are found by id (`where`): by anything else the whole table is read with --read 0, "
    "or where ids are no UUIDv7; leave PROCESSED out, or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)
_COLUMNS = ("message_id", "state", "subject", "consumer", "attempts", "received_at", "last_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The answer of `close`: which were given up, and which were not WAITING."""

    closed: Sequence[str]
    left: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The answer of `resume`: the record in the audit, and the event type; empty: all."""

    action: int
    event_type: str


@app.command("list")
def list_(
    *,
    state: Annotated[
        list[InboxState] | None,
        typer.Option("--state", help="In this state; may be repeated. All but PROCESSED unless given."),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="Received by this durable consumer.")] = None,
    subject: Annotated[str | None, typer.Option(help="Exact subject.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Dead-lettered for this reason; CLOSED: given up by an operator.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    after: AfterOption = None,
    limit: LimitOption = 100,
    read: ReadOption = READ_MAX,
    json: JsonOption = False,
) -> None:
    """List messages, the latest first.

    The latest are those that were received last, and --since and --until mean that time; with PROCESSED ones
    those whose id was made last.
    """
    which = InboxFilter(
        states=tuple(state or _UNFINISHED),
        consumer=consumer,
        subject=subject,
        reason=reason,
        since=since,
        until=until,
        error_like=error,
        before_id=after,
        limit=limit,
    )
    page = query_database(lambda tables: tables.inbox_page(which, read_max=read or None), too_long=_TOO_LONG)
    print_list(page, _COLUMNS, what="messages", json=json)


@app.command("summary")
def summary(groups: GroupsOption = 5, json: JsonOption = False) -> None:
    """Count unprocessed messages by state, subject, consumer and error, the most frequent first."""
    print_groups(
        lambda tables, read_max: tables.inbox_summary(read_max=read_max, groups_max=groups),
        what="unprocessed messages",
        json=json,
    )


@app.command("show")
def show(message_id: Annotated[UUID, typer.Argument(metavar="ID")], json: JsonOption = False) -> None:
    """Show what is known of one message; the inbox keeps no payload."""
    message = query_database(lambda tables: tables.show_inbox(message_id))
    if message is None:
        abort(f"message {message_id} was never received, or is pruned", EXIT_FAILED)
    (print_json if json else print_fields)(asdict(message))


@app.command("close")
def close(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...")],
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """Give up WAITING messages, such as lost ones, so that nothing waits for them; exit 1 where one is not.

    They count as dead-lettered (CLOSED) without a dead letter, and are not handled if they come again.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import operations

        async with operations(settings) as tables:
            closed = await tables.close(ids, actor=actor, reason=reason)
        left_is = "not WAITING: unknown, ended, or leased by a worker; see `python -m sea_mq_worker where`"
        output = (lambda ended, left: Closed(closed=ended, left=left)) if json else None
        print_result(closed, ids, word="closed", left_is=left_is, output=output)

    run_command(work, needs=("database_url",))


@app.command("resume")
def resume(
    *,
    type_: Annotated[str, typer.Option("--type", help="Event type; all that are slow unless given.")] = "",
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """End the slow pace of an event type in every worker, within seconds; one that fails on is slow again."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import operations

        async with operations(settings) as tables:
            action = await tables.resume(type_, actor=actor, reason=reason)
        if json:
            print_json(Resumed(action=action, event_type=type_))
        else:
            echo_safe(f"{type_ or 'every slow event type'} goes on at full speed within seconds")

    run_command(work, needs=("database_url",))

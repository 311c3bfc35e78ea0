"""``inbox list|show``: messages that were received."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.adapters.postgres.records import InboxFilter, InboxState
from sea_mq_worker.cli.arguments import ErrorOption, LimitOption, SinceOption, UntilOption
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    JsonOption,
    ask,
    fail,
    print_fields,
    print_json,
    print_records,
)

app = typer.Typer(help="Messages in the inbox: look.", no_args_is_help=True)

_UNFINISHED = (InboxState.WAITING, InboxState.HANDLING, InboxState.DEAD_LETTERED)
_COLUMNS = ("message_id", "state", "subject", "consumer", "attempts", "received_at", "last_error")


@app.command("list")
def list_(
    *,
    state: Annotated[
        list[InboxState] | None,
        typer.Option("--state", help="In this state; may be repeated. All but PROCESSED unless given."),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="Received by this durable consumer.")] = None,
    subject: Annotated[str | None, typer.Option(help="Exact subject.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List messages, the latest first."""
    which = InboxFilter(
        states=tuple(state or _UNFINISHED),
        consumer=consumer,
        subject=subject,
        since=since,
        until=until,
        error_like=error,
        limit=limit,
    )

    found = ask(lambda tables: tables.list_inbox(which))
    print_records(found, _COLUMNS, json=json, empty="no messages")


@app.command("show")
def show(message_id: Annotated[UUID, typer.Argument(metavar="ID")], json: JsonOption = False) -> None:
    """Show what is known of one message; the inbox keeps no payload."""
    message = ask(lambda tables: tables.show_inbox(message_id))
    if message is None:
        fail(f"message {message_id} was never received, or is pruned", EXIT_FAILED)
    (print_json if json else print_fields)(asdict(message))

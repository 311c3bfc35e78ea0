"""``inbox list|summary|show|close|resume``: messages of the inbox, and slow event types."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    SUMMARY_READ_MAX,
    ActorOption,
    AfterOption,
    ErrorOption,
    GroupsOption,
    JsonOption,
    LimitOption,
    ReadOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    abort,
    echo_safe,
    filled,
    on_tables,
    print_fields,
    print_json,
    print_list,
    print_result,
    print_summary,
)
from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.operators.records import READ_MAX, InboxFilter, InboxState

app = typer.Typer(
    help="List, count, show or close messages of the inbox; end the slow pace of an event type.",
    no_args_is_help=True,
)

_UNFINISHED = (InboxState.WAITING, InboxState.HANDLING, InboxState.DEAD_LETTERED)
_TOO_LONG = (
    "PROCESSED messages are found by ID (`where`); any other filter reads the whole table with --read 0, or "
    "if IDs are not UUIDv7; leave PROCESSED out, or raise SEA_MQ_DATABASE_TIMEOUT_SECONDS"
)
_COLUMNS = ("message_id", "state", "subject", "consumer", "attempts", "received_at", "last_error")


def _known_reason(text: str | None) -> str | None:
    known = [*Reason, "CLOSED"]
    if text is not None and text not in known:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}")
    return text


@app.command("list")
def list_(
    *,
    state: Annotated[
        list[InboxState] | None,
        typer.Option("--state", help="State; may be repeated (default: all but PROCESSED)."),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="Durable consumer that received the message.")] = None,
    subject: Annotated[str | None, typer.Option(help="Exact subject.")] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            help="Reason of the dead letter; CLOSED: closed by an operator.", callback=_known_reason
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    after: AfterOption = None,
    limit: LimitOption = 100,
    read: ReadOption = READ_MAX,
    json: JsonOption = False,
) -> None:
    """List messages, newest first.

    Order, --since and --until go by the time of receipt; if PROCESSED messages are included, by the time
    encoded in the ID.
    """
    from sea_mq_worker.operators.tables import inbox_page

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
    page = on_tables(lambda pool: inbox_page(pool, which, read_max=read or None), too_long=_TOO_LONG)
    print_list(page, _COLUMNS, what="messages" if state else "unprocessed messages", json=json)


@app.command("summary")
def summary(groups: GroupsOption = 5, json: JsonOption = False) -> None:
    """Count unprocessed messages by state, subject, consumer and error, most frequent first."""
    from sea_mq_worker.operators import tables

    bounds = {"read_max": SUMMARY_READ_MAX, "groups_max": groups}
    found = on_tables(lambda pool: tables.summary(pool, "inbox", **bounds))
    print_summary(found, what="unprocessed messages", json=json)


@app.command("show")
def show(
    message_id: Annotated[UUID, typer.Argument(metavar="ID", help="Message ID.")], json: JsonOption = False
) -> None:
    """Show the inbox row of one message; it holds no payload."""
    from sea_mq_worker.operators.tables import show_inbox

    message = on_tables(lambda pool: show_inbox(pool, message_id))
    if message is None:
        abort(f"message {message_id} was never received, or is pruned", EXIT_FAILED)
    print_fields(asdict(message), json=json)


@app.command("close")
def close(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Message IDs.")],
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """Close WAITING messages, such as lost ones; exit 1 if one was not WAITING.

    A closed message is DEAD_LETTERED (CLOSED) without a dead letter. It is not handled if it is delivered
    again.
    """
    from sea_mq_worker.operators import changes

    closed = on_tables(lambda pool: changes.close(pool, ids, actor=actor, reason=reason))
    left_is = "not WAITING: unknown, ended, or leased by a worker; see `python -m sea_mq_worker where {}`"
    print_result(closed, ids, word="closed", left_is=left_is, json=json)


@app.command("resume")
def resume(
    *,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Event type (default: every slow one).", callback=filled)
    ] = None,
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """End the slow pace of an event type in all workers within seconds; it begins again on new failures."""
    from sea_mq_worker.operators import changes

    action = on_tables(lambda pool: changes.resume(pool, event_type or "", actor=actor, reason=reason))
    if json:
        print_json({"action": action, "event_type": event_type or ""})
    else:
        echo_safe(f"{event_type or 'every slow event type'} runs at full speed within seconds")

"""``inbox list|summary|show|close|resume``: messages of the inbox, and slow event types."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli import support as ui
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
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error: ui.ErrorOption = None,
    after: ui.AfterOption = None,
    limit: ui.LimitOption = 100,
    read: ui.ReadOption = READ_MAX,
    json: ui.JsonOption = False,
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
    page = ui.on_tables(lambda pool: inbox_page(pool, which, read_max=read or None), too_long=_TOO_LONG)
    ui.print_list(page, _COLUMNS, what="messages" if state else "unprocessed messages", json=json)


@app.command("summary")
def summary(groups: ui.GroupsOption = 5, json: ui.JsonOption = False) -> None:
    """Count unprocessed messages by state, subject, consumer and error, most frequent first."""
    from sea_mq_worker.operators import tables

    bounds = {"read_max": ui.SUMMARY_READ_MAX, "groups_max": groups}
    found = ui.on_tables(lambda pool: tables.summary(pool, "inbox", **bounds))
    ui.print_summary(found, what="unprocessed messages", json=json)


@app.command("show")
def show(
    message_id: Annotated[UUID, typer.Argument(metavar="ID", help="Message ID.")], json: ui.JsonOption = False
) -> None:
    """Show the inbox row of one message; it holds no payload."""
    from sea_mq_worker.operators.tables import show_inbox

    message = ui.on_tables(lambda pool: show_inbox(pool, message_id))
    if message is None:
        ui.abort(f"message {message_id} was never received, or is pruned", ui.EXIT_FAILED)
    ui.print_fields(asdict(message), json=json)


@app.command("close")
def close(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Message IDs.")],
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    json: ui.JsonOption = False,
) -> None:
    """Close WAITING messages, such as lost ones; exit 1 if one was not WAITING.

    A closed message is DEAD_LETTERED (CLOSED) without a dead letter. It is not handled if it is delivered
    again.
    """
    from sea_mq_worker.operators import changes

    closed = ui.on_tables(lambda pool: changes.close(pool, ids, actor=actor, reason=reason))
    left_is = "not WAITING: unknown, ended, or leased by a worker; see `python -m sea_mq_worker where {}`"
    ui.print_result(closed, ids, word="closed", left_is=left_is, json=json)


@app.command("resume")
def resume(
    *,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Event type (default: every slow one).", callback=ui.filled)
    ] = None,
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    json: ui.JsonOption = False,
) -> None:
    """End the slow pace of an event type in all workers within seconds; it begins again on new failures."""
    from sea_mq_worker.operators import changes

    action = ui.on_tables(lambda pool: changes.resume(pool, event_type or "", actor=actor, reason=reason))
    if json:
        ui.print_json({"action": action, "event_type": event_type or ""})
    else:
        ui.echo_safe(f"{event_type or 'every slow event type'} runs at full speed within seconds")

"""``where``: find one event or message."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli import support as ui
from sea_mq_worker.operators.records import ActionName

if TYPE_CHECKING:
    from sea_mq_worker.operators.lookup import LookupReport
    from sea_mq_worker.settings import Settings


_MATCHES = ("id", "side", "state", "name", "at")


def where(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="ID, its first 4 or more digits, or a correlation ID.")
    ],
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            parser=ui.moment,
            metavar="TIME",
            help="Also scan the headers of stream messages stored after this time: ISO 8601, or an age: 24h.",
        ),
    ] = None,
    json: ui.JsonOption = False,
) -> None:
    """Show where an event or message is, its history, and the next commands; exit 1 if it is not found.

    Use --since for a message that no table has: the scan takes time in proportion to the stream. Without it,
    the time within a UUIDv7 is used, for at most 5 s of scanning.
    """

    async def run(settings: "Settings") -> "LookupReport":
        from sea_mq_worker.operators.lookup import NoIdError, lookup_report, open_lookup

        async with open_lookup(settings) as lookup:
            try:
                return await lookup_report(wanted, lookup, since=since)
            except NoIdError as error:
                ui.abort(str(error), ui.EXIT_USAGE)

    found = ui.run_command(run, needs=("database_url",))
    if json:
        ui.print_json(found)
    else:
        _print_report(found)
    if not found.known:
        raise typer.Exit(ui.EXIT_FAILED)


def _print_report(found: "LookupReport") -> None:
    ui.echo_safe(found.id, *(f"  {sentence}" for sentence in found.answer))
    if found.matches:
        ui.print_page(found.matches, _MATCHES, json=False, empty="")
    steps = [f"  {ui.cell(step.at)}  {step.text}" for step in found.steps]
    not_checked = [f"  not looked in {reason}" for reason in found.not_checked]
    next_steps = [f"  -> {command}" for command in found.next_steps]
    for lines in filter(None, (steps, not_checked, next_steps)):
        ui.echo_safe("", *lines)


# --- ``audit``: list operators' changes.

_COLUMNS = ("id", "at", "actor", "login", "action", "outcome", "affected", "reason", "selection")


def audit(
    *,
    actor: Annotated[str | None, typer.Option("--actor", help="Part of the actor's name.")] = None,
    action: Annotated[ActionName | None, typer.Option("--action", help="Kind of change.")] = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    after: Annotated[
        int | None, typer.Option("--after", metavar="ID", help="Start the page after this ID.")
    ] = None,
    limit: ui.LimitOption = 100,
    json: ui.JsonOption = False,
) -> None:
    """List operators' changes, newest first: time, actor, login, outcome, number of items, and reason.

    An outcome is done, refused, failed or open. A change is open while it runs, and stays open if it was
    interrupted.
    """
    from sea_mq_worker.operators import tables

    filters: dict[str, Any] = {"actor_like": actor, "action": action, "since": since, "until": until}
    found = ui.on_tables(lambda pool: tables.audit(pool, limit=limit, before_id=after, **filters))
    more = found[-1].id if len(found) == limit else None
    ui.print_page(found, _COLUMNS, json=json, empty="no actions", more=more)

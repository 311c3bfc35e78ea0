"""``where``: what became of one event or message."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import SinceOption
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    abort,
    echo_safe,
    print_json,
    print_page,
    run_command,
)
from sea_mq_worker.cli.table_format import cell

if TYPE_CHECKING:
    from sea_mq_worker.operations.lookup_report import LookupReport
    from sea_mq_worker.settings import Settings

_MATCHES = ("id", "side", "state", "name", "at")


def where(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="An id, 4 or more of its first digits, or a correlation id.")
    ],
    since: SinceOption = None,
    json: JsonOption = False,
) -> None:
    """Tell where an event or message is, what happened to it and what to do next; exit 1 if it is nowhere.

    With --since, what no table knows is looked for in the streams, by the headers of all that they got since.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.lookup import NoIdError, message_lookup
        from sea_mq_worker.operations.lookup_report import lookup_report

        async with message_lookup(settings) as place:
            try:
                found = await lookup_report(wanted, place, since=since)
            except NoIdError as error:
                abort(str(error), EXIT_USAGE)
        if json:
            print_json(asdict(found))
        else:
            _tell(found)
        if not found.known:
            raise typer.Exit(EXIT_FAILED)

    run_command(work, needs=("database_url",))


def _tell(found: "LookupReport") -> None:
    echo_safe("\n".join([found.id, *(f"  {sentence}" for sentence in found.answer)]))
    if found.matches:
        print_page(found.matches, _MATCHES, json=False, empty="")
    if found.steps:
        echo_safe("\n" + "\n".join(f"  {cell(step.at)}  {step.text}" for step in found.steps))
    if found.unseen:
        echo_safe("\n" + "\n".join(f"  not looked in {reason}" for reason in found.unseen))
    if found.next:
        echo_safe("\n" + "\n".join(f"  -> {command}" for command in found.next))

"""``dlq list|summary|show|redrive|purge``: list, redrive and delete dead letters."""

import base64
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sea_mq_worker.cli import redrive
from sea_mq_worker.cli.arguments import LimitOption, SinceOption, UntilOption
from sea_mq_worker.cli.filter_options import DeadLetterOptions
from sea_mq_worker.cli.listings import GroupsOption, print_summary
from sea_mq_worker.cli.option_groups import with_options
from sea_mq_worker.cli.support import (
    JsonOption,
    print_fields,
    print_json,
    print_page,
    read_dead_letters,
)
from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.operations.dead_letters import dead_letter_groups

app = typer.Typer(help="List, count, redrive and delete dead letters.", no_args_is_help=True)
app.command("redrive")(redrive.redrive)
app.command("purge")(redrive.purge)

_READ_MAX = 10_000
"""Cap on dead letters that `summary` reads: each takes a request of its own."""
_COLUMNS = ("seq", "stored_at", "reason", "message_id", "original_subject", "attempts", "detail")


@app.command("list")
@with_options
def list_(
    *,
    reason: Annotated[
        Reason | None, typer.Option("--reason", "--dlq-reason", help="Reason of the dead letter.")
    ] = None,
    letters: DeadLetterOptions,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Start the page after this sequence.")] = 0,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, oldest first, without their content."""
    which = letters.filter(reason, after_seq=after)
    found = read_dead_letters(lambda stream: stream.list(which, limit=limit))
    more = found[-1].seq if len(found) == limit else None
    print_page(found, _COLUMNS, json=json, empty="no dead letters", more=more)


@app.command("summary")
def summary(
    *,
    since: SinceOption = None,
    until: UntilOption = None,
    groups: GroupsOption = 5,
    json: JsonOption = False,
) -> None:
    """Count dead letters by reason, subject, consumer and detail, most frequent first."""
    which = DeadLetterFilter(since=since, until=until)
    read, found = read_dead_letters(
        lambda stream: dead_letter_groups(stream, which, read_max=_READ_MAX, groups_max=groups)
    )
    print_summary(found, read, what="dead letters", json=json, read_max=_READ_MAX)


@app.command("show")
def show(
    seq: Annotated[int, typer.Argument(min=1, metavar="SEQ", help="Sequence in the dead-letter stream.")],
    json: JsonOption = False,
) -> None:
    """Show one dead letter with the headers and body of the original."""
    entry = read_dead_letters(lambda stream: redrive.dead_letter(stream, seq))
    (print_json if json else print_fields)(asdict(entry) | _readable(entry.payload))


def _readable(payload: bytes) -> dict[str, Any]:
    """Return a body as text, or as base64 if it is not UTF-8, with the name of the encoding."""
    try:
        return {"payload": payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

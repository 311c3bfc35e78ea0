"""``dlq list|summary|show|redrive|purge``: dead letters."""

import base64
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli import redrive
from sea_mq_worker.cli.arguments import LimitOption, SinceOption, UntilOption
from sea_mq_worker.cli.filters import (
    ConsumerOption,
    DetailOption,
    OriginalTypeOption,
    SubjectOption,
    dead_letter_filter,
)
from sea_mq_worker.cli.summary import GroupsOption, tell_groups
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    JsonOption,
    abort,
    echo_safe,
    print_fields,
    print_json,
    print_table,
    run_command,
)
from sea_mq_worker.domain.dead_letters import Reason

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

app = typer.Typer(help="Dead letters: look, count, hand to the handler again, delete.", no_args_is_help=True)
app.command("redrive")(redrive.redrive)
app.command("purge")(redrive.purge)

_READ_MAX = 10_000
"""Each is asked for by itself."""
_COLUMNS = ("seq", "stored_at", "reason", "message_id", "original_subject", "attempts", "detail")


@app.command("list")
def list_(
    *,
    reason: Annotated[
        Reason | None, typer.Option("--reason", "--dlq-reason", help="Dead-lettered for this reason.")
    ] = None,
    type_: OriginalTypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: DetailOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Behind this one, the next page.")] = 0,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, the oldest first, without their content."""
    which = dead_letter_filter(reason, subject, consumer, since, until, error, type_, after_seq=after)

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.domain.dead_letter_records import DeadLetterSummary
        from sea_mq_worker.operations.broker import dead_letters

        async with dead_letters(settings) as stream:
            found = await stream.list(which, limit=limit)
        if json:
            names = [each.name for each in fields(DeadLetterSummary)]
            print_json([{name: getattr(entry, name) for name in names} for entry in found])
        else:
            rows = [[getattr(entry, column) for column in _COLUMNS] for entry in found]
            print_table(_COLUMNS, rows, empty="no dead letters")
        if len(found) == limit:
            echo_safe(f"perhaps more: --after {found[-1].seq}", err=True)

    run_command(work, needs=("nats_url",))


@app.command("summary")
def summary(
    *,
    since: SinceOption = None,
    until: UntilOption = None,
    groups: GroupsOption = 5,
    json: JsonOption = False,
) -> None:
    """Count dead letters by reason, subject, consumer and detail, the most frequent first."""
    which = dead_letter_filter(None, None, None, since, until, None)

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.broker import dead_letters
        from sea_mq_worker.operations.dead_letters import dead_letter_groups

        async with dead_letters(settings) as stream:
            read, found = await dead_letter_groups(stream, which, read_max=_READ_MAX, groups_max=groups)
        tell_groups(found, read, what="dead letters", json=json, read_max=_READ_MAX)

    run_command(work, needs=("nats_url",))


@app.command("show")
def show(seq: Annotated[int, typer.Argument(min=1, metavar="SEQ")], json: JsonOption = False) -> None:
    """Show all of one dead letter, the original's headers and body too."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.domain.errors import ContractError
        from sea_mq_worker.operations.broker import dead_letters

        async with dead_letters(settings) as stream:
            try:
                entry = await stream.show(seq)
            except ContractError as error:
                abort(f"{error}; `python -m sea_mq_worker dlq list` shows which are", EXIT_FAILED)
        (print_json if json else print_fields)(asdict(entry) | _readable(entry.payload))

    run_command(work, needs=("nats_url",))


def _readable(payload: bytes) -> dict[str, Any]:
    """Show a body as text; what is no UTF-8 in base64, and say so."""
    try:
        return {"payload": payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

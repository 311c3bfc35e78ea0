"""``dlq list|show|redrive``: dead letters."""

import base64
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sea_mq_worker.cli.arguments import ActorOption, LimitOption, ReasonOption
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    JsonOption,
    act,
    fail,
    print_fields,
    print_json,
    print_table,
    say,
)
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.settings import Settings

app = typer.Typer(help="Dead letters: look, hand to the handler again.", no_args_is_help=True)

_COLUMNS = ("seq", "stored_at", "reason", "message_id", "original_subject", "attempts", "detail")
_CONTENT = ("headers", "payload")


@app.command("list")
def list_(
    reason: Annotated[Reason | None, typer.Option(help="Dead-lettered for this reason.")] = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Behind this one.")] = 0,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, the oldest first, without their content."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.adapters.nats.dead_letters import LetterFilter
        from sea_mq_worker.bootstrap.operator import dead_letters

        async with dead_letters(settings) as letters:
            found = await letters.list(LetterFilter(reason=reason or "", after_seq=after), limit=limit)
        if json:
            entries = [asdict(entry) for entry in found]
            print_json([{k: v for k, v in entry.items() if k not in _CONTENT} for entry in entries])
        else:
            rows = [[getattr(entry, column) for column in _COLUMNS] for entry in found]
            print_table(_COLUMNS, rows, empty="no dead letters")

    act(work, needs=("nats_url",))


@app.command("show")
def show(seq: Annotated[int, typer.Argument(min=1, metavar="SEQ")], json: JsonOption = False) -> None:
    """Show all of one dead letter, the original's headers and body too."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.bootstrap.operator import dead_letters
        from sea_mq_worker.domain.errors import ContractError

        async with dead_letters(settings) as letters:
            try:
                entry = await letters.show(seq)
            except ContractError as error:
                fail(f"{error}; `sea-mq-worker dlq list` shows which are", EXIT_FAILED)
        fields = asdict(entry) | _readable(entry.payload)
        (print_json if json else print_fields)(fields)

    act(work, needs=("nats_url",))


@app.command("redrive")
def redrive(
    seqs: Annotated[list[int], typer.Argument(min=1, metavar="SEQ...")],
    reason: ReasonOption,
    actor: ActorOption,
    json: JsonOption = False,
) -> None:
    """Hand dead letters to the handler again, here and now; exit 1 where one has no effect and stays."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.bootstrap.redrive import redriver

        outcomes = []
        async with redriver(settings) as again:
            for seq in dict.fromkeys(seqs):
                outcome = await again.redrive(seq, actor=actor, reason=reason)
                outcomes.append(outcome)
                if not json:
                    say(f"{seq}: {'done' if outcome.done else 'failed'}: {outcome.text}")
        if json:
            print_json([asdict(outcome) for outcome in outcomes])
        if not all(outcome.done for outcome in outcomes):
            raise typer.Exit(EXIT_FAILED)

    act(work, needs=("database_url", "nats_url", "handler_url"))


def _readable(payload: bytes) -> dict[str, Any]:
    """Show a body as text; what is no UTF-8 in base64, and say so."""
    try:
        return {"payload": payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

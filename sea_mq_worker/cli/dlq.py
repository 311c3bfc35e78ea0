"""``dlq list|summary|show|redrive|purge``: list, redrive and delete dead letters."""

import base64
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sea_mq_worker.cli import support as ui
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.inbox.dead_letter import Reason

if TYPE_CHECKING:
    from sea_mq_worker.operators.dead_letters import DeadLetterEntry, DeadLetterFilter, DeadLetters
    from sea_mq_worker.operators.redrive import DeadLetterOutcome
    from sea_mq_worker.settings import Settings

app = typer.Typer(help="List, count, redrive and delete dead letters.", no_args_is_help=True)

_READ_MAX = 10_000
"""Cap on dead letters that `summary` reads: each takes a request of its own."""
_COLUMNS = ("seq", "stored_at", "reason", "message_id", "original_subject", "attempts", "detail")
_T = TypeVar("_T")

TypeOption = Annotated[str | None, typer.Option("--type", help="Original event type.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="Exact original subject.")]
ConsumerOption = Annotated[
    str | None, typer.Option("--consumer", help="Durable consumer that received the message.")
]
DetailOption = Annotated[
    str | None, typer.Option("--error", help="Part of the dead letter's detail.", callback=ui.filled)
]
SeqsArgument = Annotated[
    list[int] | None, typer.Argument(min=1, metavar="[SEQ]...", help="Sequences in the dead-letter stream.")
]
DlqReasonOption = Annotated[Reason | None, typer.Option("--dlq-reason", help="Reason of the dead letter.")]
AllOption = Annotated[bool, typer.Option("--all", help="Select every dead letter.")]
CapOption = Annotated[int, typer.Option("--cap", min=1, help="Change nothing if more than N match.")]


def _filter(
    reason: Reason | None,
    event_type: str | None,
    subject: str | None,
    consumer: str | None,
    error: str | None,
    *,
    since: datetime | None,
    until: datetime | None,
    after: int = 0,
) -> "DeadLetterFilter":
    from sea_mq_worker.operators.dead_letters import DeadLetterFilter

    return DeadLetterFilter(
        reason=reason,
        event_type=event_type,
        subject=subject,
        consumer=consumer,
        since=since,
        until=until,
        error=error,
        after_seq=after,
    )


# --- ``dlq redrive|purge``: redrive or delete dead letters, one after the other.


@app.command("redrive")
def redrive(
    *,
    seqs: SeqsArgument = None,
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    dlq_reason: DlqReasonOption = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error: DetailOption = None,
    every: AllOption = False,
    cap: CapOption = 1000,
    dry_run: ui.DryRunOption = False,
    yes: ui.YesOption = False,
    json: ui.JsonOption = False,
) -> None:
    """Send dead letters to the handler again, from this process; exit 1 if one fails and is kept.

    Skips those that can never be handled, and stops after 10 failures in a row. If interrupted, run the same
    command again: finished dead letters are gone.
    """
    which = _filter(dlq_reason, event_type, subject, consumer, error, since=since, until=until)

    async def run(settings: "Settings") -> None:
        from sea_mq_worker.operators.redrive import open_redriver

        change = "handed to the handler again"
        chosen = await _choose(
            settings, seqs, which, change, every=every, cap=cap, dry_run=dry_run, yes=yes, json=json
        )
        async with open_redriver(settings) as redriver:
            await _run_each(chosen, partial(redriver.redrive, actor=actor, reason=reason), json=json)

    ui.run_command(run, needs=("database_url", "nats_url", "handler_url"))


@app.command("purge")
def purge(
    *,
    seqs: SeqsArgument = None,
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    dlq_reason: DlqReasonOption = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error: DetailOption = None,
    every: AllOption = False,
    cap: CapOption = 1000,
    dry_run: ui.DryRunOption = False,
    yes: ui.YesOption = False,
    json: ui.JsonOption = False,
) -> None:
    """Delete dead letters for good; the inbox records their messages as given up (CLOSED)."""
    which = _filter(dlq_reason, event_type, subject, consumer, error, since=since, until=until)

    async def run(settings: "Settings") -> None:
        from sea_mq_worker.operators.redrive import open_purging

        change = "deleted for good"
        chosen = await _choose(
            settings, seqs, which, change, every=every, cap=cap, dry_run=dry_run, yes=yes, json=json
        )
        selection = {"seqs": chosen} if seqs else asdict(which)
        async with open_purging(settings, selection, actor=actor, reason=reason) as (_, delete):
            await _run_each(chosen, delete, json=json)

    ui.run_command(run, needs=("database_url", "nats_url"))


async def _choose(
    settings: "Settings",
    seqs: Sequence[int] | None,
    which: "DeadLetterFilter",
    change: str,
    *,
    every: bool,
    cap: int,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> Sequence[int]:
    """Return the sequences to change, once confirmed; end here in a dry run, or if there is none."""
    from sea_mq_worker.operators.dead_letters import DeadLetterFilter, open_dead_letters

    if bool(seqs) + (which != DeadLetterFilter()) + every != 1:
        text = "choose dead letters by sequences, by filters (`--help` lists them), or by --all"
        ui.abort(text, ui.EXIT_USAGE)
    chosen = list(dict.fromkeys(seqs or ()))
    if not chosen or dry_run:
        async with open_dead_letters(settings) as letters:
            if chosen:  # a dry run names one that is missing
                chosen = [(await _show(letters, seq)).seq for seq in chosen]
            else:
                chosen = [entry.seq async for entry in letters.walk(which, limit=cap + 1)]
    most = None if seqs else cap
    if ui.may_change(len(chosen), "dead letters", change, cap=most, dry_run=dry_run, yes=yes):
        return chosen
    if json:
        ui.print_json({"matched": len(chosen), "dry_run": True} if dry_run else [])
    else:
        typer.echo(f"{len(chosen)} would be {change}" if dry_run else "no dead letter matches")
    raise typer.Exit


async def _run_each(
    seqs: Sequence[int], run: "Callable[[int], Awaitable[DeadLetterOutcome]]", *, json: bool
) -> None:
    """Run the operation on one dead letter after the other; exit with 1 unless all are done.

    Prints every outcome; of many only the failed ones, and the numbers.
    """
    outcomes: list[DeadLetterOutcome] = []
    failures = 0
    many = len(seqs) > ui.CONFIRM_ABOVE
    hidden = not (many and sys.stderr.isatty())
    try:
        with typer.progressbar(seqs, label="dead letters", file=sys.stderr, hidden=hidden) as bar:
            for seq in bar:
                outcome = await run(seq)
                outcomes.append(outcome)
                if not outcome.skipped:
                    failures = 0 if outcome.done else failures + 1
                word = "done" if outcome.done else "skipped" if outcome.skipped else "failed"
                if not json and (word == "failed" or not many):
                    ui.echo_safe(f"{outcome.seq}: {word}: {outcome.text}")
                if many and failures == ui.CONFIRM_ABOVE:
                    break
    except UnavailableError as error:
        done = sum(outcome.done for outcome in outcomes)
        again = f"{done} of {len(seqs)} are done, run the same command again for the others"
        ui.abort(f"{error}; {again}", ui.EXIT_FAILED)
    finally:
        if json:
            ui.print_json(outcomes)
    if not json:
        _print_numbers(outcomes, len(seqs))
    if len(outcomes) < len(seqs):
        text = (
            f"stopped after {ui.CONFIRM_ABOVE} failures in a row: fix their errors and run this command again"
        )
        ui.abort(text, ui.EXIT_FAILED)
    if not all(outcome.done for outcome in outcomes):
        raise typer.Exit(ui.EXIT_FAILED)


def _print_numbers(outcomes: "Sequence[DeadLetterOutcome]", asked: int) -> None:
    """Print the numbers of many outcomes, and the command that deletes what can never be handled."""
    done = sum(outcome.done for outcome in outcomes)
    skipped = [str(outcome.seq) for outcome in outcomes if outcome.skipped]
    if asked > ui.CONFIRM_ABOVE:
        never = f", {len(skipped)} can never be handled and stay" if skipped else ""
        failed = len(outcomes) - done - len(skipped)
        ui.echo_safe(f"done {done} of {asked}, {failed} failed and stay{never}")
    if skipped:
        command = f'python -m sea_mq_worker dlq purge {" ".join(skipped)} --reason "..."'
        ui.echo_safe(f"delete what can never be handled: `{command}`")


# --- ``dlq list|summary|show``.


def _on_letters(read: "Callable[[DeadLetters], Awaitable[_T]]") -> _T:
    async def run(settings: "Settings") -> _T:
        from sea_mq_worker.operators.dead_letters import open_dead_letters

        async with open_dead_letters(settings) as letters:
            return await read(letters)

    return ui.run_command(run, needs=("nats_url",))


@app.command("list")
def list_(
    *,
    reason: Annotated[
        Reason | None, typer.Option("--reason", "--dlq-reason", help="Reason of the dead letter.")
    ] = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    error: DetailOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Start the page after this sequence.")] = 0,
    limit: ui.LimitOption = 100,
    json: ui.JsonOption = False,
) -> None:
    """List dead letters, oldest first, without their content."""
    which = _filter(reason, event_type, subject, consumer, error, since=since, until=until, after=after)
    found = _on_letters(lambda letters: letters.list(which, limit=limit))
    more = found[-1].seq if len(found) == limit else None
    ui.print_page(found, _COLUMNS, json=json, empty="no dead letters", more=more)


@app.command("summary")
def summary(
    *,
    since: ui.SinceOption = None,
    until: ui.UntilOption = None,
    groups: ui.GroupsOption = 5,
    json: ui.JsonOption = False,
) -> None:
    """Count dead letters by reason, subject, consumer and detail, most frequent first."""
    from sea_mq_worker.operators.dead_letters import DeadLetterFilter, dead_letter_groups

    which = DeadLetterFilter(since=since, until=until)
    read, found = _on_letters(
        lambda letters: dead_letter_groups(letters, which, read_max=_READ_MAX, groups_max=groups)
    )
    ui.print_summary(found, what="dead letters", json=json, read=read, read_max=_READ_MAX)


@app.command("show")
def show(
    seq: Annotated[int, typer.Argument(min=1, metavar="SEQ", help="Sequence in the dead-letter stream.")],
    json: ui.JsonOption = False,
) -> None:
    """Show one dead letter with the headers and body of the original."""
    entry = _on_letters(lambda letters: _show(letters, seq))
    readable: dict[str, Any]
    try:
        readable = {"payload": entry.payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        readable = {"payload": base64.b64encode(entry.payload).decode(), "payload_encoding": "base64"}
    ui.print_fields(asdict(entry) | readable, json=json)


async def _show(letters: "DeadLetters", seq: int) -> "DeadLetterEntry":
    """Return one dead letter; abort if there is none."""
    try:
        return await letters.show(seq)
    except ContractError as error:
        ui.abort(f"{error}; `python -m sea_mq_worker dlq list` lists the dead letters", ui.EXIT_FAILED)

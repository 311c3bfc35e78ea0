"""``dlq list|summary|show|redrive|purge``: list, redrive and delete dead letters."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from sea_mq_worker.cli.support import (
    CONFIRM_ABOVE,
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    DryRunOption,
    GroupsOption,
    JsonOption,
    LimitOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    YesOption,
    abort,
    confirm,
    echo_safe,
    filled,
    print_fields,
    print_json,
    print_page,
    print_summary,
    progress,
    run_command,
)
from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.operators.dead_letters import DeadLetterEntry, DeadLetterFilter

if TYPE_CHECKING:
    from sea_mq_worker.operators.dead_letters import DeadLetters
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
    str | None, typer.Option("--error", help="Part of the dead letter's detail.", callback=filled)
]
SeqsArgument = Annotated[
    list[int] | None, typer.Argument(min=1, metavar="[SEQ]...", help="Sequences in the dead-letter stream.")
]
DlqReasonOption = Annotated[Reason | None, typer.Option("--dlq-reason", help="Reason of the dead letter.")]
AllOption = Annotated[bool, typer.Option("--all", help="Select every dead letter.")]
CapOption = Annotated[int, typer.Option("--cap", min=1, help="Change nothing if more than N match.")]


# --- ``dlq redrive|purge``: redrive or delete dead letters, one after the other.


class _Choice(NamedTuple):
    """Dead letters to change, by sequences, by a filter, or all."""

    seqs: Sequence[int]
    which: DeadLetterFilter
    every: bool
    cap: int
    dry_run: bool
    yes: bool
    json: bool


@app.command("redrive")
def redrive(
    *,
    seqs: SeqsArgument = None,
    reason: ReasonOption,
    actor: ActorOption,
    dlq_reason: DlqReasonOption = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: DetailOption = None,
    every: AllOption = False,
    cap: CapOption = 1000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Send dead letters to the handler again, from this process; exit 1 if one fails and is kept.

    Skips those that can never be handled, and stops after 10 failures in a row. If interrupted, run the same
    command again: finished dead letters are gone.
    """
    which = DeadLetterFilter(
        reason=dlq_reason,
        event_type=event_type,
        subject=subject,
        consumer=consumer,
        since=since,
        until=until,
        error=error,
    )
    choice = _Choice(seqs or (), which, every, cap, dry_run, yes, json)

    async def run(settings: "Settings") -> None:
        from sea_mq_worker.operators.redrive import open_redriver

        chosen = await _choose(settings, choice, "handed to the handler again")
        async with open_redriver(settings) as redriver:
            await _run_each(chosen, partial(redriver.redrive, actor=actor, reason=reason), json=json)

    run_command(run, needs=("database_url", "nats_url", "handler_url"))


@app.command("purge")
def purge(
    *,
    seqs: SeqsArgument = None,
    reason: ReasonOption,
    actor: ActorOption,
    dlq_reason: DlqReasonOption = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: DetailOption = None,
    every: AllOption = False,
    cap: CapOption = 1000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Delete dead letters for good; the inbox records their messages as given up (CLOSED)."""
    which = DeadLetterFilter(
        reason=dlq_reason,
        event_type=event_type,
        subject=subject,
        consumer=consumer,
        since=since,
        until=until,
        error=error,
    )
    choice = _Choice(seqs or (), which, every, cap, dry_run, yes, json)

    async def run(settings: "Settings") -> None:
        from sea_mq_worker.operators.redrive import open_purging

        chosen = await _choose(settings, choice, "deleted for good")
        selection = {"seqs": chosen} if seqs else asdict(which)
        async with open_purging(settings, selection, actor=actor, reason=reason) as (_, delete):
            await _run_each(chosen, delete, json=json)

    run_command(run, needs=("database_url", "nats_url"))


async def _choose(settings: "Settings", choice: _Choice, change: str) -> Sequence[int]:
    """Return the sequences to change, once confirmed; end here in a dry run, or if there is none.

    Aborts if more match than the cap, or if a dry run misses one.
    """
    from sea_mq_worker.operators.dead_letters import open_dead_letters

    if bool(choice.seqs) + (choice.which != DeadLetterFilter()) + choice.every != 1:
        abort("choose dead letters by sequences, by filters (`--help` lists them), or by --all", EXIT_USAGE)
    chosen = list(dict.fromkeys(choice.seqs))
    if not chosen or choice.dry_run:
        async with open_dead_letters(settings) as letters:
            if chosen:
                chosen = [(await _show(letters, seq)).seq for seq in chosen]
            else:
                found = letters.walk(choice.which, limit=choice.cap + 1)
                chosen = [entry.seq async for entry in found]
        if not choice.seqs and len(chosen) > choice.cap:
            text = f"more than {choice.cap} dead letters match; narrow the filters, or raise --cap"
            abort(text, EXIT_USAGE)
    if choice.dry_run:
        if choice.json:
            print_json({"matched": len(chosen), "dry_run": True})
        else:
            typer.echo(f"{len(chosen)} would be {change}")
        raise typer.Exit
    if not chosen:
        if choice.json:
            print_json([])
        else:
            typer.echo("no dead letter matches")
        raise typer.Exit
    confirm(len(chosen), f"dead letters will be {change}", yes=choice.yes)
    return chosen


async def _run_each(
    seqs: Sequence[int], run: "Callable[[int], Awaitable[DeadLetterOutcome]]", *, json: bool
) -> None:
    """Run the operation on one dead letter after the other; report all, or of many only the failed ones."""
    from sea_mq_worker.errors import UnavailableError

    outcomes: list[DeadLetterOutcome] = []
    failures = 0
    try:
        with progress("dead letters", len(seqs)) as step:
            for seq in seqs:
                outcome = await run(seq)
                outcomes.append(outcome)
                if not outcome.skipped:
                    failures = 0 if outcome.done else failures + 1
                word = "done" if outcome.done else "skipped" if outcome.skipped else "failed"
                if not json and (word == "failed" or len(seqs) <= CONFIRM_ABOVE):
                    echo_safe(f"{outcome.seq}: {word}: {outcome.text}")
                step(1)
                if failures == CONFIRM_ABOVE and len(seqs) > CONFIRM_ABOVE:
                    break
    except UnavailableError as error:
        done = sum(outcome.done for outcome in outcomes)
        again = f"{done} of {len(seqs)} are done, run the same command again for the others"
        abort(f"{error}; {again}", EXIT_FAILED)
    finally:
        if json:
            print_json([asdict(outcome) for outcome in outcomes])
    _end(outcomes, len(seqs), json=json)


def _end(outcomes: "Sequence[DeadLetterOutcome]", asked: int, *, json: bool) -> None:
    """Print the numbers of many, and exit with 1 unless all are done."""
    done = sum(outcome.done for outcome in outcomes)
    skipped = [str(outcome.seq) for outcome in outcomes if outcome.skipped]
    if asked > CONFIRM_ABOVE and not json:
        never = f", {len(skipped)} can never be handled and stay" if skipped else ""
        failed = len(outcomes) - done - len(skipped)
        echo_safe(f"done {done} of {asked}, {failed} failed and stay{never}")
    if skipped and not json:
        command = f'python -m sea_mq_worker dlq purge {" ".join(skipped)} --reason "..."'
        echo_safe(f"delete what can never be handled: `{command}`")
    if len(outcomes) < asked:
        text = f"stopped after {CONFIRM_ABOVE} failures in a row: fix their errors and run this command again"
        abort(text, EXIT_FAILED)
    if done < len(outcomes):
        raise typer.Exit(EXIT_FAILED)


# --- ``dlq list|summary|show``.


def _on_letters(read: "Callable[[DeadLetters], Awaitable[_T]]") -> _T:
    async def run(settings: "Settings") -> _T:
        from sea_mq_worker.operators.dead_letters import open_dead_letters

        async with open_dead_letters(settings) as letters:
            return await read(letters)

    return run_command(run, needs=("nats_url",))


@app.command("list")
def list_(
    *,
    reason: Annotated[
        Reason | None, typer.Option("--reason", "--dlq-reason", help="Reason of the dead letter.")
    ] = None,
    event_type: TypeOption = None,
    subject: SubjectOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: DetailOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Start the page after this sequence.")] = 0,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, oldest first, without their content."""
    which = DeadLetterFilter(
        reason=reason,
        event_type=event_type,
        subject=subject,
        consumer=consumer,
        since=since,
        until=until,
        error=error,
        after_seq=after,
    )
    found = _on_letters(lambda letters: letters.list(which, limit=limit))
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
    from sea_mq_worker.operators.dead_letters import dead_letter_groups

    which = DeadLetterFilter(since=since, until=until)
    read, found = _on_letters(
        lambda letters: dead_letter_groups(letters, which, read_max=_READ_MAX, groups_max=groups)
    )
    print_summary(found, what="dead letters", json=json, read=read, read_max=_READ_MAX)


@app.command("show")
def show(
    seq: Annotated[int, typer.Argument(min=1, metavar="SEQ", help="Sequence in the dead-letter stream.")],
    json: JsonOption = False,
) -> None:
    """Show one dead letter with the headers and body of the original."""
    entry = _on_letters(lambda letters: _show(letters, seq))
    (print_json if json else print_fields)(asdict(entry) | _readable(entry.payload))


async def _show(letters: "DeadLetters", seq: int) -> DeadLetterEntry:
    """Return one dead letter; abort if there is none."""
    try:
        return await letters.show(seq)
    except ContractError as error:
        abort(f"{error}; `python -m sea_mq_worker dlq list` lists the dead letters", EXIT_FAILED)


def _readable(payload: bytes) -> dict[str, Any]:
    """Return a body as text, or as base64 if it is not UTF-8, with the name of the encoding."""
    try:
        return {"payload": payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

"""``dlq list|summary|show|redrive|purge``: list, redrive and delete dead letters."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.support import (
    CONFIRM_ABOVE,
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    DeadLetterOptions,
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
    print_fields,
    print_json,
    print_page,
    print_summary,
    progress,
    read_dead_letters,
    run_command,
    with_options,
)
from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.operators.dead_letters import dead_letter_groups
from sea_mq_worker.operators.records import DeadLetterEntry, DeadLetterFilter

if TYPE_CHECKING:
    from sea_mq_worker.operators.dead_letters import DeadLetterOutcome
    from sea_mq_worker.operators.ports import DeadLetterStore
    from sea_mq_worker.settings import Settings


# --- ``dlq redrive|purge``: redrive or delete dead letters, one after the other.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Output of a dry run."""

    matched: int
    dry_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRequest:
    """The options that ``redrive`` and ``purge`` share."""

    seqs: Annotated[
        list[int] | None,
        typer.Argument(min=1, metavar="[SEQ]...", help="Sequences in the dead-letter stream."),
    ] = None
    reason: ReasonOption
    actor: ActorOption
    dlq_reason: Annotated[Reason | None, typer.Option("--dlq-reason", help="Reason of the dead letter.")] = (
        None
    )
    letters: DeadLetterOptions
    every: Annotated[bool, typer.Option("--all", help="Select every dead letter.")] = False
    cap: Annotated[int, typer.Option("--cap", min=1, help="Change nothing if more than N match.")] = 1000
    dry_run: DryRunOption = False
    yes: YesOption = False
    json: JsonOption = False

    @property
    def which(self) -> DeadLetterFilter:
        return self.letters.filter(self.dlq_reason)


@with_options
def redrive(*, request: DeadLetterRequest) -> None:
    """Send dead letters to the handler again, from this process; exit 1 if one fails and is kept.

    Skips those that can never be handled, and stops after 10 failures in a row. If interrupted, run the same
    command again: finished dead letters are gone.
    """
    run_command(
        lambda settings: _redrive(settings, request), needs=("database_url", "nats_url", "handler_url")
    )


@with_options
def purge(*, request: DeadLetterRequest) -> None:
    """Delete dead letters for good; the inbox records their messages as given up (CLOSED)."""
    run_command(lambda settings: _purge(settings, request), needs=("database_url", "nats_url"))


async def _redrive(settings: "Settings", request: DeadLetterRequest) -> None:
    from sea_mq_worker.operators.dead_letters import redriver

    chosen = await _choose(settings, request, "handed to the handler again")
    async with redriver(settings) as tool:
        redrive = partial(tool.redrive, actor=request.actor, reason=request.reason)
        await _run_each(chosen, redrive, json=request.json)


async def _purge(settings: "Settings", request: DeadLetterRequest) -> None:
    from sea_mq_worker.operators.dead_letters import purger

    chosen = await _choose(settings, request, "deleted for good")
    selection = {"seqs": chosen} if request.seqs else asdict(request.which)
    async with (
        purger(settings, actor=request.actor, reason=request.reason) as tool,
        tool.recorded(selection) as delete,
    ):
        await _run_each(chosen, delete, json=request.json)


async def _choose(settings: "Settings", request: DeadLetterRequest, change: str) -> Sequence[int]:
    """Return the sequences to change, once confirmed; end here in a dry run, or if there is none."""
    chosen = await _matching(settings, request)
    if request.dry_run:
        if request.json:
            print_json(Counted(matched=len(chosen)))
        else:
            typer.echo(f"{len(chosen)} would be {change}")
        raise typer.Exit
    if not chosen:
        if request.json:
            print_json([])
        else:
            typer.echo("no dead letter matches")
        raise typer.Exit
    confirm(len(chosen), f"dead letters will be {change}", yes=request.yes)
    return chosen


async def _matching(settings: "Settings", request: DeadLetterRequest) -> Sequence[int]:
    """Return the chosen sequences; abort if more match than the cap, or if a dry run misses one."""
    from sea_mq_worker.operators.streams import dead_letters

    filtered = request.which != DeadLetterFilter()
    if bool(request.seqs) + filtered + request.every != 1:
        abort("choose dead letters by sequences, by filters (`--help` lists them), or by --all", EXIT_USAGE)
    named = list(dict.fromkeys(request.seqs or ()))
    if named and not request.dry_run:
        return named
    async with dead_letters(settings) as stream:
        if named:
            return [(await dead_letter(stream, seq)).seq for seq in named]
        found = [entry.seq async for entry in stream.walk(request.which, limit=request.cap + 1)]
    if len(found) > request.cap:
        abort(f"more than {request.cap} dead letters match; narrow the filters, or raise --cap", EXIT_USAGE)
    return found


async def dead_letter(stream: "DeadLetterStore", seq: int) -> DeadLetterEntry:
    """Return one dead letter; abort if there is none."""
    try:
        return await stream.show(seq)
    except ContractError as error:
        abort(f"{error}; `python -m sea_mq_worker dlq list` lists the dead letters", EXIT_FAILED)


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
        abort(
            f"{error}; {done} of {len(seqs)} are done, run the same command again for the others", EXIT_FAILED
        )
    finally:
        if json:
            print_json([asdict(outcome) for outcome in outcomes])
    _end(outcomes, len(seqs), json=json)


def _end(outcomes: "Sequence[DeadLetterOutcome]", asked: int, *, json: bool) -> None:
    done = sum(outcome.done for outcome in outcomes)
    skipped = [str(outcome.seq) for outcome in outcomes if outcome.skipped]
    if asked > CONFIRM_ABOVE and not json:
        never = f", {len(skipped)} can never be handled and stay" if skipped else ""
        echo_safe(f"done {done} of {asked}, {len(outcomes) - done - len(skipped)} failed and stay{never}")
    if skipped and not json:
        purge = f'python -m sea_mq_worker dlq purge {" ".join(skipped)} --reason "..."'
        echo_safe(f"delete what can never be handled: `{purge}`")
    if len(outcomes) < asked:
        abort(
            f"stopped after {CONFIRM_ABOVE} failures in a row: fix their errors and run this command again",
            EXIT_FAILED,
        )
    if done < len(outcomes):
        raise typer.Exit(EXIT_FAILED)


app = typer.Typer(help="List, count, redrive and delete dead letters.", no_args_is_help=True)
app.command("redrive")(redrive)
app.command("purge")(purge)

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
    entry = read_dead_letters(lambda stream: dead_letter(stream, seq))
    (print_json if json else print_fields)(asdict(entry) | _readable(entry.payload))


def _readable(payload: bytes) -> dict[str, Any]:
    """Return a body as text, or as base64 if it is not UTF-8, with the name of the encoding."""
    try:
        return {"payload": payload.decode(), "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

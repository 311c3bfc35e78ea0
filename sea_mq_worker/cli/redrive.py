"""``dlq redrive|purge``: dead letters chosen by sequence or by filters, one after the other."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import (
    CONFIRM_ABOVE,
    ActorOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    YesOption,
)
from sea_mq_worker.cli.filters import (
    ConsumerOption,
    DetailOption,
    OriginalTypeOption,
    SubjectOption,
    dead_letter_filter,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    abort,
    confirm,
    echo_safe,
    print_json,
    progress,
    run_command,
)
from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason

if TYPE_CHECKING:
    from sea_mq_worker.operations.dead_letters import DeadLetterOutcome
    from sea_mq_worker.settings import Settings

SeqsArgument = Annotated[list[int] | None, typer.Argument(min=1, metavar="[SEQ]...")]
DlqReasonOption = Annotated[
    Reason | None, typer.Option("--dlq-reason", help="Dead-lettered for this reason.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
CapOption = Annotated[int, typer.Option("--cap", min=1, help="If more match, nothing is done.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The answer of a dry run."""

    matched: int
    dry_run: bool = True


def redrive(
    *,
    seqs: SeqsArgument = None,
    reason: ReasonOption,
    actor: ActorOption,
    dlq_reason: DlqReasonOption = None,
    type_: OriginalTypeOption = None,
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
    """Hand dead letters to the handler again, here and now; exit 1 where one has no effect and stays.

    It stops after ten in a row without an effect. Cut short, the same command goes on: what was done is gone.
    """
    which = dead_letter_filter(dlq_reason, subject, consumer, since, until, error, type_)

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.redrive import redriver

        chosen = await _chosen(settings, seqs or (), which, every=every, cap=cap)
        if dry_run:
            _tell_count(chosen, "handed to the handler again", json=json)
            return
        confirm(len(chosen), "dead letters will be handed to the handler again", yes=yes)
        async with redriver(settings) as again:
            await _each(chosen, lambda seq: again.redrive(seq, actor=actor, reason=reason), json=json)

    run_command(work, needs=("database_url", "nats_url", "handler_url"))


def purge(
    *,
    seqs: SeqsArgument = None,
    reason: ReasonOption,
    actor: ActorOption,
    dlq_reason: DlqReasonOption = None,
    type_: OriginalTypeOption = None,
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
    """Delete dead letters for good; the inbox notes that their messages are given up (CLOSED)."""
    which = dead_letter_filter(dlq_reason, subject, consumer, since, until, error, type_)

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.purge import purger

        chosen = await _chosen(settings, seqs or (), which, every=every, cap=cap)
        if dry_run:
            _tell_count(chosen, "deleted", json=json)
            return
        confirm(len(chosen), "dead letters will be deleted for good", yes=yes)
        selection = {"seqs": seqs} if seqs else asdict(which)
        async with (
            purger(settings, actor=actor, reason=reason) as tool,
            tool.recorded(selection) as delete,
        ):
            await _each(chosen, delete, json=json)

    run_command(work, needs=("database_url", "nats_url"))


async def _chosen(
    settings: "Settings", seqs: Sequence[int], which: DeadLetterFilter, *, every: bool, cap: int
) -> list[int]:
    """Return the sequences; by filters no more than ``cap``, or leave."""
    from sea_mq_worker.operations.broker import dead_letters

    filtered = which != DeadLetterFilter()
    if bool(seqs) + filtered + every != 1:
        abort(
            "say which dead letters: sequences, or --dlq-reason, --type, --subject, --consumer, --since, "
            "--until, --error, or --all",
            EXIT_USAGE,
        )
    if seqs:
        return list(dict.fromkeys(seqs))
    async with dead_letters(settings) as letters:
        found = [entry.seq async for entry in letters.walk(which, limit=cap + 1)]
    if len(found) > cap:
        abort(f"more than {cap} dead letters match; narrow the filters, or raise --cap", EXIT_USAGE)
    return found


async def _each(
    seqs: Sequence[int], do: "Callable[[int], Awaitable[DeadLetterOutcome]]", *, json: bool
) -> None:
    """Do it to one after the other; tell each, or only those that stay where they are many."""
    from sea_mq_worker.domain.errors import UnavailableError

    outcomes: list[DeadLetterOutcome] = []
    in_a_row = 0
    with progress("dead letters", len(seqs)) as step:
        for seq in seqs:
            try:
                outcome = await do(seq)
            except UnavailableError as error:
                done = sum(outcome.done for outcome in outcomes)
                abort(f"{error}; {done} of {len(seqs)} are done, the same command goes on", EXIT_FAILED)
            outcomes.append(outcome)
            in_a_row = 0 if outcome.done else in_a_row + 1
            if not json and not (outcome.done and len(seqs) > CONFIRM_ABOVE):
                echo_safe(f"{outcome.seq}: {'done' if outcome.done else 'failed'}: {outcome.text}")
            step(1)
            if in_a_row == CONFIRM_ABOVE and len(seqs) > CONFIRM_ABOVE:
                break
    if json:
        print_json([asdict(outcome) for outcome in outcomes])
    _end(outcomes, len(seqs), json=json)


def _end(outcomes: "Sequence[DeadLetterOutcome]", asked: int, *, json: bool) -> None:
    done = sum(outcome.done for outcome in outcomes)
    if not asked and not json:
        echo_safe("no dead letter matches")
    if asked > CONFIRM_ABOVE and not json:
        echo_safe(f"done {done} of {asked}, {len(outcomes) - done} failed and stay")
    if len(outcomes) < asked:
        abort(
            f"stopped after {CONFIRM_ABOVE} failures in a row: fix their errors and run this command again",
            EXIT_FAILED,
        )
    if done < len(outcomes):
        raise typer.Exit(EXIT_FAILED)


def _tell_count(chosen: Sequence[int], what: str, *, json: bool) -> None:
    if json:
        print_json(Counted(matched=len(chosen)))
    else:
        typer.echo(f"{len(chosen)} would be {what}")

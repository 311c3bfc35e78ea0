"""``streams check`` and ``streams apply``: the JetStream side."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, echo_safe, print_json, run_command

if TYPE_CHECKING:
    from sea_mq_worker.domain.topology import Change, Difference
    from sea_mq_worker.operations.broker import Applied
    from sea_mq_worker.settings import Settings

app = typer.Typer(
    help="The own streams, and the own durables on others' streams, against their definitions.",
    no_args_is_help=True,
)

StreamsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME",
        help="Only this stream with its consumers, another context's too; may be given again.",
    ),
]


@app.command("check")
def check(*, streams: StreamsOption = None, json: JsonOption = False) -> None:
    """Report, field by field, what differs from the definitions; exit 1 where anything does."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.broker import check_topology

        differences = await check_topology(settings, streams=streams or ())
        if json:
            print_json([asdict(difference) for difference in differences])
        else:
            _tell_verdict(differences, mend="`python -m sea_mq_worker streams apply` mends it")
        if differences:
            raise typer.Exit(EXIT_FAILED)

    run_command(work, needs=("nats_url",))


@app.command("apply")
def apply(
    *,
    streams: StreamsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes, and make none.")] = False,
    json: JsonOption = False,
) -> None:
    """Create what is missing and update what differs; nothing is deleted.

    Streams of other contexts stay as they are, unless one is named. It ends with the verdict of
    `streams check`: exit 1 where something still differs. Where the server refuses something, the changes
    before it are listed.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.broker import Applied, apply_topology

        made: list[Change] = []

        def on_change(change: "Change") -> None:
            made.append(change)
            if not json:
                _tell_change(change, "would be " if dry_run else "")

        applied = Applied(changes=made)
        try:
            applied = await apply_topology(
                settings, streams=streams or (), dry_run=dry_run, on_change=on_change
            )
        finally:
            if json:
                print_json(asdict(applied))
        if not json:
            _tell_end(applied, dry_run=dry_run)
        if applied.differences:
            raise typer.Exit(EXIT_FAILED)

    run_command(work, needs=("nats_url",))


def _tell_change(change: "Change", would_be: str) -> None:
    echo_safe(f"{would_be}{change.action} {change.name}")
    for text in change.by_setting:
        echo_safe(f"  {text} by setting")
    for difference in change.differences:
        if change.action == "updated":
            echo_safe(f"  {difference.field}: {difference.found} -> {difference.wanted}")


def _tell_end(applied: "Applied", *, dry_run: bool) -> None:
    if not dry_run:
        _tell_verdict(applied.differences, mend="change the definitions, or what is named there")
    elif applied.changes:
        typer.echo("nothing was changed; without --dry-run it would be")
    else:
        typer.echo("as defined")


def _tell_verdict(differences: "Sequence[Difference]", *, mend: str) -> None:
    for difference in differences:
        echo_safe(str(difference))
    typer.echo(mend if differences else "as defined")

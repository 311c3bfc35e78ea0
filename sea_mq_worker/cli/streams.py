"""``streams check`` and ``streams apply``: the JetStream side."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, act, print_json, say

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

app = typer.Typer(help="Streams and consumers against their definitions.", no_args_is_help=True)


@app.command("check")
def check(json: JsonOption = False) -> None:
    """Report, field by field, what differs from the definitions; exit 1 where anything does."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.bootstrap.operator.broker import check_topology

        differences = await check_topology(settings)
        if json:
            print_json([asdict(difference) for difference in differences])
        else:
            for difference in differences:
                say(str(difference))
            typer.echo("`python -m sea_mq_worker streams apply` mends it" if differences else "as defined")
        if differences:
            raise typer.Exit(EXIT_FAILED)

    act(work, needs=("nats_url",))


@app.command("apply")
def apply(json: JsonOption = False) -> None:
    """Create what is missing and update what differs; nothing is deleted."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.bootstrap.operator.broker import apply_topology

        changes = await apply_topology(settings)
        if json:
            print_json([asdict(change) for change in changes])
            return
        for change in changes:
            typer.echo(f"{change.action} {change.name}")
            for text in change.by_setting:
                typer.echo(f"  {text} by setting")
            for difference in change.differences:
                if change.action == "updated":
                    typer.echo(f"  {difference.field}: {difference.found} -> {difference.wanted}")
        typer.echo("as defined")

    act(work, needs=("nats_url",))

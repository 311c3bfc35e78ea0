"""``partitions enable`` and ``partitions list``: the outbox in partitions of a day each."""

from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption
from sea_mq_worker.cli.support import JsonOption, print_page, run_command

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

_COLUMNS = ("partition", "from_at", "until_at", "bytes")

app = typer.Typer(help="Partitions of the outbox, a day each.", no_args_is_help=True)


@app.command("enable")
def enable(
    *,
    reason: ReasonOption,
    actor: ActorOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the SQL.")] = False,
) -> None:
    """Keep the outbox in partitions of a day each from now on; there is no way back.

    The table is read once meanwhile, and whoever wants it waits; workers go on by themselves.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import enable_partitions, partitioning_sql

        if dry_run:
            typer.echo(partitioning_sql())
        elif await enable_partitions(settings, actor=actor, reason=reason):
            typer.echo("the outbox is in partitions now; `partitions list` shows them")
        else:
            typer.echo("the outbox is in partitions already")

    run_command(work, needs=("database_url",))


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List where the events are: the partitions with the times of their ids, or the table itself."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import partitions

        async with partitions(settings) as outbox:
            print_page(await outbox.all(), _COLUMNS, json=json, empty="")

    run_command(work, needs=("database_url",))

"""``partitions enable`` and ``partitions list``: daily partitions of the outbox."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption
from sea_mq_worker.cli.support import JsonOption, print_page, run_command
from sea_mq_worker.domain.schema_records import Partition

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

_COLUMNS = ("partition", "from_at", "until_at", "bytes")

app = typer.Typer(help="Divide the outbox into daily partitions, and list them.", no_args_is_help=True)


@app.command("enable")
def enable(
    *,
    reason: ReasonOption,
    actor: ActorOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")] = False,
) -> None:
    """Divide the outbox into daily partitions; this cannot be undone.

    The command reads the table once and locks it meanwhile. Workers wait and continue without a restart.
    """
    from sea_mq_worker.operations.database import enable_partitions, partitioning_sql

    async def enable(settings: "Settings") -> None:
        if dry_run:
            typer.echo(partitioning_sql())
        elif await enable_partitions(settings, actor=actor, reason=reason):
            typer.echo("the outbox is in partitions now; `partitions list` shows them")
        else:
            typer.echo("the outbox is in partitions already")

    run_command(enable, needs=("database_url",))


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the partitions of the outbox with their times and sizes; one row if it is a single table."""
    print_page(run_command(_list, needs=("database_url",)), _COLUMNS, json=json, empty="")


async def _list(settings: "Settings") -> Sequence[Partition]:
    from sea_mq_worker.operations.database import partitions

    async with partitions(settings) as outbox:
        return await outbox.all()

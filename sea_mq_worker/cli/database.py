"""``migrate``: the schema."""

import typer

from sea_mq_worker.cli.support import act
from sea_mq_worker.settings import Settings


def migrate() -> None:
    """Bring the database schema to this version; safe to run again, and by several at once."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.bootstrap.operator import migrate_schema

        for name in await migrate_schema(settings):
            typer.echo(f"applied {name}")
        typer.echo(f"schema {settings.database_schema} is up to date")

    act(work, needs=("database_url",))

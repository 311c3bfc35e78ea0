"""``migrate`` and ``depth``: upgrade the schema, and count the backlog."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli import support as ui
from sea_mq_worker.operators.records import ConsumerState, Depth

if TYPE_CHECKING:
    from sea_mq_worker.postgres.migrations import MigrationPlan
    from sea_mq_worker.settings import Settings


_AHEAD_MAX = 100_000
_ADOPTION_ROW_SECONDS = 10e-6
"""Measured on two shared cores; wide payloads take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """Output of `depth`.

    Attributes:
        consumers: messages of ``pending`` are in no table yet.
        not_checked: consumers that could not be queried, each with the reason.
    """

    context: str
    outbox: Depth
    inbox: Depth
    consumers: Sequence[ConsumerState]
    not_checked: Sequence[str]


def migrate(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the missing migrations and their effect on running workers, and change nothing.",
        ),
    ] = False,
    beside_old_worker: Annotated[
        bool,
        typer.Option(
            "--beside-old-worker",
            help="Also let another worker settle events by SDS-047's own statements, until --end-old-worker.",
        ),
    ] = False,
    end_old_worker: Annotated[
        bool, typer.Option("--end-old-worker", help="Refuse SDS-047's own statements again.")
    ] = False,
) -> None:
    """Upgrade the database schema to this version; safe to run again, and by several processes at once.

    Tables of exactly SDS-047's definition are taken over with their rows.
    """
    if dry_run + beside_old_worker + end_old_worker > 1:
        ui.abort("--dry-run, --beside-old-worker and --end-old-worker exclude each other", ui.EXIT_USAGE)

    async def change(settings: "Settings") -> None:
        from sea_mq_worker.postgres import migrations

        dsn, schema = settings.database_url.get_secret_value(), settings.database_schema
        plan = await migrations.plan(dsn, schema=schema)
        if plan.adopted:
            typer.echo(_adoption(plan, "taking over"))
        for name in await migrations.migrate(dsn, schema=schema):
            typer.echo(f"applied {name}")
        typer.echo(f"schema {schema} is up to date")
        if beside_old_worker or end_old_worker:
            await migrations.set_old_worker(dsn, schema=schema, beside=beside_old_worker)
        if beside_old_worker:
            typer.echo("the old worker may run beside this one; end this with `migrate --end-old-worker`")
        elif end_old_worker:
            typer.echo("the old worker's statements are refused")

    ui.run_command(_print_plan if dry_run else change, needs=("database_url",))


def _adoption(plan: "MigrationPlan", verb: str) -> str:
    tables = " and ".join(f"{rows:,} rows of {table}" for table, rows in plan.adopted.items())
    seconds = sum(plan.adopted.values()) * _ADOPTION_ROW_SECONDS + 1
    return f"{verb} {tables}; nobody else can use the tables for about {seconds:.0f} s"


async def _print_plan(settings: "Settings") -> None:
    from sea_mq_worker.postgres import migrations

    dsn = settings.database_url.get_secret_value()
    plan = await migrations.plan(dsn, schema=settings.database_schema)
    if plan.adopted:
        typer.echo(_adoption(plan, "would take over"))
    for name in plan.missing:
        typer.echo(f"would apply {name}")
    if plan.adopted:
        effect = "an old worker fails to mark events until `migrate --beside-old-worker`, or ends before"
    elif not plan.missing:
        effect = "nothing to apply: old and new workers can run side by side"
    elif not plan.version:
        effect = "the schema does not exist: nothing runs on it yet"
    elif plan.serves_running:
        effect = "running workers can continue: replace them one after the other afterwards"
    else:
        effect = f"workers of schema version {plan.version} will end with exit code 3: replace them at once"
    typer.echo(effect)


def depth(
    context: Annotated[
        str, typer.Option("--context", help="Bounded context (default: SEA_MQ_CONTEXT).")
    ] = "",
    json: ui.JsonOption = False,
) -> None:
    """Count unpublished events and unprocessed messages, with the oldest of each.

    The count is that of QRY-050 and QRY-051, with dead and scheduled ones. Waiting are those to be done now,
    as in the metrics sea_mq_outbox_depth and sea_mq_inbox_depth. Messages that the streams have not delivered
    yet are counted if NATS answers.
    """
    depths = ui.run_command(lambda settings: _depths(settings, context), needs=("database_url",))
    if json:
        ui.print_json(depths)
        return
    waits = [each.oldest_seconds for each in depths.consumers if each.oldest_seconds is not None]
    undelivered = "?" if depths.not_checked else str(sum(each.pending for each in depths.consumers))
    to_deliver = {"outbox": ("", ""), "inbox": (undelivered, f"{max(waits):.0f} s" if waits else "")}
    columns = ("side", "count", "oldest", "waiting", "for", "to deliver", "for", "scheduled", "dead")
    rows = []
    for side, d in (("outbox", depths.outbox), ("inbox", depths.inbox)):
        waiting = d.count, d.oldest_at, d.waiting, f"{d.waiting_seconds:.0f} s"
        rows.append((side, *waiting, *to_deliver[side], d.scheduled, d.dead))
    ui.print_table(columns, rows, empty="")
    for text in depths.not_checked:
        typer.echo(f"not counted: {text}", err=True)


async def _depths(settings: "Settings", context: str) -> Depths:
    from sea_mq_worker.operators.tables import depth, open_tables, without_read_ahead

    if context not in {"", settings.context}:
        ui.abort(
            f"--context {context}: these settings are for {settings.context}, and each context has its own "
            f"tables; set SEA_MQ_CONTEXT, SEA_MQ_DATABASE_URL and SEA_MQ_DATABASE_SCHEMA for it",
            ui.EXIT_USAGE,
        )
    async with open_tables(settings) as pool:
        outbox, inbox = await depth(pool, "outbox"), await depth(pool, "inbox")
        states: Sequence[ConsumerState] = ()
        not_checked: Sequence[str] = ()
        if settings.consumers and not settings.nats_url.get_secret_value():
            not_checked = ("streams: SEA_MQ_NATS_URL is not set",)
        elif settings.consumers:
            from sea_mq_worker.operators.streams import consumer_states

            states, not_checked = await consumer_states(settings)
        consumers = [await without_read_ahead(pool, state, limit=_AHEAD_MAX) for state in states]
    return Depths(
        context=settings.context, outbox=outbox, inbox=inbox, consumers=consumers, not_checked=not_checked
    )


# --- ``partitions enable`` and ``partitions list``: daily partitions of the outbox.

_COLUMNS = ("partition", "from_at", "until_at", "bytes")

app = typer.Typer(help="Divide the outbox into daily partitions, and list them.", no_args_is_help=True)


@app.command("enable")
def enable(
    *,
    reason: ui.ReasonOption,
    actor: ui.ActorOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")] = False,
) -> None:
    """Divide the outbox into daily partitions; this cannot be undone.

    The command reads the table once and locks it meanwhile. Workers wait and continue without a restart.
    """
    from sea_mq_worker.operators.changes import enable_partitions
    from sea_mq_worker.postgres.partitions import partitioning_script

    async def enable(settings: "Settings") -> None:
        if dry_run:
            typer.echo(partitioning_script())
        elif await enable_partitions(settings, actor=actor, reason=reason):
            typer.echo("the outbox is in partitions now; `partitions list` shows them")
        else:
            typer.echo("the outbox is in partitions already")

    ui.run_command(enable, needs=("database_url",))


@app.command("list")
def list_(json: ui.JsonOption = False) -> None:
    """List the partitions of the outbox with their times and sizes; one row if it is a single table."""
    from sea_mq_worker.postgres.partitions import PostgresPartitions

    found = ui.on_tables(lambda pool: PostgresPartitions(pool=pool).all())
    ui.print_page(found, _COLUMNS, json=json, empty="")

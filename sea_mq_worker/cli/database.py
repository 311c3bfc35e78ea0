"""``migrate`` and ``depth``: the database as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_USAGE, JsonOption, abort, print_json, print_table, run_command
from sea_mq_worker.domain.read_models import Depth

if TYPE_CHECKING:
    from sea_mq_worker.domain.schema_records import MigrationPlan
    from sea_mq_worker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDeliver:
    """A consumer: what it has still to deliver, what is out, and how long it is still paused for."""

    stream: str
    durable: str
    pending: int
    ack_pending: int
    paused_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """The answer of `depth`.

    Attributes:
        consumers: what each has still to deliver, ``pending``, is in no table yet.
        unseen: consumers that could not be asked, and why.
    """

    context: str
    outbox: Depth
    inbox: Depth
    consumers: Sequence[ToDeliver]
    unseen: Sequence[str]


def migrate(
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only tell what is missing, and what it does to workers that run."),
    ] = False,
) -> None:
    """Bring the database schema to this version; safe to run again, and by several at once."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import migrate_schema, plan_migration

        if dry_run:
            _tell_plan(await plan_migration(settings))
            return
        for name in await migrate_schema(settings):
            typer.echo(f"applied {name}")
        typer.echo(f"schema {settings.database_schema} is up to date")

    run_command(work, needs=("database_url",))


def _tell_plan(plan: "MigrationPlan") -> None:
    for name in plan.missing:
        typer.echo(f"would apply {name}")
    if not plan.missing:
        typer.echo("nothing to apply: old and new workers can run side by side")
    elif not plan.version:
        typer.echo("the schema is not there: nothing runs on it yet")
    elif plan.serves_running:
        typer.echo("workers that run can go on: replace them one after the other afterwards")
    else:
        typer.echo(
            f"workers that know version {plan.version} end with exit code 3 then: replace them at once"
        )


def depth(
    context: Annotated[
        str, typer.Option("--context", help="Bounded context; the configured one unless given.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Count what is not published and what is not processed, with the oldest of each (QRY-050, QRY-051).

    What the streams have not delivered yet is asked of the broker, where it answers.
    """

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.operations.database import operations

        if context not in {"", settings.context}:
            abort(
                f"--context {context}: these settings are for {settings.context}, each has tables of its "
                f"own; set SEA_MQ_CONTEXT, SEA_MQ_DATABASE_URL and SEA_MQ_DATABASE_SCHEMA for it",
                EXIT_USAGE,
            )
        async with operations(settings) as tables:
            sides = {"outbox": await tables.outbox_depth(), "inbox": await tables.inbox_depth()}
        consumers, unseen = await _to_deliver(settings)
        if json:
            print_json(Depths(context=settings.context, consumers=consumers, unseen=unseen, **sides))
            return
        pending = sum(each.pending for each in consumers)
        to_deliver = {"outbox": "", "inbox": "?" if unseen else str(pending)}
        columns = ("side", "count", "oldest", "waiting", "for", "to deliver", "scheduled", "dead")
        rows = [
            (
                side,
                *(d.count, d.oldest_at, d.waiting, f"{d.waiting_seconds:.0f} s"),
                *(to_deliver[side], d.scheduled, d.dead),
            )
            for side, d in sides.items()
        ]
        print_table(columns, rows, empty="")
        for text in unseen:
            typer.echo(f"not counted: {text}", err=True)

    run_command(work, needs=("database_url",))


async def _to_deliver(settings: "Settings") -> tuple[Sequence[ToDeliver], Sequence[str]]:
    """Ask how the consumers stand; also return which could not be asked, and why."""
    if not settings.consumers:
        return (), ()
    if not settings.nats_url.get_secret_value():
        return (), ("streams: SEA_MQ_NATS_URL is not set",)
    from sea_mq_worker.operations.undelivered import consumer_states

    states, unseen = await consumer_states(settings)
    names = [field.name for field in fields(ToDeliver)]
    return [ToDeliver(**{name: getattr(each, name) for name in names}) for each in states], unseen

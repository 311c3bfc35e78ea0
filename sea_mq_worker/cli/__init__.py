"""The command line: parse, call, print; no logic.

Exit codes: 0 done or stopped gracefully, 1 unhealthy or failed, 2 wrong usage or settings, 3 a dependency
breaks its contract (schema, stream, consumer, permission), 4 gave up, 5 grace period exceeded, 130 or 143
forced by a second signal.
"""

import inspect
from typing import Any

import typer
from typer.core import TyperGroup

from sea_mq_worker.cli import (
    database,
    dlq,
    inbox,
    init,
    outbox,
    pipeline,
    prune,
    reconcile,
    run,
    streams,
    where,
)


class _Commands(TyperGroup):
    """The commands; an error says where ``--config`` belongs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if getattr(error, "option_name", "") == "--config":
                error.message = "--config belongs before the command: sea_mq_worker --config FILE COMMAND"  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="sea_mq_worker",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Transactional outbox and inbox worker for PostgreSQL and NATS JetStream.",
    pretty_exceptions_enable=False,
)
app.callback(invoke_without_command=True)(run.default)
app.command("run")(run.run)
app.command("dev")(run.dev)
app.command("init")(init.init)
app.command("migrate")(database.migrate)
app.add_typer(streams.app, name="streams")
app.command("asyncapi")(streams.asyncapi)
app.add_typer(streams.schemas_app, name="schemas")
app.command("doctor")(run.doctor)
app.command("where")(where.where)
app.command("depth")(database.depth)
app.add_typer(outbox.app, name="outbox")
app.add_typer(inbox.app, name="inbox")
app.add_typer(dlq.app, name="dlq")
app.add_typer(database.app, name="partitions")
app.command("prune")(prune.prune)
app.command("audit")(where.audit)
pipeline.app.command("reconcile")(reconcile.reconcile)
pipeline.app.command("replay")(reconcile.replay)
app.add_typer(pipeline.app, name="pipeline")


def _join_lines(commands: typer.Typer) -> None:
    """Let the terminal's width break the lines of descriptions, not the docstrings'."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance:
            _join_lines(group.typer_instance)


_join_lines(app)

"""``init``: write the files that a service begins with."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, abort, echo_safe
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.subjects import is_context


def _contexts(names: list[str]) -> list[str]:
    for name in names:
        if not is_context(name):
            raise typer.BadParameter(f"{name!r} is not one lower-case token of letters, digits, - and _")
    return names


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write; created if missing.")],
    context: Annotated[
        str,
        typer.Option(
            help="Bounded context of the service, the first token of the subjects that it publishes to.",
            callback=lambda name: _contexts([name])[0],
        ),
    ],
    consume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONTEXT",
            help="Context whose events the service handles; may be repeated (default: none).",
            callback=lambda names: _contexts(names or []),
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write settings, servers for Docker, a FastAPI service with a handler, and a test of it."""
    from sea_mq_worker.operations.project import write_project

    try:
        files = write_project(folder, context, consume or [], replace=force)
    except ContractError as error:
        abort(str(error), EXIT_FAILED)
    for file in files:
        echo_safe(str(file))
    next_steps = f"""
Next steps
  cd {quote(str(folder))} && set -a && . ./.env && set +a
  python -m sea_mq_worker dev --own --folder data -- uvicorn service:app --port 8000

With servers of your own, or after `docker compose up --wait`:
  python -m sea_mq_worker migrate
  python -m sea_mq_worker streams apply
  python -m sea_mq_worker"""
    echo_safe(*next_steps.split("\n"))

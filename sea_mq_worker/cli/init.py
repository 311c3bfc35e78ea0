"""``init``: write the files that a service begins with."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, abort, echo_safe
from sea_mq_worker.nats.subjects import durable_consumer, is_context
from sea_mq_worker.resources import resource_folder

_FILES = ("docker-compose.yml", "service.py", "test_service.py")


def _settings(context: str, upstreams: Sequence[str]) -> str:
    """Return the settings of a worker for the servers of the example's docker-compose.yml."""
    consumers = ",".join("/".join(durable_consumer(context, upstream)) for upstream in upstreams)
    return f"""\
# Settings of the worker. For a shell: set -a; . ./.env; set +a
SEA_MQ_CONTEXT={context}
SEA_MQ_CONSUMERS={consumers}
SEA_MQ_HANDLER_URL=http://127.0.0.1:8000/handle
SEA_MQ_LOG_FORMAT=text

# The servers of docker-compose.yml; `dev --own` starts servers of its own.
SEA_MQ_DATABASE_URL=postgresql://postgres:postgres@127.0.0.1:5432/postgres
SEA_MQ_NATS_URL=nats://127.0.0.1:4222

# One small server, instead of three with 10 GiB for each stream.
SEA_MQ_STREAM_REPLICAS=1
SEA_MQ_STREAM_MAX_BYTES=268435456
"""


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
    files = [folder / name for name in (".env", *_FILES)]
    if existing := [str(file) for file in files if file.exists() and not force]:
        abort(
            f"exists already: {', '.join(existing)}; name another folder, or repeat with --force", EXIT_FAILED
        )
    source = resource_folder("examples") / "fastapi_sqlalchemy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(_settings(context, consume or []))
        for name in _FILES:
            shutil.copyfile(source / name, folder / name)
    except OSError as error:
        abort(f"{folder}: cannot be written ({error.strerror})", EXIT_FAILED)
    echo_safe(*map(str, files))
    next_steps = f"""
Next steps
  cd {quote(str(folder))} && set -a && . ./.env && set +a
  python -m sea_mq_worker dev --own --folder data -- uvicorn service:app --port 8000

With servers of your own, or after `docker compose up --wait`:
  python -m sea_mq_worker migrate
  python -m sea_mq_worker streams apply
  python -m sea_mq_worker"""
    echo_safe(*next_steps.split("\n"))

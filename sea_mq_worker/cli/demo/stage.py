"""Start the servers and the worker of ``dev``, with a schema and streams."""

import asyncio
import os
import secrets
import shlex
import sys
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from sea_mq_worker.cli.demo.children import WorkerProcess
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.operations.broker import apply_topology, defined_streams
from sea_mq_worker.operations.database import migrate_schema
from sea_mq_worker.settings import load_settings

_STREAM_BYTES = 256 * 1024 * 1024
_SIGNAL_SECONDS = 0.1
"""Time to wait for SIGINT after a server failed to start, because Ctrl-C may have ended that server first."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The running servers, and the ``SEA_MQ_*`` variables that lead to them."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    settings: Mapping[str, str]


async def start_unless_stopped(stop: asyncio.Event, start: Coroutine[Any, Any, _T]) -> _T | None:
    """Start everything; cancel the start and return None if ``stop`` is set first."""
    starting, stopped = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and starting.exception():
        await asyncio.wait({stopped}, timeout=_SIGNAL_SECONDS)
    stopped.cancel()
    if stop.is_set():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        typer.echo("Stopped before the worker was ready.")
        return None
    return await starting


async def start_servers(stack: AsyncExitStack, folder: Path) -> Servers:
    """Start PostgreSQL and nats-server with their data in the folder; ``stack`` stops them."""
    began = time.monotonic()
    postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
    nats = await stack.enter_async_context(EmbeddedNats(folder / "nats"))
    typer.echo(f"PostgreSQL and nats-server are up ({time.monotonic() - began:.1f} s), data in {folder}")
    settings = {
        "SEA_MQ_ADMIN_TOKEN_FILE": str(_private(folder / "admin-token", secrets.token_urlsafe())),
        "SEA_MQ_DATABASE_URL": postgres.dsn,
        "SEA_MQ_NATS_URL": nats.url,
        "SEA_MQ_STREAM_REPLICAS": "1",
        "SEA_MQ_STREAM_MAX_BYTES": str(_STREAM_BYTES),
    }
    return Servers(postgres=postgres, nats=nats, settings=settings)


async def start_worker(
    stack: AsyncExitStack, folder: Path, settings: Mapping[str, str], *, began: float
) -> WorkerProcess:
    """Create the schema and all streams, also those of other contexts, and start the worker."""
    os.environ.update(settings)
    loaded = load_settings()
    await migrate_schema(loaded)
    await apply_topology(loaded, streams=defined_streams(loaded))
    typer.echo("Schema migrated, streams created (1 replica and 256 MiB each, by settings)")
    all_settings = {name: value for name, value in os.environ.items() if name.startswith("SEA_MQ_")}
    worker = await stack.enter_async_context(WorkerProcess(folder / "worker", settings=all_settings))
    typer.echo(f"The worker is ready ({time.monotonic() - began:.1f} s)")
    return worker


def write_environment(postgres: EmbeddedPostgres, worker: WorkerProcess, folder: Path) -> Path:
    """Write a file for other terminals: the settings, and a PATH with this Python and psql."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in worker.settings.items()]
    folders = Path(sys.executable).parent, postgres.programs
    exports.append('export PATH={}:"$PATH":{}'.format(*(shlex.quote(str(each)) for each in folders)))
    return _private(folder / "environment", "\n".join(exports))


def _private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path

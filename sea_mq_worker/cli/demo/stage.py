"""Start the servers and the worker of ``dev``, with a schema and streams."""

import asyncio
import os
import secrets
import shlex
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from sea_mq_worker.cli.demo.children import SampleHandler, WorkerProcess
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.operations.broker import apply_topology, defined_streams
from sea_mq_worker.operations.database import migrate_schema
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import load_settings

_STREAM_BYTES = 256 * 1024 * 1024
_SIGNAL_SECONDS = 0.1
"""Time to wait for SIGINT after a server failed to start, because Ctrl-C may have ended that server first."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The running servers and the worker; ``handler`` is None if the context is the user's own."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    handler: SampleHandler | None
    worker: WorkerProcess


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


async def start_stage(stack: AsyncExitStack, folder: Path, *, with_handler: bool) -> Stage:
    """Start everything with its data in the folder; ``stack`` stops it.

    Streams of other contexts are created, too: nobody else uses this server.
    """
    began = time.monotonic()
    postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
    nats = await stack.enter_async_context(EmbeddedNats(folder / "nats"))
    typer.echo(f"PostgreSQL and nats-server are up ({time.monotonic() - began:.1f} s), data in {folder}")
    os.environ |= {
        "SEA_MQ_ADMIN_TOKEN_FILE": str(_private(folder / "admin-token", secrets.token_urlsafe())),
        "SEA_MQ_DATABASE_URL": postgres.dsn,
        "SEA_MQ_NATS_URL": nats.url,
    }
    os.environ.setdefault("SEA_MQ_STREAM_REPLICAS", "1")
    os.environ.setdefault("SEA_MQ_STREAM_MAX_BYTES", str(_STREAM_BYTES))
    handler = None
    if with_handler:
        handler = SampleHandler(folder / "handler", source=resource_folder("examples"))
        await stack.enter_async_context(handler)
        os.environ["SEA_MQ_HANDLER_URL"] = f"{handler.url}/handle"
    loaded = load_settings()
    await migrate_schema(loaded)
    await apply_topology(loaded, streams=defined_streams(loaded))
    mebibytes = (loaded.stream_max_bytes or 0) // 2**20
    typer.echo(f"Schema migrated, streams created ({loaded.stream_replicas} replica, {mebibytes} MiB each)")
    settings = {name: value for name, value in os.environ.items() if name.startswith("SEA_MQ_")}
    worker = await stack.enter_async_context(WorkerProcess(folder / "worker", settings=settings))
    typer.echo(f"The worker is ready ({time.monotonic() - began:.1f} s)")
    return Stage(postgres=postgres, nats=nats, handler=handler, worker=worker)


def write_environment(stage: Stage, folder: Path) -> Path:
    """Write a file for other terminals: the settings, and a PATH with this Python and psql."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in stage.worker.settings.items()]
    folders = Path(sys.executable).parent, stage.postgres.programs
    exports.append('export PATH={}:"$PATH":{}'.format(*(shlex.quote(str(each)) for each in folders)))
    return _private(folder / "environment", "\n".join(exports))


def _private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path

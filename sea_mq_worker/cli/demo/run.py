"""Run ``dev``: start the servers, send traffic, report the result and stop everything."""

import asyncio
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import typer

from sea_mq_worker.cli.demo.children import SampleHandler, WorkerProcess
from sea_mq_worker.cli.demo.command import run_command
from sea_mq_worker.cli.demo.progress import Figures, follow
from sea_mq_worker.cli.demo.traffic import publish_vibes, write_orders
from sea_mq_worker.cli.signals import stop_on_signals
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres, ServerStartError
from sea_mq_worker.embedded.process import log_tail
from sea_mq_worker.operations.broker import apply_topology, defined_streams
from sea_mq_worker.operations.database import migrate_schema
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings

_STREAM_BYTES = 256 * 1024 * 1024
_SIGNAL_SECONDS = 0.1
"""Time to wait for SIGINT after a server failed to start, because Ctrl-C may have ended that server first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    handler: SampleHandler
    worker: WorkerProcess


async def run_demo(folder: Path, *, events: int, leave: bool) -> bool:
    """Start everything, send traffic, print the result; run until Ctrl-C unless ``leave`` is set.

    Returns:
        Whether all traffic arrived.
    """
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with AsyncExitStack() as stack:
        stage = await _start_unless_stopped(stop, stack, folder)
        if stage is None:
            return False
        figures = await _send(stage, events, stop)
        _print_figures(figures)
        if not leave and not stop.is_set():
            _print_next_steps(stage, folder)
            typer.echo("\nThe worker runs until Ctrl-C.")
            await stop.wait()
        typer.echo("Stopping.")
    return figures.complete


async def run_demo_for(command: Sequence[str], folder: Path, *, events: int) -> int | None:
    """Start everything, send traffic, run the command and stop; only the command writes to stdout.

    Returns:
        The command's exit code; None if the traffic did not arrive and the command was not run.

    Raises:
        CommandStartError: the command cannot be started.
    """
    stop = asyncio.Event()
    stop_on_signals(stop)
    with redirect_stdout(sys.stderr):
        async with AsyncExitStack() as stack:
            stage = await _start_unless_stopped(stop, stack, folder)
            if stage is None:
                return None
            figures = await _send(stage, events, stop)
            _print_figures(figures)
            if not figures.complete or stop.is_set():
                return None
            typer.echo(f"\nRunning {shlex.join(command)}")
            code = await run_command(command, settings=stage.worker.settings, stop=stop)
            typer.echo(f"The command ended with exit code {code}. Stopping.")
    return code


async def _start_unless_stopped(stop: asyncio.Event, stack: AsyncExitStack, folder: Path) -> _Stage | None:
    """Start everything; cancel the start and return None if ``stop`` is set first."""
    starting, stopped = asyncio.ensure_future(_start(stack, folder)), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and starting.exception():
        await asyncio.wait({stopped}, timeout=_SIGNAL_SECONDS)
    stopped.cancel()
    if stop.is_set():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        typer.echo("Stopped before any traffic was sent.")
        return None
    return await starting


async def _start(stack: AsyncExitStack, folder: Path) -> _Stage:
    began = time.monotonic()
    postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
    nats = await stack.enter_async_context(EmbeddedNats(folder / "nats"))
    typer.echo(f"PostgreSQL and nats-server are up ({time.monotonic() - began:.1f} s), data in {folder}")
    handler = SampleHandler(folder / "handler", source=resource_folder("examples"))
    await stack.enter_async_context(handler)
    settings = {
        "SEA_MQ_ADMIN_TOKEN_FILE": str(_private(folder / "admin-token", secrets.token_urlsafe())),
        "SEA_MQ_DATABASE_URL": postgres.dsn,
        "SEA_MQ_NATS_URL": nats.url,
        "SEA_MQ_HANDLER_URL": f"{handler.url}/handle",
        "SEA_MQ_STREAM_REPLICAS": "1",
        "SEA_MQ_STREAM_MAX_BYTES": str(_STREAM_BYTES),
    }
    own = Settings.model_validate(
        {name.removeprefix("SEA_MQ_").lower(): value for name, value in settings.items()}
    )
    await migrate_schema(own)
    await apply_topology(own, streams=defined_streams(own))
    typer.echo("Schema migrated, streams created (1 replica and 256 MiB each, by settings)")
    worker = await stack.enter_async_context(WorkerProcess(folder / "worker", settings=settings))
    typer.echo(f"The worker is ready ({time.monotonic() - began:.1f} s)")
    return _Stage(postgres=postgres, nats=nats, handler=handler, worker=worker)


async def _send(stage: _Stage, events: int, stop: asyncio.Event) -> Figures:
    typer.echo(
        f"Sending {events} events in each direction: orders into the outbox, vibes into VIBESPRO_EVENTS"
    )
    began = time.monotonic()
    await asyncio.gather(write_orders(stage.postgres.dsn, events), publish_vibes(stage.nats.url, events))
    figures = await follow(
        dsn=stage.postgres.dsn,
        nats_url=stage.nats.url,
        handler_url=stage.handler.url,
        show=_show_progress,
        ended=lambda: stop.is_set() or not stage.worker.running,
    )
    if sys.stdout.isatty():
        typer.echo("")
    if not stage.worker.running:
        lines = log_tail(stage.worker.log, since=0)
        raise ServerStartError(f"the worker has ended; the last lines of its log:\n{lines}")
    typer.echo(f"Done in {time.monotonic() - began:.1f} s" if figures.complete else "Stopped early")
    return figures


def _show_progress(figures: Figures) -> None:
    if sys.stdout.isatty():
        done = f"{figures.published} of {figures.written} published"
        ended = f"{figures.processed + figures.dead_letters} of {figures.received} handled"
        typer.echo(f"\r{done}, {ended}   ", nl=False)


def _print_figures(figures: Figures) -> None:
    typer.echo(
        f"""
outbox -> stream      {figures.written} events written, {figures.published} PUBLISHED, \
{figures.in_stream} messages in SEA_EVENTS
stream -> handler     {figures.received} messages in VIBESPRO_EVENTS, {figures.processed} processed, \
{figures.effects} effects in {figures.calls} calls
dead letters          {figures.dead_letters} in SEA_DLQ, rejected by the handler with status 422"""
    )


def _print_next_steps(stage: _Stage, folder: Path) -> None:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in stage.worker.settings.items()]
    folders = Path(sys.executable).parent, stage.postgres.programs
    exports.append('export PATH={}:"$PATH":{}'.format(*(shlex.quote(str(each)) for each in folders)))
    environment = _private(folder / "environment", "\n".join(exports))
    typer.echo(
        f"""
Next steps
  {stage.worker.page}
                            the worker's page, signed in
  . {environment}    in another terminal, followed by:
    python -m sea_mq_worker depth
    python -m sea_mq_worker dlq list
    python -m sea_mq_worker outbox list --state PUBLISHED
    psql "$SEA_MQ_DATABASE_URL" -c 'TABLE outbox_events LIMIT 5'
  {stage.worker.log}    the worker's log"""
    )


def _private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path

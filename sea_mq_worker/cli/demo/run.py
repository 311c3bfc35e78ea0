"""Run ``dev``: start the servers, send traffic, report the result and stop everything."""

import asyncio
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
from sea_mq_worker.cli.demo.stage import start_servers, start_unless_stopped, start_worker, write_environment
from sea_mq_worker.cli.demo.traffic import publish_vibes, write_orders
from sea_mq_worker.cli.signals import stop_on_signals
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres, ServerStartError
from sea_mq_worker.embedded.process import log_tail
from sea_mq_worker.resources import resource_folder


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
        stage = await start_unless_stopped(stop, _start(stack, folder))
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
    """
    stop = asyncio.Event()
    stop_on_signals(stop)
    with redirect_stdout(sys.stderr):
        async with AsyncExitStack() as stack:
            stage = await start_unless_stopped(stop, _start(stack, folder))
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


async def _start(stack: AsyncExitStack, folder: Path) -> _Stage:
    began = time.monotonic()
    servers = await start_servers(stack, folder)
    handler = SampleHandler(folder / "handler", source=resource_folder("examples"))
    await stack.enter_async_context(handler)
    given = {**servers.settings, "SEA_MQ_HANDLER_URL": f"{handler.url}/handle"}
    worker = await start_worker(stack, folder, given, began=began)
    return _Stage(postgres=servers.postgres, nats=servers.nats, handler=handler, worker=worker)


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
    environment = write_environment(stage.postgres, stage.worker, folder)
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

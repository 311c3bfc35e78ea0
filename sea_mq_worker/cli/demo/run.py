"""Run ``dev``: start the servers, send traffic, run the user's command, report and stop everything."""

import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path

import typer

from sea_mq_worker.cli.demo.children import SampleHandler
from sea_mq_worker.cli.demo.command import run_command
from sea_mq_worker.cli.demo.progress import Figures, follow
from sea_mq_worker.cli.demo.stage import Stage, start_stage, start_unless_stopped, write_environment
from sea_mq_worker.cli.demo.traffic import publish_vibes, write_orders
from sea_mq_worker.cli.signals import stop_on_signals
from sea_mq_worker.cli.support import EXIT_FAILED
from sea_mq_worker.embedded import ServerStartError
from sea_mq_worker.embedded.process import log_tail


async def run_demo(command: Sequence[str], folder: Path, *, events: int | None, leave: bool) -> int:
    """Start everything, send traffic, then run the command, or wait for Ctrl-C unless ``leave`` is set.

    Args:
        command: program and arguments; only the command writes to stdout then.
        folder: data of the servers.
        events: number of sample events in each direction; None: the context, its handler and its traffic are
            the user's own, and nothing is written to stdout.
        leave: stop when the traffic has arrived.

    Returns:
        The command's exit code, or without a command whether all traffic arrived, as an exit code.

    Raises:
        ServerStartError: a server or the worker did not start.
    """
    own = events is None
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with AsyncExitStack() as stack:
        if command or own:
            stack.enter_context(redirect_stdout(sys.stderr))
        stage = await start_unless_stopped(stop, start_stage(stack, folder, with_handler=not own))
        if stage is None:
            return EXIT_FAILED
        is_complete = True
        if stage.handler and events:
            is_complete = await _send(stage, stage.handler, events, stop)
        waits = not command and not stop.is_set() and (own or not leave)
        if own or waits:
            _print_next_steps(stage, folder)
        if command and (stop.is_set() or not is_complete):
            return EXIT_FAILED
        if command:
            typer.echo(f"\nRunning {shlex.join(command)}")
            code = await run_command(command, settings=stage.worker.settings, stop=stop)
            typer.echo(f"The command ended with exit code {code}. Stopping.")
            return code
        if waits:
            typer.echo("\nThe worker runs until Ctrl-C.")
            await stop.wait()
        typer.echo("Stopping.")
    return 0 if is_complete else EXIT_FAILED


async def _send(stage: Stage, handler: SampleHandler, events: int, stop: asyncio.Event) -> bool:
    """Send the sample traffic, print its figures, and return whether all of it arrived."""
    typer.echo(
        f"Sending {events} events in each direction: orders into the outbox, vibes into VIBESPRO_EVENTS"
    )
    began = time.monotonic()
    await asyncio.gather(write_orders(stage.postgres.dsn, events), publish_vibes(stage.nats.url, events))
    figures = await follow(
        dsn=stage.postgres.dsn,
        nats_url=stage.nats.url,
        handler_url=handler.url,
        show=_show_progress,
        ended=lambda: stop.is_set() or not stage.worker.running,
    )
    if sys.stdout.isatty():
        typer.echo("")
    if not stage.worker.running:
        lines = log_tail(stage.worker.log, since=0)
        raise ServerStartError(f"the worker has ended; the last lines of its log:\n{lines}")
    typer.echo(f"Done in {time.monotonic() - began:.1f} s" if figures.complete else "Stopped early")
    _print_figures(figures)
    return figures.complete


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


def _print_next_steps(stage: Stage, folder: Path) -> None:
    schema = stage.worker.settings.get("SEA_MQ_DATABASE_SCHEMA", "public")
    environment = shlex.quote(str(write_environment(stage, folder)))
    typer.echo(
        f"""
Next steps
  {stage.worker.page}
                            the worker's page, signed in
  . {environment}    in another terminal, followed by:
    python -m sea_mq_worker depth
    python -m sea_mq_worker dlq list
    python -m sea_mq_worker outbox list --state PUBLISHED
    psql "$SEA_MQ_DATABASE_URL" -c 'TABLE {schema}.outbox_events LIMIT 5'
  {stage.worker.log}    the worker's log"""
    )

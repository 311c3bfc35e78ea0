"""Run ``dev --own``: the servers and the worker for a service of the user's."""

import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path

import typer

from sea_mq_worker.cli.demo.command import run_command
from sea_mq_worker.cli.demo.stage import start_servers, start_unless_stopped, start_worker, write_environment
from sea_mq_worker.cli.signals import stop_on_signals


async def run_own(command: Sequence[str], folder: Path) -> int | None:
    """Start the servers and the worker, and run the command, or wait for Ctrl-C; only it writes to stdout.

    Returns:
        The command's exit code, 0 without a command; None if Ctrl-C came first.

    Raises:
        ServerStartError: a server or the worker did not start.
    """
    stop = asyncio.Event()
    stop_on_signals(stop)
    with redirect_stdout(sys.stderr):
        async with AsyncExitStack() as stack:
            started = await start_unless_stopped(stop, _start(stack, folder))
            if started is None:
                return None
            if not command:
                typer.echo("The worker runs until Ctrl-C.")
                await stop.wait()
                return 0
            typer.echo(f"Running {shlex.join(command)}")
            return await run_command(command, settings=started, stop=stop)


async def _start(stack: AsyncExitStack, folder: Path) -> dict[str, str]:
    """Start everything, print the ways to look at it, and return the settings."""
    began = time.monotonic()
    servers = await start_servers(stack, folder)
    worker = await start_worker(stack, folder, servers.settings, began=began)
    environment = write_environment(servers.postgres, worker, folder)
    typer.echo(f"{worker.page}    the worker's page, signed in")
    typer.echo(f". {environment}    the settings, for another terminal")
    return worker.settings

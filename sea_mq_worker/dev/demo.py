"""Run ``dev``: start the servers, send traffic, run the user's command, report and stop everything."""

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from sea_mq_worker.dev.servers import (
    Account,
    EmbeddedNats,
    EmbeddedPostgres,
    PythonServer,
    ServerStartError,
    free_port,
    guarded,
    log_tail,
)
from sea_mq_worker.dev.traffic import follow, publish_vibes, write_orders
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.runtime.waiting import stop_on_signals
from sea_mq_worker.settings import load_settings

_EXIT_FAILED = 1
_STREAM_BYTES = 256 * 1024 * 1024
_SIGNAL_SECONDS = 0.1
"""Time to wait for SIGINT after a server failed to start, because Ctrl-C may have ended that server first."""
_LEAVE_SECONDS = 3.0
"""Time for the command to end by itself before it gets SIGTERM. Ctrl-C reaches the command as well."""
_END_SECONDS = 30.0
"""Time for the command to end after SIGTERM before it gets SIGKILL."""

_T = TypeVar("_T")


async def run_demo(command: Sequence[str], folder: Path, *, events: int | None, leave: bool) -> int:
    """Start everything, send traffic, then run the command, or wait for Ctrl-C unless ``leave`` is set.

    ``events``: number of sample events in each direction; None: the context, its handler and its traffic are
    the user's own. With a command, or an own context, only the command writes to stdout. Return the command's
    exit code, or without a command whether all traffic arrived, as an exit code.
    """
    own = events is None
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with AsyncExitStack() as stack:
        if command or own:
            stack.enter_context(redirect_stdout(sys.stderr))
        stage = await _unless_stopped(stop, _start(stack, folder, with_handler=not own))
        if stage is None:
            typer.echo("Stopped before the worker was ready.")
            return _EXIT_FAILED
        is_complete = events is None or await _send(stage, events, stop)
        waits = not command and not stop.is_set() and (own or not leave)
        if own or waits:
            _print_next_steps(stage, folder)
        if command and (stop.is_set() or not is_complete):
            return _EXIT_FAILED
        if command:
            typer.echo(f"\nRunning {shlex.join(command)}")
            code = await _run_command(command, settings=stage.settings, stop=stop)
            typer.echo(f"The command ended with exit code {code}. Stopping.")
            return code
        if waits:
            typer.echo("\nThe worker runs until Ctrl-C.")
            await stop.wait()
        typer.echo("Stopping.")
    return 0 if is_complete else _EXIT_FAILED


# --- Servers and worker.


def sample_handler(folder: Path) -> PythonServer:
    """Return ``examples/handler.py`` under uvicorn."""
    source = str(resource_folder("examples"))
    command = ["uvicorn", "--app-dir", source, "handler:app", "--port", "PORT"]
    quiet = ["--log-level", "warning", "--no-access-log"]
    return PythonServer(folder, name="handler", command=[*command, *quiet], ready="/effects")


def worker_process(folder: Path, settings: Mapping[str, str]) -> PythonServer:
    """Return a worker with these ``SEA_MQ_*`` variables, whose admin server has a port of its own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
    port = free_port()
    return PythonServer(
        folder,
        name="worker",
        command=["sea_mq_worker", "run"],
        ready="/readyz",
        environment={**others, **settings, "SEA_MQ_ADMIN_PORT": str(port)},
        port=port,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The running servers and the worker; ``handler`` is None if the context is the user's own.

    ``settings``: the worker's ``SEA_MQ_*`` variables.
    """

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    handler: PythonServer | None
    worker: PythonServer
    settings: Mapping[str, str]


async def _start(stack: AsyncExitStack, folder: Path, *, with_handler: bool) -> Stage:
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
        handler = await stack.enter_async_context(sample_handler(folder / "handler"))
        os.environ["SEA_MQ_HANDLER_URL"] = f"{handler.url}/handle"
    loaded = load_settings()
    await migrate(loaded.database_url.get_secret_value(), schema=loaded.database_schema)
    await apply_topology(loaded, streams=defined_streams(loaded))
    mebibytes = (loaded.stream_max_bytes or 0) // 2**20
    typer.echo(f"Schema migrated, streams created ({loaded.stream_replicas} replica, {mebibytes} MiB each)")
    settings = {name: value for name, value in os.environ.items() if name.startswith("SEA_MQ_")}
    worker = await stack.enter_async_context(worker_process(folder / "worker", settings))
    typer.echo(f"The worker is ready ({time.monotonic() - began:.1f} s)")
    settings["SEA_MQ_ADMIN_PORT"] = str(worker.port)
    return Stage(postgres=postgres, nats=nats, handler=handler, worker=worker, settings=settings)


async def _unless_stopped(stop: asyncio.Event, start: Coroutine[Any, Any, _T]) -> _T | None:
    """Start everything; cancel the start and return None if ``stop`` is set first."""
    starting, stopped = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and starting.exception():
        await asyncio.wait({stopped}, timeout=_SIGNAL_SECONDS)
    stopped.cancel()
    if not stop.is_set():
        return await starting
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return None


def _private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path


# --- Traffic, and what the user may do next.


async def _send(stage: Stage, events: int, stop: asyncio.Event) -> bool:
    """Send the sample traffic, print its figures, and return whether all of it arrived."""
    if stage.handler is None:
        raise AssertionError
    typer.echo(
        f"Sending {events} events in each direction: orders into the outbox, vibes into VIBESPRO_EVENTS"
    )
    began = time.monotonic()
    await asyncio.gather(write_orders(stage.postgres.dsn, events), publish_vibes(stage.nats.url, events))
    figures = await follow(
        dsn=stage.postgres.dsn,
        nats_url=stage.nats.url,
        handler_url=stage.handler.url,
        ended=lambda: stop.is_set() or not stage.worker.running,
    )
    if not stage.worker.running:
        lines = log_tail(stage.worker.log)
        raise ServerStartError(f"the worker has ended; the last lines of its log:\n{lines}")
    typer.echo(f"Done in {time.monotonic() - began:.1f} s" if figures.complete else "Stopped early")
    typer.echo(figures)
    return figures.complete


def _print_next_steps(stage: Stage, folder: Path) -> None:
    """Name the page and what to type; a file gives other terminals the settings, this Python and psql."""
    schema = stage.settings.get("SEA_MQ_DATABASE_SCHEMA", "public")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in stage.settings.items()]
    folders = Path(sys.executable).parent, stage.postgres.programs
    exports.append('export PATH={}:"$PATH":{}'.format(*(shlex.quote(str(each)) for each in folders)))
    environment = shlex.quote(str(_private(folder / "environment", "\n".join(exports))))
    token = Path(stage.settings["SEA_MQ_ADMIN_TOKEN_FILE"]).read_text().strip()
    typer.echo(
        f"""
Next steps
  {stage.worker.url}/#token={token}
                            the worker's page, signed in
  . {environment}    in another terminal, followed by:
    python -m sea_mq_worker depth
    python -m sea_mq_worker dlq list
    python -m sea_mq_worker outbox list --state PUBLISHED
    psql "$SEA_MQ_DATABASE_URL" -c 'TABLE {schema}.outbox_events LIMIT 5'
  {stage.worker.log}    the worker's log"""
    )


# --- The user's command.


class CommandStartError(Exception):
    """The command cannot be started; the text states the reason."""


def check_command(command: Sequence[str]) -> None:
    """Check that the program exists, before anything else is started."""
    if shutil.which(command[0], path=_search_path()) is None:
        raise CommandStartError(f"{command[0]}: program not found on PATH, or not executable")


async def _run_command(command: Sequence[str], *, settings: Mapping[str, str], stop: asyncio.Event) -> int:
    """Run the command in this terminal until it ends or ``stop``; return its exit code as a shell does."""
    program = shutil.which(command[0], path=_search_path()) or command[0]
    environment = {**os.environ, **settings, "PATH": _search_path()}
    arguments = guarded([program, *command[1:]], account=Account.own(), death_signal=signal.SIGTERM)
    process = await asyncio.create_subprocess_exec(*arguments, env=environment)
    stopped, ended = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        for seconds, how in ((_LEAVE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)):
            if not (await asyncio.wait({ended}, timeout=seconds))[0]:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(how)
        code = await ended
    return code if code >= 0 else 128 - code


def _search_path() -> str:
    """Return PATH with the folder of this Python first, as in an activated virtual environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

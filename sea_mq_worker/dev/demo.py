"""Run ``dev``: start the servers, send traffic, run the user's command, report and stop everything."""

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import asyncpg
import httpx2
import nats
import typer
from nats.js import JetStreamContext

from sea_mq_worker.dev.servers import (
    Account,
    EmbeddedNats,
    EmbeddedPostgres,
    EmbeddedServer,
    ServerStartError,
    guarded,
    log_tail,
)
from sea_mq_worker.dev.traffic import publish_vibes, write_orders
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.runtime.waiting import stop_on_signals
from sea_mq_worker.settings import load_settings

_EXIT_FAILED = 1

# --- Run the sample handler and the worker as child processes, in the same way as the embedded servers.


class _Child(EmbeddedServer):
    """A Python program with an HTTP endpoint that reports readiness."""

    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL
    ready_path: ClassVar[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the module to run, followed by its arguments."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    async def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *self._command()]
        return self._spawn(command, environment=self._environment(), death_signal=signal.SIGTERM)

    async def _is_ready(self) -> bool:
        try:
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                return (await http.get(self.url + self.ready_path)).is_success
        except httpx2.TransportError:
            return False


class SampleHandler(_Child):
    """``examples/handler.py`` under uvicorn."""

    name: ClassVar[str] = "handler"
    ready_path: ClassVar[str] = "/effects"

    def __init__(self, folder: Path, *, source: Path) -> None:
        """Create the handler; ``source`` is the folder that contains ``handler.py``."""
        super().__init__(folder, port=0)
        self._source = source

    def _command(self) -> list[str]:
        quiet = ["--log-level", "warning", "--no-access-log"]
        return ["uvicorn", "--app-dir", str(self._source), "handler:app", "--port", str(self.port), *quiet]


class WorkerProcess(_Child):
    """``python -m sea_mq_worker run``, configured by environment variables."""

    name: ClassVar[str] = "worker"
    ready_path: ClassVar[str] = "/readyz"

    def __init__(self, folder: Path, *, settings: Mapping[str, str]) -> None:
        """Create the worker with ``SEA_MQ_*`` variables; the admin port is chosen here."""
        super().__init__(folder, port=0)
        self.settings = {**settings, "SEA_MQ_ADMIN_PORT": str(self.port)}

    @property
    def page(self) -> str:
        """The page's address with the admin token behind #, which the browser keeps and uses to sign in."""
        token = Path(self.settings["SEA_MQ_ADMIN_TOKEN_FILE"]).read_text().strip()
        return f"{self.url}/#token={token}"

    def _command(self) -> list[str]:
        return ["sea_mq_worker", "run"]

    def _environment(self) -> Mapping[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
        return {**others, **self.settings}


# --- Run a command of the user against the servers of ``dev``.

_LEAVE_SECONDS = 3.0
"""Time for the command to end by itself before it gets SIGTERM. Ctrl-C reaches the command as well."""
_END_SECONDS = 30.0
"""Time for the command to end after SIGTERM before it gets SIGKILL."""


class CommandStartError(Exception):
    """The command cannot be started; the text states the reason."""


def check_command(command: Sequence[str]) -> None:
    """Check that the program exists, before anything else is started.

    Raises:
        CommandStartError: the program was not found.
    """
    if shutil.which(command[0], path=_search_path()) is None:
        raise CommandStartError(f"{command[0]}: program not found on PATH, or not executable")


async def run_command(command: Sequence[str], *, settings: Mapping[str, str], stop: asyncio.Event) -> int:
    """Run the command in this terminal, with the settings in its environment.

    Args:
        command: program and arguments; ``python`` is the interpreter of this process.
        settings: ``SEA_MQ_*`` variables.
        stop: ends the command when set.

    Returns:
        The command's exit code as a shell reports it: 128 + N if signal N ended the command.
    """
    program = shutil.which(command[0], path=_search_path()) or command[0]
    environment = {**os.environ, **settings, "PATH": _search_path()}
    guarded_command = guarded([program, *command[1:]], account=Account.own(), death_signal=signal.SIGTERM)
    process = await asyncio.create_subprocess_exec(*guarded_command, env=environment)
    stopped = asyncio.ensure_future(stop.wait())
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await _end(process, ended)
    code = ended.result()
    return code if code >= 0 else 128 - code


def _search_path() -> str:
    """Return PATH with the folder of this Python first, as in an activated virtual environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    for seconds, how in ((_LEAVE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)):
        if (await asyncio.wait({ended}, timeout=seconds))[0]:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
    await ended


# --- Follow the progress of the sample traffic by querying the servers, independently of the worker.

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    written: int
    published: int
    in_stream: int
    received: int
    processed: int
    effects: int
    calls: int
    dead_letters: int

    @property
    def complete(self) -> bool:
        """Whether every written event is published and every message is processed or dead-lettered."""
        return self.published == self.written and self.processed + self.dead_letters == self.received


async def follow(
    *, dsn: str, nats_url: str, handler_url: str, show: Callable[[Figures], None], ended: Callable[[], bool]
) -> Figures:
    """Show figures until they are complete or ``ended`` returns true; return the last figures."""
    database = await asyncpg.connect(dsn)
    broker = await nats.connect(nats_url)
    try:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            while True:
                figures = await _read_figures(database, broker.jetstream(), http, handler_url)
                show(figures)
                if figures.complete or ended():
                    return figures
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        await broker.close()
        await database.close()


async def _read_figures(
    database: asyncpg.Connection, stream: JetStreamContext, http: httpx2.AsyncClient, handler_url: str
) -> Figures:
    outbox = await database.fetchrow(
        "SELECT count(*) AS written, count(published_at) AS published FROM outbox_events"
    )
    processed = await database.fetchval("SELECT count(processed_at) FROM inbox_messages")
    handler: dict[str, Any] = (await http.get(f"{handler_url}/effects")).json()
    return Figures(
        written=outbox["written"],
        published=outbox["published"],
        in_stream=await _messages(stream, "SEA_EVENTS"),
        received=await _messages(stream, "VIBESPRO_EVENTS"),
        processed=processed,
        effects=handler["effects"],
        calls=handler["calls"],
        dead_letters=await _messages(stream, "SEA_DLQ"),
    )


async def _messages(stream: JetStreamContext, name: str) -> int:
    return (await stream.stream_info(name)).state.messages


# --- Start the servers and the worker of ``dev``, with a schema and streams.

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
    await migrate(loaded.database_url.get_secret_value(), schema=loaded.database_schema)
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
            return _EXIT_FAILED
        is_complete = True
        if stage.handler and events:
            is_complete = await _send(stage, stage.handler, events, stop)
        waits = not command and not stop.is_set() and (own or not leave)
        if own or waits:
            _print_next_steps(stage, folder)
        if command and (stop.is_set() or not is_complete):
            return _EXIT_FAILED
        if command:
            typer.echo(f"\nRunning {shlex.join(command)}")
            code = await run_command(command, settings=stage.worker.settings, stop=stop)
            typer.echo(f"The command ended with exit code {code}. Stopping.")
            return code
        if waits:
            typer.echo("\nThe worker runs until Ctrl-C.")
            await stop.wait()
        typer.echo("Stopping.")
    return 0 if is_complete else _EXIT_FAILED


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

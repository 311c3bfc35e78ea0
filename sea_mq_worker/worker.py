"""Run the worker inside a service's own process, such as in the lifespan of a FastAPI application.

The worker leaves logging, signals and tracing to the service: its records go to the logger ``sea_mq_worker``
and to the handlers of the root logger, its spans to the service's tracer provider. It listens on no port.
"""

import asyncio
import importlib.metadata
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.admin.status import DEPTH_MAX, Status, open_upkeep
from sea_mq_worker.connections import SecretFile, exposures
from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.operators.definitions import AWAITED, EXISTENCE, check_topology
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.backlog import Backlog, stopped_early
from sea_mq_worker.runtime.supervisor import ExitCode, Loop, Readiness, supervise
from sea_mq_worker.runtime.waiting import StoppedError, bounded_stack, cancel_on_stop, report_ready
from sea_mq_worker.settings import Settings, SettingsError, check_settings, load_settings
from sea_mq_worker.telemetry.events import Listeners
from sea_mq_worker.telemetry.logs import LogListener, configure
from sea_mq_worker.telemetry.metrics import Metrics, Side
from sea_mq_worker.wiring.context import WorkerContext, with_session
from sea_mq_worker.wiring.inbound import inbound_loops
from sea_mq_worker.wiring.outbound import outbound_loops

# --- Start the worker: the admin server, then both sides, then the supervisor.

_BACKLOG_PROBE_MAX_SECONDS = 2.0
_VERSION = importlib.metadata.version("sea-mq-worker")
_PROBE_MAX_SECONDS = 5.0
_BESIDE_OTHERS: Mapping[str, Any] = MappingProxyType({"consumers": (), "worker_name": "", "admin_port": 0})
"""Settings of a worker that only publishes a backlog, beside workers of the same settings."""


async def run_worker(
    settings: Settings,
    stop: asyncio.Event,
    *,
    until_empty: bool = False,
    host: Callable[[WorkerContext], None] | None = None,
) -> ExitCode:
    """Run until ``stop``; return the exit code of the process.

    Args:
        settings: checked settings.
        stop: ends the worker when set.
        until_empty: only publish the outbox, under a name and a port of its own, and end when none of the
            events that were due at the start can be published; FAILED if any of them is unpublished then.
        host: called with the worker's parts before the start. The process then belongs to another program:
            the worker configures neither logs nor tracing, and serves no admin pages.

    Raises:
        SettingsError: a setting is missing, or contradicts what a server reports.
        StoreUnavailableError: the unpublished events cannot be counted at the end.
    """
    if until_empty:
        settings = settings.model_copy(update=_BESIDE_OTHERS)
    if settings.consumers and not settings.handler_url:
        raise SettingsError(
            "SEA_MQ_HANDLER_URL: is required, since there are consumers (SEA_MQ_CONSUMERS= for none)"
        )
    if host is None:
        configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    name, metrics, readiness = settings.worker_name or _own_name(), Metrics(), Readiness()
    status = _status(settings, name, metrics, readiness)
    async with bounded_stack() as stack:
        base = WorkerContext(
            settings=settings,
            name=name,
            events=Listeners([LogListener(in_text=host is not None), metrics, status]),
            metrics=metrics,
            stop=stop,
            stack=stack,
            readiness=readiness,
        )
        for key, text in exposures(settings):
            base.events.emit(key, text=text)
        base.readiness.check("start", lambda: "" if base.started.is_set() else "the worker is starting")
        base.readiness.check("stop", lambda: "the worker is stopping" if stop.is_set() else "")
        if host is not None:
            host(base)
        else:
            if settings.tracing:
                _export_spans(base)
            await _serve_admin(base, status)
        return await _run(base, status, until_empty=until_empty, owns_process=host is None)


async def _run(base: WorkerContext, status: Status, *, until_empty: bool, owns_process: bool) -> ExitCode:
    try:
        loops, backlog = await cancel_on_stop(base.stop, _start(base, status, until_empty=until_empty))
    except StoppedError:
        return stopped_early(base.events) if until_empty else ExitCode.DONE
    except ContractError as error:
        base.events.emit("contract_broken", text=str(error))
        return ExitCode.CONTRACT
    base.started.set()
    if owns_process and (manager := os.environ.get("NOTIFY_SOCKET")):
        try:
            report_ready(manager)
        except OSError as error:
            raise SettingsError(f"NOTIFY_SOCKET: {error.strerror}") from error
    code = await supervise(
        loops,
        base.stop,
        name=base.name,
        version=_VERSION,
        events=base.events,
        grace_seconds=base.settings.grace_seconds,
    )
    if backlog is None or code is not ExitCode.DONE:
        return code
    return await backlog.exit_code(open_tables(base.settings, purpose="backlog"))


async def _start(
    base: WorkerContext, status: Status, *, until_empty: bool
) -> tuple[Mapping[str, Loop], Backlog | None]:
    base = await with_session(base)
    backlog = await _backlog(base) if until_empty else None
    loops = await _loops(base, status, backlog)
    await _warn_of_differences(base)
    return loops, backlog


async def _backlog(base: WorkerContext) -> Backlog:
    return await Backlog.open(
        await base.pool("backlog"),
        breaker=base.breaker("backlog", cap_seconds=_BACKLOG_PROBE_MAX_SECONDS),
        events=base.events,
        hold_dead_keys=base.settings.outbox_dead_key == "hold",
    )


async def _loops(base: WorkerContext, status: Status, backlog: Backlog | None) -> dict[str, Loop]:
    pool = await base.connect(lambda: open_upkeep(base.settings, base.events), "PostgreSQL")
    base.stack.push_async_callback(pool.close)
    breaker = base.breaker("upkeep database", cap_seconds=_PROBE_MAX_SECONDS)
    loops: dict[str, Loop] = {"depth": partial(status.watch_tables, pool=pool, breaker=breaker)}
    if base.settings.otlp_metrics:
        loops["metrics export"] = _metrics_export(base)
    if limit := base.settings.broken_seconds_max:
        loops["give up"] = partial(base.readiness.give_up_after, limit)
    if base.settings.outbox_enabled:
        loops |= await outbound_loops(base, stands_by=backlog is None)
    if backlog:
        loops["backlog"] = backlog.run
    if base.settings.consumers:
        connection, consumers, inbound = await inbound_loops(base)
        loops |= inbound
        loops["consumer states"] = partial(
            status.watch_consumers, consumers=consumers, connection=connection, pool=pool, events=base.events
        )
    if base.takeover is not None:
        loops["takeover"] = base.takeover.run
    return loops


def _export_spans(base: WorkerContext) -> None:
    """Export spans until the worker ends; OpenTelemetry is imported only here and where it is used."""
    from sea_mq_worker.telemetry.otlp import described, export_spans  # noqa: PLC0415

    try:
        shutdown = export_spans(described(context=base.settings.context, worker=base.name))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    base.stack.push_async_callback(shutdown)


def _metrics_export(base: WorkerContext) -> Loop:
    """Return the loop that exports metrics; they are exported at the worker's end, too."""
    from sea_mq_worker.telemetry.otlp import MetricsExport, described  # noqa: PLC0415

    try:
        export = MetricsExport(base.metrics, described(context=base.settings.context, worker=base.name))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    base.stack.push_async_callback(export.export)
    return export.run


async def _warn_of_differences(base: WorkerContext) -> None:
    """Log each field that differs from the stream definitions; only `streams apply` changes the streams."""
    try:
        differences = await check_topology(base.settings)
    except WorkerError as error:
        base.events.emit("streams_not_compared", text=str(error))
        return
    missing = {EXISTENCE, AWAITED}
    text = "; ".join(str(difference) for difference in differences if difference.field not in missing)
    if text:
        base.events.emit("streams_differ", text=text)


def _status(s: Settings, name: str, metrics: Metrics, readiness: Readiness) -> Status:
    info = {
        "worker": name,
        "context": s.context,
        "version": _VERSION,
        "offers": "all" if s.admin_token_file else "numbers",
        "depth_max": DEPTH_MAX,
    }
    works: dict[Side, object] = {"outbox": s.outbox_enabled, "inbox": s.consumers}
    sides = [side for side in works if works[side]]
    return Status(info, sides=sides, metrics=metrics, reasons=readiness.reasons, warnings=readiness.warnings)


async def _serve_admin(base: WorkerContext, status: Status) -> None:
    """Answer probes from the first moment on."""
    s = base.settings
    admin = AdminServer(
        host=s.admin_host,
        port=s.admin_port,
        reasons=base.readiness.reasons,
        warnings=base.readiness.warnings,
        metrics=base.metrics.render,
        status=status.status,
        token=SecretFile(s.admin_token_file, key="admin_token_file"),
        operator_api=OperatorApi(s),
    )
    try:
        await admin.start()
    except WorkerError as error:
        raise SettingsError(f"SEA_MQ_ADMIN_HOST, SEA_MQ_ADMIN_PORT: {error}") from error
    base.stack.push_async_callback(admin.close)
    host = f"[{s.admin_host}]" if ":" in s.admin_host else s.admin_host
    base.events.emit("admin_listening", text=f"http://{host}:{admin.port}/")


def _own_name() -> str:
    """Name this process so that no other has the same name, also after a restart in a container."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


__all__ = ["RunningWorker", "Settings", "WorkerEndedError", "load_settings", "running_worker"]


class WorkerEndedError(WorkerError):
    """The worker ended by itself, or did not stop in time; its log has the cause."""


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A worker of this process; ``running_worker`` creates it."""

    _context: WorkerContext
    _task: asyncio.Task[ExitCode]

    def problems(self) -> Mapping[str, str]:
        """Return the reasons why the worker cannot work now, by name of the part; empty: it works."""
        if self._task.done():
            return {"worker": "it has ended; its log has the cause"}
        return self._context.readiness.reasons()

    def metrics(self) -> str:
        """Return the worker's metrics in the text format of Prometheus."""
        return self._context.metrics.render().decode()

    async def started(self) -> None:
        """Wait until the worker has started, which needs PostgreSQL and NATS.

        Raises:
            SettingsError: a setting contradicts what a server reports.
            WorkerEndedError: the worker ended before.
        """
        waiting = asyncio.ensure_future(self._context.started.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._context.started.is_set():
            self._task.result()
            raise WorkerEndedError("the worker ended before it had started; its log has the cause")


@asynccontextmanager
async def running_worker(settings: Settings | None = None) -> AsyncIterator[RunningWorker]:
    """Run the worker beside the block, and stop it gracefully at the block's end.

    The block begins at once: an unavailable server does not hold the service up.

    Args:
        settings: None: from ``SEA_MQ_*`` and ``SEA_MQ_CONFIG``, as for the command ``run``.

    Raises:
        SettingsError: a setting is wrong or missing, or contradicts what a server reports.
        WorkerEndedError: at the block's end, the worker had ended by itself or exceeds its grace period.
    """
    needs = ("database_url", "nats_url")
    settings = settings or load_settings(needs=needs)
    check_settings(settings, needs=needs)
    stop = asyncio.Event()
    context: asyncio.Future[WorkerContext] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_worker(settings, stop, host=context.set_result), name="sea_mq_worker")
    task.add_done_callback(_note_error)
    waits: set[asyncio.Future[Any]] = {task, context}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not context.done():
            raise WorkerEndedError(f"the worker ended with exit code {task.result()}")
        yield RunningWorker(context.result(), task)
    finally:
        stop.set()
        await asyncio.wait({task})
    if code := task.result():
        raise WorkerEndedError(f"the worker ended with exit code {code}; its log has the cause")


def _note_error(task: asyncio.Task[ExitCode]) -> None:
    """Retrieve the worker's error, which nobody awaits if the block ends by an error of its own."""
    if not task.cancelled():
        task.exception()

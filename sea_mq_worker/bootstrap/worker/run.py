"""Start the worker: the admin server, then both sides, then the supervisor."""

import asyncio
import importlib.metadata
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from sea_mq_worker.admin.activity import ActivityLog
from sea_mq_worker.admin.auth import TokenAuth
from sea_mq_worker.admin.routes import Routes
from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.admin.status_collector import StatusCollector
from sea_mq_worker.admin.status_records import Counters, WorkerInfo
from sea_mq_worker.application.supervisor import ExitCode, Loop, Supervisor
from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.bootstrap.worker.backlog import Backlog, stopped_early
from sea_mq_worker.bootstrap.worker.context import WorkerContext, with_session
from sea_mq_worker.bootstrap.worker.inbound import inbound_loops
from sea_mq_worker.bootstrap.worker.operator_api import WorkerOperatorApi
from sea_mq_worker.bootstrap.worker.outbound import outbound_loops
from sea_mq_worker.bootstrap.worker.sampling import DEPTH_MAX, consumer_sampling, sampling
from sea_mq_worker.bootstrap.worker.service_manager import report_ready
from sea_mq_worker.bootstrap.worker.shutdown import bounded_stack
from sea_mq_worker.bootstrap.worker.telemetry import metrics_export, start_tracing
from sea_mq_worker.connections.secret_files import SecretFile
from sea_mq_worker.connections.security_warnings import exposures
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.domain.facts import Noticed, Progressed
from sea_mq_worker.domain.topology import AWAITED, EXISTENCE
from sea_mq_worker.operations.broker import check_topology
from sea_mq_worker.settings import Settings, SettingsError
from sea_mq_worker.telemetry.fanout import FanOut
from sea_mq_worker.telemetry.logs import LogObserver, configure
from sea_mq_worker.telemetry.metrics import MetricsObserver

_VERSION = importlib.metadata.version("sea-mq-worker")
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
    metrics, activity = MetricsObserver(), ActivityLog()
    async with bounded_stack() as stack:
        base = WorkerContext(
            settings=settings,
            name=settings.worker_name or _own_name(),
            observer=FanOut([LogObserver(in_text=host is not None), metrics, activity]),
            metrics=metrics,
            stop=stop,
            stack=stack,
        )
        for exposure in exposures(settings):
            base.observer.observe(exposure)
        base.readiness.check("start", lambda: "" if base.started.is_set() else "the worker is starting")
        base.readiness.check("stop", lambda: "the worker is stopping" if stop.is_set() else "")
        status = _status(base, activity)
        if host is not None:
            host(base)
        else:
            if settings.tracing:
                start_tracing(base)
            await _serve_admin(base, status)
        return await _run(base, status, until_empty=until_empty, owns_process=host is None)


async def _run(
    base: WorkerContext, status: StatusCollector, *, until_empty: bool, owns_process: bool
) -> ExitCode:
    try:
        loops, backlog = await cancel_on_stop(base.stop, _start(base, status, until_empty=until_empty))
    except StoppedError:
        return stopped_early(base) if until_empty else ExitCode.DONE
    except ContractError as error:
        base.observer.observe(Noticed(event="contract_broken", text=str(error)))
        return ExitCode.CONTRACT
    base.started.set()
    if owns_process:
        report_ready()
    supervisor = Supervisor(
        name=base.name,
        version=_VERSION,
        loops=loops,
        observer=base.observer,
        grace_seconds=base.settings.grace_seconds,
    )
    code = await supervisor.run(base.stop)
    return await backlog.exit_code(base) if backlog and code is ExitCode.DONE else code


async def _start(
    base: WorkerContext, status: StatusCollector, *, until_empty: bool
) -> tuple[Mapping[str, Loop], Backlog | None]:
    base = await with_session(base)
    backlog = await Backlog.open(base) if until_empty else None
    loops = await _loops(base, status, backlog)
    await _warn_of_differences(base)
    return loops, backlog


async def _loops(base: WorkerContext, status: StatusCollector, backlog: Backlog | None) -> dict[str, Loop]:
    tables, loops = await sampling(base, status)
    if base.settings.otlp_metrics:
        loops["metrics export"] = metrics_export(base)
    if limit := base.settings.broken_seconds_max:
        loops["give up"] = partial(base.readiness.give_up_after, limit)
    if base.settings.outbox_enabled:
        loops |= await outbound_loops(base, stands_by=backlog is None)
    if backlog:
        loops["backlog"] = backlog.run
    if base.settings.consumers:
        connection, consumers, inbound = await inbound_loops(base)
        loops |= inbound | consumer_sampling(base, status, connection, consumers, tables)
    if base.takeover is not None:
        loops["takeover"] = base.takeover.run
    return loops


async def _warn_of_differences(base: WorkerContext) -> None:
    """Log each field that differs from the stream definitions; only `streams apply` changes the streams."""
    try:
        differences = await check_topology(base.settings)
    except WorkerError as error:
        base.observer.observe(Progressed(event="streams_not_compared", text=str(error)))
        return
    missing = {EXISTENCE, AWAITED}
    text = "; ".join(str(difference) for difference in differences if difference.field not in missing)
    if text:
        base.observer.observe(Noticed(event="streams_differ", text=text))


def _status(base: WorkerContext, activity: ActivityLog) -> StatusCollector:
    s = base.settings
    sides = [side for side, works in (("outbox", s.outbox_enabled), ("inbox", s.consumers)) if works]
    return StatusCollector(
        info=WorkerInfo(
            worker=base.name,
            context=s.context,
            version=_VERSION,
            offers="all" if s.admin_token_file else "numbers",
            depth_max=DEPTH_MAX,
        ),
        sides=sides,
        counters=lambda: Counters(totals=base.metrics.totals(), per_second=base.metrics.rates()),
        reasons=base.readiness.reasons,
        warnings=base.readiness.warnings,
        activity=activity,
    )


async def _serve_admin(base: WorkerContext, status: StatusCollector) -> None:
    """Answer probes from the first moment on."""
    s = base.settings
    admin = AdminServer(
        host=s.admin_host,
        port=s.admin_port,
        routes=Routes(
            ready=base.readiness.reasons,
            warnings=base.readiness.warnings,
            metrics=base.metrics.render,
            status=status.status,
            history=status.history,
            access=TokenAuth(SecretFile(s.admin_token_file, key="admin_token_file")),
            operator_api=WorkerOperatorApi(s),
        ),
    )
    try:
        await admin.start()
    except WorkerError as error:
        raise SettingsError(f"SEA_MQ_ADMIN_HOST, SEA_MQ_ADMIN_PORT: {error}") from error
    base.stack.push_async_callback(admin.close)
    host = f"[{s.admin_host}]" if ":" in s.admin_host else s.admin_host
    base.observer.observe(Progressed(event="admin_listening", text=f"http://{host}:{admin.port}/"))


def _own_name() -> str:
    """Name this process so that no other has the same name, also after a restart in a container."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"

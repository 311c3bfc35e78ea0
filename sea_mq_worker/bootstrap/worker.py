"""The worker as a whole: admin server first, then both sides, then the supervisor."""

import asyncio
import importlib.metadata
import os
import secrets
import socket
import sys

import asyncpg

from sea_mq_worker.adapters.http.admin import AdminServer
from sea_mq_worker.adapters.nats.topology import EXISTENCE
from sea_mq_worker.adapters.observability.fanout import FanOut
from sea_mq_worker.adapters.observability.logs import LogObserver, configure
from sea_mq_worker.adapters.observability.metrics import Backlog, MetricsObserver
from sea_mq_worker.adapters.postgres.connection import NO_HINTS, leave_former_primary
from sea_mq_worker.adapters.postgres.migrations import check_version
from sea_mq_worker.adapters.postgres.operations import PostgresOperations
from sea_mq_worker.adapters.postgres.ownership import take_schema
from sea_mq_worker.adapters.postgres.records import Depth
from sea_mq_worker.application.pacing import StoppedError
from sea_mq_worker.application.supervisor import ExitCode, Loop, Supervisor
from sea_mq_worker.application.upkeep import Periodic
from sea_mq_worker.bootstrap.base import Base
from sea_mq_worker.bootstrap.closing import bounded_stack
from sea_mq_worker.bootstrap.connections import open_pool, read_secret, wait_for
from sea_mq_worker.bootstrap.exposure import exposures
from sea_mq_worker.bootstrap.inbound import inbound_loops
from sea_mq_worker.bootstrap.operator import check_topology
from sea_mq_worker.bootstrap.outbound import outbound_loops
from sea_mq_worker.bootstrap.telemetry import metrics_export, start_tracing
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.domain.facts import Noticed, Progressed
from sea_mq_worker.settings import Settings, SettingsError

_SAMPLE_SECONDS = 15.0
_PROBE_MAX_SECONDS = 5.0
_DEPTH_MAX = 100_000


async def run_worker(settings: Settings, stop: asyncio.Event) -> ExitCode:
    """Run until ``stop``; return how the process should end.

    Raises:
        SettingsError: a setting contradicts what a server reports.
    """
    configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    metrics = MetricsObserver()
    async with bounded_stack() as stack:
        base = Base(
            settings=settings,
            name=settings.worker_name or _own_name(),
            observer=FanOut([LogObserver(), metrics]),
            metrics=metrics,
            stop=stop,
            stack=stack,
        )
        if settings.tracing:
            start_tracing(base)
        for exposure in exposures(settings):
            base.observer.observe(exposure)
        started = await _serve_admin(base)
        try:
            loops = await _loops(base)
        except StoppedError:
            return ExitCode.DONE
        except ContractError as error:
            base.observer.observe(Noticed(event="contract_broken", text=str(error)))
            return ExitCode.CONTRACT
        await _tell_differences(base)
        started.set()
        return await Supervisor(
            name=base.name,
            version=importlib.metadata.version("sea-mq-worker"),
            loops=loops,
            observer=base.observer,
            grace_seconds=settings.grace_seconds,
        ).run(stop)


async def _loops(base: Base) -> dict[str, Loop]:
    loops = await _sampling(base)
    if base.settings.otlp_metrics:
        loops["metrics export"] = metrics_export(base)
    if base.settings.outbox_enabled:
        loops |= await outbound_loops(base)
    if base.settings.consumers:
        loops |= await inbound_loops(base)
    return loops


async def _tell_differences(base: Base) -> None:
    """Name, field by field, what differs from the definitions; only `streams apply` changes it."""
    try:
        differences = await check_topology(base.settings)
    except WorkerError as error:
        base.observer.observe(Progressed(event="streams_not_compared", text=str(error)))
        return
    told = "; ".join(str(difference) for difference in differences if difference.field != EXISTENCE)
    if told:
        base.observer.observe(Noticed(event="streams_differ", text=told))


async def _serve_admin(base: Base) -> asyncio.Event:
    """Answer probes from the first moment on; not ready until the returned event is set."""
    started = asyncio.Event()
    base.readiness.check("start", lambda: "" if started.is_set() else "the worker is starting")
    base.readiness.check("stop", lambda: "the worker is stopping" if base.stop.is_set() else "")
    s = base.settings
    admin = AdminServer(
        host=s.admin_host,
        port=s.admin_port,
        ready=base.readiness.reasons,
        metrics=base.metrics.render,
        status=lambda: {"worker": base.name, "context": s.context, **base.metrics.numbers()},
        token=read_secret(s.admin_token_file, key="admin_token_file"),
    )
    try:
        await admin.start()
    except WorkerError as error:
        raise SettingsError(f"SEA_MQ_ADMIN_HOST, SEA_MQ_ADMIN_PORT: {error}") from error
    base.stack.push_async_callback(admin.close)
    base.observer.observe(Progressed(event="admin_listening", text=f"http://{s.admin_host}:{admin.port}/"))
    return started


async def _sampling(base: Base) -> dict[str, Loop]:
    """Check the schema's version, and measure depth now and then."""

    async def connect() -> asyncpg.Pool:
        pool = await open_pool(base.settings, purpose="upkeep", hints=NO_HINTS)
        base.stack.push_async_callback(pool.close)
        await check_version(pool)
        await take_schema(pool, base.settings.context)
        return pool

    pool = await wait_for(connect, what="PostgreSQL", observer=base.observer, stop=base.stop)
    operations = PostgresOperations(pool=pool)

    async def sample() -> None:
        await leave_former_primary(pool)
        base.metrics.set_backlog("outbox", _backlog(await operations.outbox_depth_capped(limit=_DEPTH_MAX)))
        base.metrics.set_backlog("inbox", _backlog(await operations.inbox_depth_capped(limit=_DEPTH_MAX)))
        await check_version(pool)  # a migration may have come that this worker cannot live with

    gate = base.gate("upkeep database", cap_seconds=_PROBE_MAX_SECONDS)
    return {"depth": Periodic(work=sample, store_gate=gate, seconds=_SAMPLE_SECONDS).run}


def _backlog(depth: Depth) -> Backlog:
    return Backlog(depth=depth.waiting, oldest_seconds=depth.waiting_seconds, dead=depth.dead)


def _own_name() -> str:
    """Name this process so that no other has the same name, also after a restart in a container."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"

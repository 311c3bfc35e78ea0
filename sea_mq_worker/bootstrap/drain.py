"""The outbound side for a limited time, for each task of a drain; and queries about the backlog.

It consists of the worker's own parts, with leases, circuit breakers, settlement and reaper. It ends when its
time is over or the backlog is published, after it has settled its claims.
"""

import asyncio
import importlib.metadata
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS, fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.schema.schema_owner import claim_schema
from sea_mq_worker.application.retry_unavailable import call_when_available
from sea_mq_worker.application.supervisor import ExitCode, Loop, Supervisor
from sea_mq_worker.application.waiting import StoppedError, sleep_or_stop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.bootstrap.worker.outbound import outbound_loops
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.connections.startup_retry import connect_with_retry
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.domain.facts import (
    BatchRelayed,
    CircuitClosed,
    CircuitOpened,
    EventDied,
    Fact,
    Noticed,
)
from sea_mq_worker.operations.database import tables_pool
from sea_mq_worker.settings import Settings
from sea_mq_worker.telemetry.fanout import FanOut
from sea_mq_worker.telemetry.logs import LogObserver, configure
from sea_mq_worker.telemetry.metrics import MetricsObserver

SOON_SECONDS = 5.0
"""A failed event that is due again within this time is waited for."""

_COUNT_SECONDS = 600.0
"""Time limit of the count, which takes longer than the worker's statements for a hundred million events."""
_LOOK_SECONDS = 0.5
_LOOK_SHARE = 20.0
_POLL_SECONDS = 0.5
_PROBE_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBacklog:
    """Events that were due when a drain began and are still to be published.

    Attributes:
        at: time of the count, by the database's clock.
        due: events that are due now: claimed, to be claimed, or waiting for an earlier event of their key.
        postponed: failed events that wait for their retry.
    """

    at: datetime
    due: int
    postponed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainShare:
    """Result of one relay; ``trouble`` is the reason why it waited at its end, or empty."""

    published: int = 0
    dead: int = 0
    trouble: str = ""


async def count_backlog(settings: Settings, *, since: datetime | None) -> DrainBacklog:
    """Count the unpublished events of the backlog at a time; None: now.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: the schema is not of the worker's version.
    """
    patient = settings.model_copy(update={"database_timeout_seconds": _COUNT_SECONDS})
    async with tables_pool(patient, purpose="drain") as pool:
        await claim_schema(pool, settings.context)
        return DrainBacklog(**(await fetch(pool, _queries()["backlog"], since))[0])


async def is_backlog_left(settings: Settings, *, since: datetime | None) -> bool:
    """Return whether a relay can publish events of the backlog now or within 5 seconds."""
    pool = await open_pool(settings, purpose="drain", hints=WORKER_HINTS)
    try:
        return await _is_left(pool, settings, since)
    finally:
        await pool.close()


async def relay_for(settings: Settings, *, seconds: float, since: datetime | None) -> DrainShare:
    """Publish due events until the time is over, or all events of the backlog are settled.

    Raises:
        ContractError: a server or setting does not meet the worker's requirements.
        WorkerError: the relay failed for another reason.
    """
    configure(level=_level(settings), format=settings.log_format, stream=sys.stderr)
    stop = asyncio.Event()
    tally = _RelayTally()
    timer = asyncio.get_running_loop().call_later(seconds, stop.set)
    async with AsyncExitStack() as stack:
        base = WorkerContext(
            settings=_polling(settings),
            name=_own_name(),  # not the setting's: parallel tasks would share leases
            observer=FanOut([LogObserver(), tally]),
            metrics=MetricsObserver(),
            stop=stop,
            stack=stack,
        )
        try:
            loops = await _end(base, since) | await outbound_loops(base, stands_by=False)
        except StoppedError:
            return tally.share()
        code = await Supervisor(
            name=base.name,
            version=importlib.metadata.version("sea-mq-worker"),
            loops=loops,
            observer=base.observer,
            grace_seconds=settings.grace_seconds,
        ).run(stop)
        timer.cancel()
    if code is ExitCode.CONTRACT:
        raise ContractError(tally.trouble)
    if code is ExitCode.GAVE_UP:
        raise WorkerError(tally.trouble)
    return tally.share()


async def _end(base: WorkerContext, since: datetime | None) -> dict[str, Loop]:
    """Return the loop whose end ends the relay: it checks periodically whether events are left."""
    pool = await connect_with_retry(
        lambda: open_pool(base.settings, purpose="drain"),
        what="PostgreSQL",
        observer=base.observer,
        stop=base.stop,
    )
    base.stack.push_async_callback(pool.close)
    breaker = base.breaker("drain database", cap_seconds=_PROBE_MAX_SECONDS)

    async def check(stop: asyncio.Event) -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                if not await call_when_available(
                    lambda: _is_left(pool, base.settings, since), breaker=breaker, stop=stop
                ):
                    return
            except StoppedError:
                return
            took = time.monotonic() - began
            await sleep_or_stop(stop, seconds=max(_LOOK_SECONDS, _LOOK_SHARE * took))

    return {"end of backlog": check}


async def _is_left(pool: asyncpg.Pool, settings: Settings, since: datetime | None) -> bool:
    hold = settings.outbox_dead_key == "hold"
    rows = await fetch(pool, _queries()["is_left"], since, SOON_SECONDS, hold)
    return bool(rows[0]["is_left"])


def _queries() -> Mapping[str, str]:
    return load_queries("pipeline_drain", "backlog", "is_left")


def _polling(settings: Settings) -> Settings:
    """Poll instead of listening: with a backlog, hardly any claim waits for a producer."""
    poll_seconds = min(settings.outbox_poll_seconds, _POLL_SECONDS)
    return settings.model_copy(
        update={"outbox_notify": False, "outbox_poll_seconds": poll_seconds, "tracing": False}
    )


def _level(settings: Settings) -> str:
    """Log no starts and stops of the many relays."""
    return "warning" if settings.log_level == "info" else settings.log_level


def _own_name() -> str:
    return f"drain-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


class _RelayTally:
    """Counts the results of one relay."""

    def __init__(self) -> None:
        self.trouble = ""
        self._published = 0
        self._dead = 0

    def observe(self, fact: Fact) -> None:
        match fact:
            case BatchRelayed(published=published) if published:
                self._published += published
                self.trouble = ""
            case EventDied():
                self._dead += 1
            case CircuitOpened(circuit=breaker, reason=reason):
                self.trouble = f"{breaker}: {reason}"
            case CircuitClosed():
                self.trouble = ""
            case Noticed(text=text):
                self.trouble = text
            case _:
                pass

    def share(self) -> DrainShare:
        return DrainShare(published=self._published, dead=self._dead, trouble=self.trouble)

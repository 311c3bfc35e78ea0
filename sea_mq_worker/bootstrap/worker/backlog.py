"""The end of a worker that publishes a backlog: the events that were due when it started."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.supervisor import ExitCode
from sea_mq_worker.application.waiting import StoppedError, sleep_or_stop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.operations.database import tables_pool
from sea_mq_worker.settings import Settings

_SQL = load_queries("backlog")

_SOON_SECONDS = 5.0
"""A failed event that is due again within this time is waited for."""
_COUNT_SECONDS = 600.0
"""Time limit of the count, which takes longer than the worker's statements for a hundred million events."""
_POLL_SECONDS = 0.5
_POLL_SHARE = 20.0
_PROBE_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogCounts:
    """Unpublished events of a backlog.

    Attributes:
        at: time of the count, by the database's clock.
        due: events that are due now: claimed, to be claimed, or waiting for an earlier event of their key.
        postponed: failed events that wait for their retry.
        dead: events that are DEAD.
    """

    at: datetime
    due: int
    postponed: int
    dead: int

    @property
    def left(self) -> int:
        return self.due + self.postponed + self.dead

    def __str__(self) -> str:
        return (
            f"{self.due:,} due or behind an earlier event of their key, {self.postponed:,} waiting for their "
            f"retry, {self.dead:,} DEAD"
        )


async def count_backlog(settings: Settings, *, since: datetime | None = None) -> BacklogCounts:
    """Count the unpublished events of the backlog at a time; None: now.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: the schema has another version.
    """
    patient = settings.model_copy(update={"database_timeout_seconds": _COUNT_SECONDS})
    async with tables_pool(patient, purpose="backlog") as pool:
        return BacklogCounts(**(await fetch(pool, _SQL["counts"], since))[0])


@dataclass(slots=True, kw_only=True)
class Backlog:
    """The backlog of a worker; ``is_done``: none of its events can be published now."""

    pool: asyncpg.Pool
    breaker: CircuitBreaker
    since: datetime
    hold_dead_keys: bool
    is_done: bool = False

    @classmethod
    async def open(cls, base: WorkerContext) -> Self:
        """Begin with the events that are due now."""
        pool = await base.pool("backlog")
        return cls(
            pool=pool,
            breaker=base.breaker("backlog", cap_seconds=_PROBE_MAX_SECONDS),
            since=(await fetch(pool, "SELECT now() AS at"))[0]["at"],
            hold_dead_keys=base.settings.outbox_dead_key == "hold",
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Return when no event of the backlog can be published within 5 seconds."""
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                began = time.monotonic()
                if not await call_when_available(self._is_deliverable, breaker=self.breaker, stop=stop):
                    self.is_done = True
                    return
                took = time.monotonic() - began
                await sleep_or_stop(stop, seconds=max(_POLL_SECONDS, _POLL_SHARE * took))

    async def exit_code(self, base: WorkerContext) -> ExitCode:
        """Return the code with which a worker exits whose loops have ended; log the events that are left.

        Raises:
            StoreUnavailableError: PostgreSQL cannot be reached.
        """
        if not self.is_done:
            return stopped_early(base)
        counts = await count_backlog(base.settings, since=self.since)
        return _left(base, f"left: {counts}: run `outbox summary`") if counts.left else ExitCode.DONE

    async def _is_deliverable(self) -> bool:
        rows = await fetch(self.pool, _SQL["is_deliverable"], self.since, _SOON_SECONDS, self.hold_dead_keys)
        return bool(rows[0]["is_deliverable"])


def stopped_early(base: WorkerContext) -> ExitCode:
    """Return the code of a worker that was stopped with events of its backlog unpublished."""
    return _left(base, "the worker was stopped before all events were published: run it again")


def _left(base: WorkerContext, text: str) -> ExitCode:
    base.observer.observe(Noticed(event="backlog_left", text=text))
    return ExitCode.FAILED

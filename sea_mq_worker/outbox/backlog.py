"""The backlog: the events that were due when a worker started which publishes them and ends.

Such a worker (``run --until-empty``) stands beside running ones. It is done when none of these events can be
published any more: each is published, DEAD, waits for a retry, or waits for an earlier event of its key.
"""

import asyncio
import contextlib
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import asyncpg

from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.runtime.waiting import StoppedError, sleep_or_stop

_SQL = load_queries("backlog")
_SOON_SECONDS = 5.0
"""A failed event that is due again within this time is waited for."""
_POLL_SECONDS = 0.5
_POLL_SHARE = 20.0


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


async def count_backlog(pool: asyncpg.Pool, *, since: datetime | None = None) -> BacklogCounts:
    """Count the unpublished events of the backlog at a time (None: now), by a pool with operators' hints."""
    [counts] = await fetch_with_long_timeout(pool, _SQL["counts"], since)
    return BacklogCounts(**counts)


@dataclass(slots=True, kw_only=True)
class Backlog:
    """The backlog of a worker; ``is_done``: none of its events can be published now."""

    pool: asyncpg.Pool
    breaker: CircuitBreaker
    events: Events
    since: datetime
    hold_dead_keys: bool
    is_done: bool = False

    @classmethod
    async def open(
        cls, pool: asyncpg.Pool, *, breaker: CircuitBreaker, events: Events, hold_dead_keys: bool
    ) -> Self:
        """Begin with the events that are due now."""
        [row] = await fetch(pool, "SELECT now() AS at")
        return cls(pool=pool, breaker=breaker, events=events, since=row["at"], hold_dead_keys=hold_dead_keys)

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

    async def exit_code(self, tables: AbstractAsyncContextManager[asyncpg.Pool]) -> ExitCode:
        """Return the code with which a worker exits whose loops have ended; report the events that are left.

        ``tables``: a pool for ``count_backlog``, which is opened only if it is needed.
        """
        if not self.is_done:
            return stopped_early(self.events)
        async with tables as pool:
            counts = await count_backlog(pool, since=self.since)
        if not counts.left:
            return ExitCode.DONE
        return _left(self.events, f"left: {counts}: run `outbox summary`")

    async def _is_deliverable(self) -> bool:
        [row] = await fetch(self.pool, _SQL["is_deliverable"], self.since, _SOON_SECONDS, self.hold_dead_keys)
        return bool(row["is_deliverable"])


def stopped_early(events: Events) -> ExitCode:
    """Return the code of a worker that was stopped with events of its backlog unpublished."""
    return _left(events, "the worker was stopped before all events were published: run it again")


def _left(events: Events, text: str) -> ExitCode:
    events.emit("backlog_left", text=text)
    return ExitCode.FAILED

"""Periodic tasks of the outbox: end expired leases, create partitions ahead."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sea_mq_worker.errors import ContractError, RowsRefusedError
from sea_mq_worker.ports import Events, OutboxRepository, Partitions
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.row_isolation import report_refused
from sea_mq_worker.runtime.waiting import StoppedError, sleep_or_stop

_SET_BACK = "the database's clock was set back since they were written; look at its time server"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """Does ``work`` at once and then every ``seconds``; waits at the circuit while the database is away."""

    work: Callable[[], Awaitable[None]]
    store_breaker: CircuitBreaker
    seconds: float

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops."""
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await call_when_available(self.work, breaker=self.store_breaker, stop=stop)
                await sleep_or_stop(stop, seconds=self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReaper:
    """Ends the leases of workers that died or stalled, and waits that a clock set back made too long."""

    outbox: OutboxRepository
    events: Events

    async def reap(self) -> None:
        """End the leases that have expired."""
        try:
            reaped = await self.outbox.reap()
        except RowsRefusedError as error:
            report_refused(self.events, "events whose leases ran out", error)
            return
        if reaped.leases:
            self.events.emit("leases_reaped", count=reaped.leases)
        if reaped.brought_forward:
            text = f"{reaped.brought_forward} events with a due time in the future are due now: " + _SET_BACK
            self.events.emit("clock_set_back", text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMaker:
    """Creates the partitions of the next days, where the outbox is partitioned by day.

    A worker without the right to create partitions publishes anyway: the default partition takes the events
    of a day without one.
    """

    partitions: Partitions
    events: Events
    days_ahead: int

    async def make(self) -> None:
        """Create the missing partitions."""
        try:
            made = await self.partitions.make(days_ahead=self.days_ahead)
        except ContractError as error:
            self.events.emit("partitions_not_made", text=str(error))
            return
        if made:
            self.events.emit("partitions_made", text=", ".join(made))

"""Periodic checks: does the stream still have published events, and has each consumer got its messages?"""

import asyncpg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.operators.checks import acknowledged
from sea_mq_worker.operators.streams import RECONCILE, lost_since
from sea_mq_worker.outbox.maintenance import PeriodicTask
from sea_mq_worker.runtime.breaker import CircuitBreaker
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.wiring.context import WorkerContext

_LOST_CHECK_SECONDS = 30.0


def lost_event_check(
    base: WorkerContext, pool: asyncpg.Pool, connection: NatsConnection, store_breaker: CircuitBreaker
) -> Loop:
    """Return a loop that compares rows with the stream, at the start and then periodically."""
    reported = ""

    async def check() -> None:
        nonlocal reported
        stream = base.settings.stream
        rows = await acknowledged(pool, stream)
        try:
            why = await lost_since(
                connection, stream, greatest=rows.greatest, shared=rows.shared, some=rows.some
            )
        except (BrokerUnavailableError, ContractError):
            return  # the publisher reports that
        base.metrics.set_events_lost(bool(why))
        if why and not reported:
            loss = f"stream {stream} has lost events whose rows are PUBLISHED: {why}"
            text = f"{loss}; send them again: `{RECONCILE}`"
            base.events.emit("events_lost", text=text)
        reported = why

    return PeriodicTask(work=check, store_breaker=store_breaker, seconds=_LOST_CHECK_SECONDS).run

"""Check periodically that the stream still has the events whose rows are PUBLISHED, and report a loss."""

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage.stream_inspection import RECONCILE, lost_since
from sea_mq_worker.adapters.postgres.checks import acknowledged
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.domain.facts import Noticed

CHECK_SECONDS = 30.0


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
            base.observer.observe(Noticed(event="events_lost", text=text))
        reported = why

    return PeriodicTask(work=check, store_breaker=store_breaker, seconds=CHECK_SECONDS).run

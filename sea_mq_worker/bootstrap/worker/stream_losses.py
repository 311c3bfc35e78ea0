"""Periodic checks: does the stream still have published events, and has each consumer got its messages?"""

from dataclasses import asdict

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage.stream_inspection import RECONCILE, consumer_standing, lost_since
from sea_mq_worker.adapters.postgres.checks import PostgresStandings, acknowledged
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.domain.facts import MessagesMissed, Noticed
from sea_mq_worker.domain.missed_messages import find_missed

_LOST_CHECK_SECONDS = 30.0
_MISSED_CHECK_SECONDS = 60.0


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

    return PeriodicTask(work=check, store_breaker=store_breaker, seconds=_LOST_CHECK_SECONDS).run


async def missed_message_loop(
    base: WorkerContext, connection: NatsConnection, pool: asyncpg.Pool, breaker: CircuitBreaker
) -> Loop:
    """Check once before the first fetch, which moves the consumer; return the loop of further checks."""
    checks = _Checks(base, connection, PostgresStandings(pool=pool))
    await base.connect(checks.run, "PostgreSQL")
    return PeriodicTask(work=checks.run, store_breaker=breaker, seconds=_MISSED_CHECK_SECONDS).run


class _Checks:
    def __init__(self, base: WorkerContext, connection: NatsConnection, standings: PostgresStandings) -> None:
        self._base = base
        self._connection = connection
        self._standings = standings
        self._refused = ""

    async def run(self) -> None:
        """Check each consumer; if the broker is unavailable, wait for the next check."""
        for consumer in self._base.settings.consumers:
            try:
                await self._check(consumer.stream, consumer.durable)
            except BrokerUnavailableError:
                return

    async def _check(self, stream: str, durable: str) -> None:
        last = await self._standings.last(stream, durable)
        try:
            now = await consumer_standing(self._connection, stream, durable)
        except ContractError as error:
            self._report_refused(str(error))
            return
        found = find_missed(last, now)
        if now == last or not await self._standings.replace(stream, durable, last=last, now=now, found=found):
            return
        if found:
            fact = MessagesMissed(consumer=durable, stream=stream, **asdict(found))
            self._base.observer.observe(fact)

    def _report_refused(self, text: str) -> None:
        if text != self._refused:
            self._refused = text
            self._base.observer.observe(Noticed(event="missed_messages_unknown", text=text))

"""Refuse two handlers on one inbox before any message is fetched."""

import contextlib
import hashlib
from collections.abc import Sequence
from urllib.parse import urlsplit

import asyncpg

from sea_mq_worker.adapters.nats.consume.consumer import NatsJetStreamConsumer
from sea_mq_worker.adapters.postgres.checks import PostgresHandledDurables
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.domain.handler_conflicts import HandledDurable, conflicts

_EVERY_SECONDS = 60.0
_DIGEST_CHARS = 8


async def share_inbox(
    base: WorkerContext,
    pool: asyncpg.Pool,
    consumers: Sequence[NatsJetStreamConsumer],
    breaker: CircuitBreaker,
) -> Loop:
    """Refuse to share the inbox with another handler's worker; return the loop that records the consumers.

    Raises:
        ContractError: another handler's worker consumes some of the same subjects by another durable.
    """
    handler = handler_name(base.settings.handler_url)
    own = [
        HandledDurable(stream=one.stream, durable=one.name, handler=handler, subjects=one.subjects)
        for one in consumers
    ]
    durables = PostgresHandledDurables(pool=pool)

    async def begin() -> None:
        for mine, theirs in conflicts(own, await durables.others(handler)):
            raise ContractError(_conflict(mine, theirs, base.settings.database_schema))
        await durables.record(own)

    async def remove() -> None:
        with contextlib.suppress(WorkerError):
            await durables.remove(own)

    await base.connect(begin, "PostgreSQL")
    base.stack.push_async_callback(remove)
    return PeriodicTask(work=lambda: durables.record(own), store_breaker=breaker, seconds=_EVERY_SECONDS).run


def handler_name(url: str) -> str:
    """Name a handler without possible secrets: a hash stands for its path and query."""
    parts = urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{parts.scheme}://{parts.netloc} ({digest})"


def _conflict(mine: HandledDurable, theirs: HandledDurable, schema: str) -> str:
    return (
        f"consumers {mine.durable} and {theirs.durable} of stream {mine.stream} take some of the same"
        f" subjects for two handlers, {mine.handler} and {theirs.handler}. With the tables in schema"
        f" {schema} each message would reach only one of them. Give each handler its own schema"
        " (SEA_MQ_DATABASE_SCHEMA). If this worker replaces the other, stop the other first"
    )

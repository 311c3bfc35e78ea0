"""One inbox, one handler: who consumes the same for another handler is found before anything is fetched."""

import contextlib
import hashlib
from collections.abc import Sequence
from urllib.parse import urlsplit

import asyncpg

from sea_mq_worker.adapters.nats.consume.consumer import NatsJetStreamConsumer
from sea_mq_worker.adapters.postgres.checks import PostgresConsumptions
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.consumption import Consumption, clashes
from sea_mq_worker.domain.errors import ContractError, WorkerError

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
        Consumption(stream=one.stream, durable=one.name, handler=handler, subjects=one.subjects)
        for one in consumers
    ]
    consumptions = PostgresConsumptions(pool=pool)

    async def begin() -> None:
        for mine, theirs in clashes(own, await consumptions.others(handler)):
            raise ContractError(_clash(mine, theirs, base.settings.database_schema))
        await consumptions.say(own)

    async def leave() -> None:
        with contextlib.suppress(WorkerError):
            await consumptions.leave(own)

    await base.connect(begin, "PostgreSQL")
    base.stack.push_async_callback(leave)
    return PeriodicTask(work=lambda: consumptions.say(own), store_breaker=breaker, seconds=_EVERY_SECONDS).run


def handler_name(url: str) -> str:
    """Name a handler without possible secrets: a hash stands for its path and query."""
    parts = urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{parts.scheme}://{parts.netloc} ({digest})"


def _clash(mine: Consumption, theirs: Consumption, schema: str) -> str:
    return (
        f"consumers {mine.durable} and {theirs.durable} of stream {mine.stream} take some of the same"
        f" subjects for two handlers, {mine.handler} and {theirs.handler}. With the tables in schema"
        f" {schema} each message would reach only one of them. Give each handler its own schema"
        " (SEA_MQ_DATABASE_SCHEMA). If this worker replaces the other, stop the other first"
    )

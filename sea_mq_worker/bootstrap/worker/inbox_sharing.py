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


class InboxSharing:
    """Records the durables of this worker, as far as they exist, for the workers of other handlers."""

    def __init__(
        self, base: WorkerContext, pool: asyncpg.Pool, consumers: Sequence[NatsJetStreamConsumer]
    ) -> None:
        self._base = base
        self._durables = PostgresHandledDurables(pool=pool)
        self._consumers = consumers
        self._handler = handler_name(base.settings.handler_url)

    async def start(self) -> None:
        """Begin, and remove the records at the end; raises as ``begin``."""
        await self._base.connect(self.begin, "PostgreSQL")
        self._base.stack.push_async_callback(self._remove)

    async def begin(self) -> None:
        """Record the durables.

        Raises:
            ContractError: another handler's worker consumes some of the same subjects by another durable.
        """
        for mine, theirs in conflicts(self._own, await self._durables.others(self._handler)):
            raise ContractError(_conflict(mine, theirs, self._base.settings.database_schema))
        await self._record()

    def loop(self, breaker: CircuitBreaker) -> Loop:
        """Return the loop that keeps the records."""
        return PeriodicTask(work=self._record, store_breaker=breaker, seconds=_EVERY_SECONDS).run

    @property
    def _own(self) -> list[HandledDurable]:
        return [
            HandledDurable(stream=one.stream, durable=one.name, handler=self._handler, subjects=one.subjects)
            for one in self._consumers
            if one.is_known
        ]

    async def _record(self) -> None:
        await self._durables.record(self._own)

    async def _remove(self) -> None:
        with contextlib.suppress(WorkerError):
            await self._durables.remove(self._own)


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

"""Refuses two handlers on one inbox, before any message is fetched.

With one inbox, each message reaches only one of two handlers. So each worker records the durables that it
consumes, with a name of its handler, and compares them with the records of other workers.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

_SQL = load_queries("checks")
_ONE, _REST = "*", ">"
_DIGEST_CHARS = 8
_SEEN_SECONDS = 150.0
"""A worker that has not repeated its record for this time has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledDurable:
    """A durable and the handler that gets its messages; ``subjects`` are its filters, wildcards included."""

    stream: str
    durable: str
    handler: str
    subjects: tuple[str, ...]


def conflicts(
    own: Sequence[HandledDurable], others: Sequence[HandledDurable]
) -> Iterator[tuple[HandledDurable, HandledDurable]]:
    """Find subjects that are consumed twice, by different durables for different handlers.

    A durable that this worker consumes too is no conflict: its handler is being changed.
    """
    durables = {(one.stream, one.durable) for one in own}
    for one in own:
        for other in others:
            if other.handler == one.handler or (other.stream, other.durable) in durables:
                continue
            if one.stream == other.stream and any(
                overlap(mine, theirs) for mine in one.subjects for theirs in other.subjects
            ):
                yield one, other


def overlap(one: str, other: str) -> bool:
    """Return whether some subject matches both patterns: ``*`` is one token, a last ``>`` one or more."""
    ours, theirs = one.split("."), other.split(".")
    for place in range(max(len(ours), len(theirs))):
        if place >= len(ours) or place >= len(theirs):
            return False
        pair = {ours[place], theirs[place]}
        if _REST in pair:
            return True
        if len(pair) > 1 and _ONE not in pair:
            return False
    return True


def handler_name(url: str) -> str:
    """Name a handler without possible secrets: a hash stands for its path and query."""
    parts = urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{parts.scheme}://{parts.netloc} ({digest})"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSharing:
    """The records of one worker's durables; call ``record`` at least each minute.

    Attributes:
        handler: see ``handler_name``.
        schema: of the tables, for the text of a refusal.
    """

    pool: asyncpg.Pool
    consumers: Sequence[NatsJetStreamConsumer]
    handler: str
    schema: str

    async def begin(self) -> None:
        """Record the durables; raise ContractError if another handler gets some of the same subjects."""
        rows = await fetch(self.pool, _SQL["others"], self.handler, _SEEN_SECONDS)
        others = [HandledDurable(**dict(row) | {"subjects": tuple(row["subjects"])}) for row in rows]
        for mine, theirs in conflicts(self._own(), others):
            raise ContractError(
                f"consumers {mine.durable} and {theirs.durable} of stream {mine.stream} take some of the same"
                f" subjects for two handlers, {mine.handler} and {theirs.handler}. With the tables in schema"
                f" {self.schema} each message would reach only one of them. Give each handler its own schema"
                " (SEA_MQ_DATABASE_SCHEMA). If this worker replaces the other, stop the other first"
            )
        await self.record()

    async def record(self) -> None:
        """Repeat the records of the durables that exist."""
        for one in self._own():
            values = one.stream, one.durable, one.handler, list(one.subjects)
            await fetch(self.pool, _SQL["record"], *values)

    async def end(self) -> None:
        """Remove the records; another worker that consumes the same durables soon writes them again."""
        consumed = [(one.stream, one.durable, one.handler) for one in self._own()]
        if consumed:
            with contextlib.suppress(WorkerError):
                await fetch(self.pool, _SQL["remove"], *zip(*consumed, strict=True))

    def _own(self) -> list[HandledDurable]:
        return [
            HandledDurable(stream=one.stream, durable=one.name, handler=self.handler, subjects=one.subjects)
            for one in self.consumers
            if one.is_known
        ]

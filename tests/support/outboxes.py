"""The two worlds of the outbox contract: the in-memory fake and PostgreSQL."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import asyncpg

from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox.event import Claim, Died, Postponed, Published, Released
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.ports import OutboxRepository
from sea_mq_worker.postgres.partitions import PostgresPartitions
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxTable

SHORT_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event's row in the store."""

    state: str
    attempts: int
    failures: int
    error: str | None
    claimed: bool
    published: bool
    stream: str
    stream_seq: int


_LATER = """
UPDATE outbox_events
   SET occurred_at = occurred_at + $1, created_at = created_at + $1, available_at = available_at + $1,
       claimed_at = claimed_at + $1, first_attempt_at = first_attempt_at + $1
"""
OPTIONS = {"lease_seconds": 60.0, "ordered": False, "hold_dead_keys": False, "failures_max": 5}


class MemoryWorld:
    def __init__(self) -> None:
        self._now = 1000.0
        self._table = OutboxTable(lambda: self._now)

    async def add(self, *, key: str | None = None, **given: Any) -> str:
        event_id = str(uuid.uuid4())
        self._table.add(event_id, ordering_key=key, **given)
        return event_id

    def relay(self, worker: str = "w1", **options: Any) -> OutboxRepository:
        options.pop("look_max", None)  # a look of the fake is at all of it
        return InMemoryOutbox(table=self._table, worker=worker, random=lambda: 0.5, **(OPTIONS | options))

    async def row(self, event_id: str) -> Row:
        row = self._table.rows[event_id]
        return Row(
            state=row.state,
            attempts=row.attempts,
            failures=row.failures,
            error=row.error,
            claimed=row.claimed_at is not None,
            published=row.published_at is not None,
            stream=row.stream,
            stream_seq=row.stream_seq,
        )

    async def replay(self, event_id: str) -> None:
        self._table.replay(event_id)

    async def make_due(self, event_id: str) -> None:
        self._table.rows[event_id].available_at = self._now

    @asynccontextmanager
    async def session_held(self, session: str) -> AsyncIterator[None]:
        """Let a worker's session live for a block."""
        self._table.held_sessions.add(session)
        yield
        self._table.held_sessions.remove(session)

    async def pass_time(self, seconds: float) -> None:
        self._now += seconds

    async def set_clock_back(self, seconds: float) -> None:
        self._now -= seconds


class PostgresWorld:
    def __init__(
        self, pool: asyncpg.Pool, *, new_id: Callable[[], uuid.UUID] = uuid.uuid4, **options: Any
    ) -> None:
        """``options``: of each relay."""
        self._pool = pool
        self._new_id = new_id
        self._options = OPTIONS | options

    async def add(
        self,
        *,
        key: str | None = None,
        delay_seconds: float = 0.0,
        payload: bytes = b"{}",
        headers: str | None = None,
        metadata: str | None = None,
    ) -> str:
        event_id = str(self._new_id())
        await self._pool.execute(
            "INSERT INTO outbox_events"
            " (id, aggregate_type, aggregate_id, event_type, payload, ordering_key, headers, metadata,"
            " available_at, occurred_at)"
            " SELECT $1, 'order', 'o-1', 'order.created', $2, $3, $5, $6, due.at, least(now(), due.at)"
            " FROM (SELECT now() + $4 * interval '1 second' AS at) due",
            event_id, payload.decode(), key, delay_seconds, headers, metadata,
        )  # fmt: skip
        return event_id

    def relay(self, worker: str = "w1", **options: Any) -> OutboxRepository:
        return PostgresOutboxAdapter(pool=self._pool, worker=worker, **(self._options | options))

    def partitions(self) -> PostgresPartitions:
        return PostgresPartitions(pool=self._pool)

    async def row(self, event_id: str) -> Row:
        row = await self._pool.fetchrow("SELECT * FROM outbox_events WHERE id = $1", event_id)
        return Row(
            state=row["state"],
            attempts=row["publish_attempts"],
            failures=row["failures"],
            error=row["publish_error"],
            claimed=row["claimed_at"] is not None and row["claimed_by"] is not None,
            published=row["published_at"] is not None,
            stream=row["stream"] or "",
            stream_seq=row["stream_seq"] or 0,
        )

    async def replay(self, event_id: str) -> None:
        await self._pool.execute(
            "UPDATE outbox_events SET state = 'PENDING', published_at = NULL, publish_attempts = 0,"
            " failures = 0, publish_error = NULL, first_attempt_at = NULL, available_at = now()"
            " WHERE id = $1",
            event_id,
        )

    async def make_due(self, event_id: str) -> None:
        await self._pool.execute("UPDATE outbox_events SET available_at = now() WHERE id = $1", event_id)

    @asynccontextmanager
    async def session_held(self, session: str) -> AsyncIterator[None]:
        async with lock_held(self._pool, session):
            yield

    async def pass_time(self, seconds: float) -> None:
        await self._pool.execute("SELECT pg_sleep($1)", seconds)

    async def set_clock_back(self, seconds: float) -> None:
        """Make every time of every row that much later."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(_LATER, timedelta(seconds=seconds))


World: TypeAlias = MemoryWorld | PostgresWorld


@asynccontextmanager
async def lock_held(pool: asyncpg.Pool, session: str) -> AsyncIterator[None]:
    """Hold the lock of a worker's session as one of its connections does."""
    key = int.from_bytes(bytes.fromhex(session), signed=True)
    async with pool.acquire() as connection:
        await connection.execute("SELECT pg_advisory_lock_shared(7184, $1)", key)
        try:
            yield
        finally:
            await connection.execute("SELECT pg_advisory_unlock_all()")


def ids(claim: Claim) -> list[str]:
    return [event.id for event in claim.events]


def published(claim: Claim) -> list[Published]:
    return [Published(event, Stored("ORDERS", seq)) for seq, event in enumerate(claim.events, start=7)]


def postponed(claim: Claim, *, delay_seconds: float = 0.0, failed: bool = True) -> list[Postponed]:
    return [Postponed(event, "no answer", delay_seconds, failed) for event in claim.events]


def died(claim: Claim, error: str = "too large") -> list[Died]:
    return [Died(event, error) for event in claim.events]


def released(claim: Claim) -> list[Released]:
    return [Released(event) for event in claim.events]

"""Inboxes in memory and in PostgreSQL as a test sees them, and messages for them."""

import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg
import pytest

from sea_mq_worker.inbox.message import InboxMessage, Lease, Receipt
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.ports import InboxRepository
from sea_mq_worker.testing.inbox import InboxRow, InboxTable, InMemoryInbox
from tests.support.outboxes import lock_held
from tests.support.rows import opened
from tests.support.servers import Database

LEASE = 60.0
SUBJECT = "vibespro.event.vibe_created.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message's row in the store."""

    attempts: int
    last_error: str | None
    processed: bool
    leased: bool
    reason: str | None
    dead_lettered: bool
    consumer: str


class MemoryWorld:
    def __init__(self) -> None:
        self._now = 1000.0
        self._table = InboxTable(lambda: self._now)

    def inbox(self, worker: str = "w1", session: str = "") -> InboxRepository:
        return InMemoryInbox(table=self._table, worker=worker, session=session)

    @asynccontextmanager
    async def session_held(self, session: str) -> AsyncIterator[None]:
        """Let a worker's session live for a block."""
        self._table.held_sessions.add(session)
        yield
        self._table.held_sessions.remove(session)

    async def row(self, message_id: str) -> Row:
        row = self._table.rows[message_id]
        return Row(
            attempts=row.attempts,
            last_error=row.last_error,
            processed=row.processed_at is not None,
            leased=row.locked_by is not None,
            reason=row.dead_letter_reason,
            dead_lettered=row.dead_lettered_at is not None,
            consumer=row.entry.consumer,
        )

    async def write_by_hand(self, message_id: str) -> None:
        """Insert a row with SDS-047's required columns alone."""
        self._table.rows[message_id] = InboxRow(
            entry=entry(message_id), received_at=self._now, content_hash=None
        )

    async def lose(self, message_id: str) -> None:
        """Lose a row, as a failover to a standby does that lacks the last commits."""
        del self._table.rows[message_id]

    async def pass_time(self, seconds: float) -> None:
        self._now += seconds


class PostgresWorld:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool

    def inbox(self, worker: str = "w1", session: str = "") -> InboxRepository:
        return PostgresInboxAdapter(pool=self.pool, worker=worker, session=session)

    @asynccontextmanager
    async def session_held(self, session: str) -> AsyncIterator[None]:
        async with lock_held(self.pool, session):
            yield

    async def row(self, message_id: str) -> Row:
        row = await self.pool.fetchrow("SELECT * FROM inbox_messages WHERE message_id = $1", message_id)
        assert (row["locked_by"] is None) == (row["locked_until"] is None)
        return Row(
            attempts=row["attempts"],
            last_error=row["last_error"],
            processed=row["processed_at"] is not None,
            leased=row["locked_by"] is not None,
            reason=row["dead_letter_reason"],
            dead_lettered=row["dead_lettered_at"] is not None,
            consumer=row["consumer"],
        )

    async def write_by_hand(self, message_id: str) -> None:
        await self.pool.execute(
            "INSERT INTO inbox_messages (message_id, subject) VALUES ($1, $2)", message_id, SUBJECT
        )

    async def lose(self, message_id: str) -> None:
        await self.pool.execute("DELETE FROM inbox_messages WHERE message_id = $1", message_id)

    async def pass_time(self, seconds: float) -> None:
        """Move every row into the past, which is the same to it."""
        moved = ("received_at", "processed_at", "locked_until", "dead_letter_begun_at", "dead_lettered_at")
        changes = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in moved)
        await self.pool.execute(f"UPDATE inbox_messages SET {changes}", seconds)


World: TypeAlias = MemoryWorld | PostgresWorld


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    """An inbox for a contract that holds over both."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with opened(database) as pool:
        yield PostgresWorld(pool)


def entry(message_id: str | None = None, *, body: bytes = b"{}", **given: Any) -> InboxMessage:
    defaults: dict[str, Any] = {
        "message_id": message_id or str(uuid.uuid4()),
        "subject": SUBJECT,
        "consumer": "sea__from_vibespro",
        "stream": "VIBESPRO_EVENTS",
        "stream_seq": 7,
        "content_hash": hashlib.sha256(body).digest(),
    }
    return InboxMessage(**(defaults | given))


async def insert(inbox: InboxRepository, *entries: InboxMessage) -> list[Receipt]:
    return list(await inbox.insert_batch(entries, lease_seconds=LEASE))


async def lease(inbox: InboxRepository, one: InboxMessage) -> Lease:
    [receipt] = await insert(inbox, one)
    assert isinstance(receipt, Lease)
    return receipt

"""Rows of outbox and inbox in any state, and pools to reach them."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.postgres.pool import connect_pool
from tests.support.servers import Database

WORKER_SESSION = 1
"""Key of the session that connections opened with ``as_worker`` belong to."""

_STEPS = {
    "CLAIMED": "state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = 1,"
    " first_attempt_at = now()",
    "PUBLISHED": "state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = now(),"
    " stream = 'SEA_EVENTS', stream_seq = 5",
    "DEAD": "state = 'DEAD', claimed_at = NULL, claimed_by = NULL, failures = 10",
}
_PATHS = {
    "PENDING": (),
    "CLAIMED": ("CLAIMED",),
    "PUBLISHED": ("CLAIMED", "PUBLISHED"),
    "DEAD": ("CLAIMED", "DEAD"),
}


@asynccontextmanager
async def opened(database: Database | str, **given: Any) -> AsyncIterator[asyncpg.Pool]:
    """Open a pool to a test's database, or to a DSN, as the worker does."""
    defaults: dict[str, Any] = {
        "schema": "public",
        "size_max": 6,
        "application_name": "test",
        "statement_timeout_seconds": 10,
        "connect_timeout_seconds": 10,
    }
    pool = await connect_pool(database if isinstance(database, str) else database.dsn, **(defaults | given))
    try:
        yield pool
    finally:
        await pool.close()


async def as_worker(connection: asyncpg.Connection) -> None:
    """Let a pool's connection belong to a worker's session, as ``join``."""
    await connection.fetchval("SELECT pg_advisory_lock_shared(7184, $1)", WORKER_SESSION)


async def add_event(
    pool: asyncpg.Pool | asyncpg.Connection, state: str = "PENDING", *, error: str | None = None, **given: Any
) -> UUID:
    """Insert an event with these columns and lead it through the lifecycle to a state."""
    columns: dict[str, Any] = {
        "id": uuid.uuid4(),
        "aggregate_type": "order",
        "aggregate_id": "o-1",
        "event_type": "order.created",
        "payload": '{"total": 1.00}',
        **given,
    }
    places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    await pool.execute(
        f"INSERT INTO outbox_events ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )
    for step in _PATHS[state]:
        await lead(pool, columns["id"], step)
    if error is not None:
        await pool.execute("UPDATE outbox_events SET publish_error = $2 WHERE id = $1", columns["id"], error)
    return UUID(str(columns["id"]))


async def lead(pool: asyncpg.Pool | asyncpg.Connection, event_id: UUID, step: str) -> None:
    """Lead an event to its next state."""
    await pool.execute(f"UPDATE outbox_events SET {_STEPS[step]} WHERE id = $1", event_id)


async def add_message(
    pool: asyncpg.Pool | asyncpg.Connection,
    *,
    message_id: UUID | None = None,
    received_at: datetime | None = None,
    processed: bool = False,
    dead: bool = False,
) -> UUID:
    """Insert a message that was received, and settled at the same time."""
    message_id = message_id or uuid.uuid4()
    await pool.execute(
        "INSERT INTO inbox_messages (message_id, subject, consumer, attempts, received_at, processed_at,"
        " dead_letter_reason, dead_letter_begun_at, dead_lettered_at, last_error)"
        " SELECT $1, 'a.event.b.v1', 'durable', 3, at, CASE WHEN $3 THEN at END,"
        " CASE WHEN $4 THEN 'REJECTED' END, CASE WHEN $4 THEN at END, CASE WHEN $4 THEN at END,"
        " CASE WHEN $4 THEN 'REJECTED: 422' END"
        " FROM (SELECT coalesce($2::timestamptz, now()) AS at) moment",
        message_id, received_at, processed, dead,
    )  # fmt: skip
    return message_id

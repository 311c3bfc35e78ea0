"""The tables after long use: millions of finished rows, and some thousands unfinished."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.stage import Run
from tests.support.servers import database_connection

DATABASE = "history"
"""Name of the database that all rounds and workloads with millions of rows share."""
DEAD_TYPE = "order.refused"
"""Event type of a fifth of the unfinished events."""
_UNFINISHED = 10_000
_PUBLISHED = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, correlation_id, created_at,
        available_at, publish_attempts, first_attempt_at, stream, stream_seq, state, published_at)
SELECT uuidv7(past.age), 'order', n::text, 'order.created',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 997, 'currency', 'EUR',
                          'total', n * 1.25, 'lines',
                          jsonb_build_array(jsonb_build_object('article', n % 89, 'quantity', 2))),
       now() + past.age, uuidv7(past.age), now() + past.age, now() + past.age, 1, now() + past.age,
       'SEA_EVENTS', n + 1, 'PUBLISHED', now() + past.age
  FROM generate_series($2::int, $1::int - 1, $3::int) n
 CROSS JOIN LATERAL (SELECT (n - $1::int) * interval '10 milliseconds' - interval '1 minute' AS age) past
"""
# Of four events one each is PENDING with a key, PENDING without, DEAD with a key, DEAD without.
_OPEN_OR_DEAD = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, correlation_id, created_at,
        available_at, ordering_key, state, publish_attempts, failures, publish_error)
SELECT uuidv7(past.age), 'order', n::text, CASE WHEN n % 5 = 0 THEN $2 ELSE 'order.created' END,
       jsonb_build_object('order', n), now() + past.age, uuidv7(past.age), now() + past.age,
       now() + past.age, CASE WHEN n % 2 = 0 THEN format('order-%s', n / 20) END,
       CASE WHEN n % 4 < 2 THEN 'PENDING' ELSE 'DEAD' END, 3, 3,
       CASE WHEN n % 4 > 0 THEN format('no acknowledgement of message %s within 5 s', n) END
  FROM generate_series(0, $1::int - 1) n
 CROSS JOIN LATERAL (SELECT (n - $1::int) * interval '1 second' AS age) past
"""
# After the processed messages, as many wait as are dead-lettered.
_RECEIVED = """
INSERT INTO inbox_messages
       (message_id, subject, received_at, processed_at, attempts, last_error, consumer, stream, stream_seq,
        content_hash, dead_letter_reason, dead_letter_begun_at, dead_lettered_at)
SELECT uuidv7(past.age), 'vibespro.event.order.created.v1', now() + past.age,
       CASE WHEN n < $1::int THEN now() + past.age END, 1,
       CASE WHEN n >= $1::int THEN format('HTTP 503 in attempt %s', n % 7) END, 'sea-inbox',
       'VIBESPRO_EVENTS', n + 1, sha256(n::text::bytea),
       CASE WHEN dead THEN 'REJECTED' END, CASE WHEN dead THEN now() + past.age END,
       CASE WHEN dead THEN now() + past.age END
  FROM generate_series(0, $1::int + $2::int - 1) n
 CROSS JOIN LATERAL (SELECT (n - $1::int - $2::int) * interval '10 milliseconds' AS age,
                            n >= $1::int AND n % 2 = 0 AS dead) past
"""


async def publish_past(run: Run, count: int) -> None:
    """Insert published events if there are none."""
    if await run.database.fetchval("SELECT EXISTS (SELECT FROM outbox_events)"):
        return
    lanes = os.cpu_count() or 1
    await asyncio.gather(*(_as_they_are(run, _PUBLISHED, count, lane, lanes) for lane in range(lanes)))
    await _settle(run, "outbox_events")


async def receive_past(run: Run, count: int) -> None:
    """Insert processed messages and some thousands unprocessed, if there are none."""
    if await run.database.fetchval("SELECT EXISTS (SELECT FROM inbox_messages)"):
        return
    await run.database.execute(_RECEIVED, count, _UNFINISHED)
    await _settle(run, "inbox_messages")


@asynccontextmanager
async def unfinished_events(run: Run) -> AsyncIterator[None]:
    """Insert some thousands of waiting or dead events, and delete them at the end."""
    await _as_they_are(run, _OPEN_OR_DEAD, _UNFINISHED, DEAD_TYPE)
    await _settle(run, "outbox_events")
    try:
        yield
    finally:
        await _as_they_are(run, "DELETE FROM outbox_events WHERE published_at IS NULL")
        await _settle(run, "outbox_events")


async def _as_they_are(run: Run, statement: str, *args: object) -> None:
    """Disable triggers, which refuse finished inserts and deletion of open events; constraints hold."""
    url, settings = run.settings["SEA_MQ_DATABASE_URL"], {"session_replication_role": "replica"}
    async with database_connection(url, server_settings=settings) as connection:
        await connection.execute(statement, *args)


async def _settle(run: Run, table: str) -> None:
    await run.database.execute(f"VACUUM ANALYZE {table}")
    await run.server.execute("CHECKPOINT")

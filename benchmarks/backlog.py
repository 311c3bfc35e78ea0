"""The events of the benchmarks: orders in the outbox, and the messages made of them."""

import asyncpg

from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.outbox.message import outbound_message

_ORDERED_AT_ONCE = 10
_BACKLOG = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, correlation_id, ordering_key)
SELECT CASE WHEN $3::bool THEN gen_random_uuid() ELSE uuidv7() END, 'order', n::text, 'order.created',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 997, 'currency', 'EUR',
                          'total', n * 1.25, 'lines',
                          jsonb_build_array(jsonb_build_object('article', n % 89, 'quantity', 2)))
         || CASE WHEN $2::int > 0 THEN jsonb_build_object('note', repeat('n', $2::int)) ELSE '{}' END,
       uuidv7(),
       'order-' || {key}
  FROM generate_series(0, $1::int - 1) n
"""


async def write_backlog(
    database: asyncpg.Connection,
    *,
    count: int,
    per_key: int,
    key: str = "",
    padding: int = 0,
    random_ids: bool = False,
) -> None:
    """Insert orders into the outbox.

    Args:
        database: where the outbox is.
        count: number of orders.
        per_key: number of events with the same ordering key, of ten keys in turns; 0: no keys.
        key: another ordering key, as SQL of the event's number ``n``.
        padding: bytes added to each payload.
        random_ids: UUIDs of version 4 instead of 7.
    """
    at_once = _ORDERED_AT_ONCE
    usual = f"(n / {per_key * at_once} * {at_once} + n % {at_once})" if per_key else "NULL"
    await database.execute(_BACKLOG.replace("{key}", key or usual), count, padding, random_ids)


async def outbound_messages(database: asyncpg.Connection) -> list[OutboundMessage]:
    """Make the messages of all events that are in the outbox, as the worker would."""
    rows = await database.fetch("SELECT * FROM outbox_events ORDER BY seq")
    return [outbound_message(_event(row), context="sea", source="/sea") for row in rows]


def _event(row: asyncpg.Record) -> OutboxEvent:
    return OutboxEvent(
        id=str(row["id"]),
        seq=row["seq"],
        aggregate_type=row["aggregate_type"],
        aggregate_id=row["aggregate_id"],
        event_type=row["event_type"],
        event_version=row["event_version"],
        payload=row["payload"].encode(),
        occurred_at=row["occurred_at"],
        correlation_id=str(row["correlation_id"]),
        ordering_key=row["ordering_key"],
        attempts=1,
        failures=0,
        age_seconds=0.0,
        attempted_seconds_ago=0.0,
    )

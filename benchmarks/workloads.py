"""What is measured: the worker's way of moving a backlog, and the plain loop that a service would write."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
import httpx2

from benchmarks.stage import Cost, Run
from sea_mq_worker.domain.events import ClaimedEvent
from sea_mq_worker.domain.headers import MSG_ID, outbound_message
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.producer import uuid7

_ORDERED_AT_ONCE = 10
_CONSUMER = ("VIBESPRO_EVENTS", "sea__from_vibespro")
_BACKLOG = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, correlation_id, ordering_key)
SELECT uuidv7(), 'order', n::text, 'order.created',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 997, 'currency', 'EUR',
                          'total', n * 1.25, 'lines',
                          jsonb_build_array(jsonb_build_object('article', n % 89, 'quantity', 2))),
       uuidv7(),
       CASE WHEN $2::int > 0 THEN format('order-%s', n / ($2 * $3::int) * $3 + n % $3) END
  FROM generate_series(0, $1::int - 1) n
"""
_SPAN = """
SELECT count(published_at) AS done,
       extract(epoch FROM max(published_at) - min(first_attempt_at))::float8 AS seconds
  FROM outbox_events
"""
_INBOX_SPAN = """
SELECT count(processed_at) AS done,
       extract(epoch FROM max(processed_at) - min(received_at))::float8 AS seconds
  FROM inbox_messages
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one workload; rates are per second.

    Attributes:
        worker_rate: from the first claim to the last settlement, by the database's clock.
        floor_rates: what plain loops did with the same messages.
    """

    count: int
    worker_rate: float
    floor_rates: dict[str, float]
    cost: Cost


async def drain(run: Run, *, count: int, floor_count: int, per_key: int) -> Measured:
    """Publish a backlog of the outbox; ``per_key`` events have an ordering key in common, 0: no keys."""
    await write_backlog(run.database, count=count, per_key=per_key)
    messages = await _messages(run.database, floor_count)
    floor = await _publish_each(run, messages)
    await run.empty_stream("SEA_EVENTS")

    async def is_done() -> bool:
        if (await run.stream.stream_info("SEA_EVENTS")).state.messages < count:
            return False
        left: bool = await run.database.fetchval(
            "SELECT EXISTS (SELECT FROM outbox_events WHERE published_at IS NULL)"
        )
        return not left

    cost = await run.work({"SEA_MQ_CONSUMERS": ""}, is_done)
    stored = (await run.stream.stream_info("SEA_EVENTS")).state.messages
    if stored != count:
        raise RuntimeError(f"{count} events went out, {stored} messages are in the stream")
    rate = count / await _span(run, _SPAN, count)
    return Measured(count=count, worker_rate=rate, floor_rates={"js.publish": floor}, cost=cost)


async def write_backlog(database: asyncpg.Connection, *, count: int, per_key: int) -> None:
    """Insert orders into the outbox; ``per_key`` of them have an ordering key in common, 0: no keys."""
    await database.execute(_BACKLOG, count, per_key, _ORDERED_AT_ONCE)


async def inbox(run: Run, *, count: int, floor_count: int) -> Measured:
    """Hand messages of a stream to the sample handler."""
    messages = [_vibe(number) for number in range(count)]
    floors = {
        "js.publish": await _publish_each(run, messages),
        "POST": await _post_each(run, [_vibe(number) for number in range(floor_count)]),
    }

    async def is_done() -> bool:
        info = await run.stream.consumer_info(*_CONSUMER)
        return not (info.num_pending or info.num_ack_pending)

    cost = await run.work({"SEA_MQ_OUTBOX_ENABLED": "false"}, is_done)
    rate = count / await _span(run, _INBOX_SPAN, count)
    return Measured(count=count, worker_rate=rate, floor_rates=floors, cost=cost)


async def _span(run: Run, statement: str, count: int) -> float:
    row = await run.database.fetchrow(statement)
    if row["done"] != count:
        raise RuntimeError(f"of {count}, only {row['done']} are settled")
    seconds: float = row["seconds"]
    return seconds


async def _messages(database: asyncpg.Connection, count: int) -> list[OutboundMessage]:
    rows = await database.fetch("SELECT * FROM outbox_events ORDER BY seq LIMIT $1", count)
    return [outbound_message(_event(row), context="sea", source="/sea") for row in rows]


def _event(row: asyncpg.Record) -> ClaimedEvent:
    return ClaimedEvent(
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


def _vibe(number: int) -> OutboundMessage:
    identity = str(uuid7())
    payload = json.dumps({"vibe": number, "mood": "calm", "tags": ["a", "b", "c"]}).encode()
    return OutboundMessage(
        id=identity,
        subject="vibespro.event.vibe_created.v1",
        payload=payload,
        headers={MSG_ID: identity, "ce-id": identity, "ce-type": "vibe_created"},
    )


async def _publish_each(run: Run, messages: Sequence[OutboundMessage]) -> float:
    """Publish with nats-py, each message when the one before is acknowledged; return the rate."""
    began = time.perf_counter()
    for message in messages:
        await run.stream.publish(message.subject, message.payload, headers=dict(message.headers))
    return len(messages) / (time.perf_counter() - began)


async def _post_each(run: Run, messages: Sequence[OutboundMessage]) -> float:
    """POST to the sample handler over one connection, one at a time; return the rate."""
    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
        began = time.perf_counter()
        for message in messages:
            body = {
                "message_id": message.id,
                "subject": message.subject,
                "event_type": "vibe_created",
                "event_version": 1,
                "occurred_at": "2025-01-01T00:00:00Z",
                "correlation_id": None,
                "causation_id": None,
                "payload": json.loads(message.payload),
            }
            (await http.post(run.settings["SEA_MQ_HANDLER_URL"], json=body)).raise_for_status()
        return len(messages) / (time.perf_counter() - began)

"""An outbox, a stream and an inbox of any size, made quickly, to plant faults in."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Published, Stream
from tests.support.builders import claimed_event
from tests.support.jetstream import SECOND, create_stream

WINDOW_SECONDS = 1
"""Short, so that a replay need not wait; a worker's publish time-out has to be below it."""
_PULLED = 10_000
IN_TIME = {"outbox_publish_timeout_seconds": str(WINDOW_SECONDS / 2)}

_INSERT = """
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, ordering_key, headers)
SELECT gen_random_uuid(), 'order', 'o-' || i, 'order.paid',
       jsonb_build_object('total', i / 7.0, 'note', repeat('ü', 40)),
       now(), 'key ' || i % $2::int, CASE WHEN i % 3 = 0 THEN '{"X-Tenant": "é"}'::jsonb END
  FROM generate_series(1, $1::int) i
"""
_ROWS = """
SELECT id::text AS id, seq, aggregate_type, aggregate_id, event_type, event_version, payload::text AS payload,
       occurred_at, ordering_key, headers::text AS headers
  FROM outbox_events WHERE state = 'PENDING' ORDER BY seq
"""
_CLAIM = """
UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = 1
 WHERE id = ANY ($1::uuid[])
"""
_SETTLE = """
UPDATE outbox_events o
   SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = clock_timestamp(),
       stream = $3::text, stream_seq = v.seq
  FROM unnest($1::uuid[], $2::bigint[]) v (id, seq)
 WHERE o.id = v.id
"""
_CONTENTS = """
SELECT o.id, o.published_at, o.stream_seq,
       sha256(convert_to($1::text, 'UTF8') || '\\x00'::bytea || convert_to(o.payload::text, 'UTF8'))
  FROM outbox_events o
"""
_RECEIVE = """
INSERT INTO inbox_messages
       (message_id, subject, received_at, processed_at, attempts, consumer, stream, stream_seq, content_hash)
SELECT v.id, $1::text, v.at, v.at, 1, $2::text, $3::text, v.seq, v.hash
  FROM unnest($4::uuid[], $5::timestamptz[], $6::bigint[], $7::bytea[]) v (id, at, seq, hash)
 WHERE v.id <> ALL ($8::uuid[])
"""


@dataclass(frozen=True, slots=True)
class World:
    """A service's database and stream."""

    pool: asyncpg.Pool
    connection: NatsConnection
    settings: Settings

    @property
    def context(self) -> str:
        return self.settings.context

    @property
    def stream(self) -> str:
        return self.settings.stream

    @property
    def stored(self) -> Stream:
        return Stream(self.connection, self.stream)

    @property
    def subject(self) -> str:
        return f"{self.context}.event.order.paid.v1"

    async def insert(self, rows: int, *, keys: int = 100) -> list[OutboundMessage]:
        """Insert events and return their messages, in insert order."""
        await self.pool.execute(_INSERT, rows, keys, timeout=60)
        return await self.unpublished()

    async def unpublished(self) -> list[OutboundMessage]:
        """Make the messages of the pending events as the worker does."""
        found = await self.pool.fetch(_ROWS, timeout=60)
        return [
            outbound_message(_event(row), context=self.context, source=self.settings.source) for row in found
        ]

    async def send(self, messages: Iterable[OutboundMessage]) -> None:
        """Publish in this order, and wait until the stream has all."""
        await self.stored.publish(Published(each.subject, each.headers, each.payload) for each in messages)

    async def settle(self, sequences: Mapping[str, int]) -> None:
        """Mark events as published, each with the sequence that the stream gave it."""
        await self.pool.execute(_CLAIM, list(sequences), timeout=60)
        await self.pool.execute(_SETTLE, list(sequences), list(sequences.values()), self.stream, timeout=60)

    async def publish(self, rows: int) -> list[str]:
        """Insert events, publish them and mark them as published; return their ids."""
        await self.pool.execute(_INSERT, rows, 7)
        return await self.relay()

    async def relay(self) -> list[str]:
        """Publish what is pending, also where the stream still remembers it; return the ids."""
        messages = [without_message_id(message) for message in await self.unpublished()]
        last = await self.stored.last_seq()
        await self.send(messages)
        await self.settle({message.id: last + place for place, message in enumerate(messages, start=1)})
        return [message.id for message in messages]

    async def contents(self) -> list[tuple[Any, ...]]:
        """Return of each event what an inbox records of it."""
        return [tuple(row) for row in await self.pool.fetch(_CONTENTS, self.subject, timeout=60)]

    async def receive(
        self, contents: Sequence[tuple[Any, ...]], durable: str, *, without: Sequence[str], start: int = 1
    ) -> None:
        """Note contents in the inbox, and let a consumer settle all that the stream holds."""
        columns = map(list, zip(*contents, strict=True))
        await self.pool.execute(
            _RECEIVE, self.subject, durable, self.stream, *columns, list(without), timeout=60
        )
        config = {"durable_name": durable, "name": durable, "ack_policy": "all", "max_ack_pending": -1}
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start, "headers_only": True}
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        await api(self.connection, f"CONSUMER.CREATE.{self.stream}.{durable}", request)
        count = await self.stored.last_seq() - start + 1
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def note(message: Any) -> None:
            arrived.put_nowait(message.reply)

        client, inbox = self.connection.client, self.connection.client.new_inbox()
        await client.subscribe(inbox, cb=note, pending_msgs_limit=0, pending_bytes_limit=0)
        reply = ""
        for first in range(0, count, _PULLED):
            some = min(_PULLED, count - first)
            ask = json.dumps({"batch": some, "expires": 60 * 10**9}).encode()
            await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{durable}", ask, inbox)
            reply = [await arrived.get() for _ in range(some)][-1]
        await client.request(reply, b"+ACK", timeout=10)


def without_message_id(message: OutboundMessage) -> OutboundMessage:
    """Let the stream take it once more, however long it remembers ids."""
    headers = {name: value for name, value in message.headers.items() if name != "Nats-Msg-Id"}
    return message._replace(headers=headers)


async def make_world(pool: asyncpg.Pool, connection: NatsConnection, settings: Settings) -> World:
    """Create the stream of a context."""
    config = {"allow_direct": True, "duplicate_window": WINDOW_SECONDS * SECOND, "discard": "new"}
    await create_stream(connection, settings.stream, f"{settings.context}.event.>", **config)
    return World(pool, connection, settings)


def _event(row: Any) -> Any:
    return claimed_event(**dict(row) | {"payload": row["payload"].encode(), "headers": row["headers"] or ""})

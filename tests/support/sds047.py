"""SDS-047's own tables, rows of every kind in them, and a worker that knows only its statements."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import httpx2
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sea_mq_worker.nats.connection import NatsConnection
from tests.support.jetstream import connected
from tests.support.servers import database_connection
from tests.support.worker import Deployment

DDL = """
CREATE TABLE outbox_events (
id UUID PRIMARY KEY,
aggregate_type TEXT NOT NULL,
aggregate_id TEXT NOT NULL,
event_type TEXT NOT NULL,
event_version INT NOT NULL DEFAULT 1,
payload JSONB NOT NULL,
occurred_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
correlation_id UUID,
causation_id UUID,
published_at TIMESTAMPTZ,
publish_attempts INT NOT NULL DEFAULT 0,
publish_error TEXT,
CONSTRAINT chk_occurred_not_future CHECK (occurred_at <= NOW() + INTERVAL '1 minute')
);
CREATE INDEX idx_outbox_unpublished ON outbox_events (occurred_at)
WHERE published_at IS NULL;
CREATE INDEX idx_outbox_correlation ON outbox_events (correlation_id);
CREATE TABLE inbox_messages (
message_id UUID PRIMARY KEY,
subject TEXT NOT NULL,
received_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
processed_at TIMESTAMPTZ,
attempts INT NOT NULL DEFAULT 0,
last_error TEXT
);
CREATE INDEX idx_inbox_unprocessed ON inbox_messages (received_at)
WHERE processed_at IS NULL;
"""
"""As the specification has it."""

INSERT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES ($1, 'order', 'o-1', 'order.created', $2)"
)

MARK = "UPDATE outbox_events SET published_at = NOW(), publish_attempts = publish_attempts + 1 WHERE id = $1"

HISTORY = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, published_at,
                           publish_attempts)
SELECT gen_random_uuid(), 'order', 'o-' || n, 'order.created',
       jsonb_build_object('total', n, 'currency', 'EUR'), now() - n * interval '1 s',
       now() - n * interval '1 s', 1
  FROM generate_series(1, {rows}) n;
INSERT INTO inbox_messages (message_id, subject, received_at, processed_at, attempts)
SELECT gen_random_uuid(), 'vibespro.event.vibe_created.v1', now() - n * interval '1 s',
       now() - n * interval '1 s', 1
  FROM generate_series(1, {rows}) n
"""
"""Published events and processed messages."""


@dataclass
class OldWorker:
    """Publishes and consumes as SDS-047 says, by exactly the statements that its tables suggest."""

    target: Deployment
    database: asyncpg.Connection
    broker: NatsConnection
    published: int = 0
    handled: int = 0
    errors: list[str] = field(default_factory=list)

    async def publish_once(self, *, pause: asyncio.Event | None = None) -> None:
        """Publish what is unpublished, and mark it; a ``pause`` comes between the two."""
        events = await self.database.fetch(
            "SELECT id, event_type, event_version, payload FROM outbox_events"
            " WHERE published_at IS NULL ORDER BY occurred_at LIMIT 100"
        )
        for event in events:
            subject = f"{self.target.context}.event.{event['event_type']}.v{event['event_version']}"
            body = json.dumps(json.loads(event["payload"]), separators=(",", ":")).encode()
            headers = {"Nats-Msg-Id": str(event["id"])}
            try:
                answer = await self.broker.client.request(subject, body, 5, headers=headers)
                error = json.loads(answer.data).get("error")
            except (NatsError, TimeoutError) as trouble:
                error = trouble
            if error:
                await self.database.execute(
                    "UPDATE outbox_events SET publish_attempts = publish_attempts + 1, publish_error = $2"
                    " WHERE id = $1",
                    event["id"], str(error),
                )  # fmt: skip
                continue
            if pause:
                await pause.wait()
            assert await self.database.execute(MARK, event["id"]) == "UPDATE 1"
            self.published += 1

    async def consume_once(self, handler_url: str) -> None:
        """Fetch some messages, record each, call the handler, mark and acknowledge."""
        stream, durable = self.target.upstream_stream, self.target.durable
        inbox = self.broker.client.new_inbox()
        replies = await self.broker.client.subscribe(inbox)
        request = json.dumps({"batch": 10, "expires": 500_000_000, "no_wait": False}).encode()
        await self.broker.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", request, reply=inbox
        )
        try:
            async with httpx2.AsyncClient(trust_env=False) as http:
                for _ in range(10):
                    message = await replies.next_msg(timeout=0.7)
                    if not message.reply:
                        break
                    await self._handle(message, http, handler_url)
        except (NatsError, TimeoutError):
            pass
        finally:
            await replies.unsubscribe()

    async def _handle(self, message: Msg, http: httpx2.AsyncClient, handler_url: str) -> None:
        message_id = (message.headers or {})["Nats-Msg-Id"]
        added = await self.database.execute(
            "INSERT INTO inbox_messages (message_id, subject) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            message_id, message.subject,
        )  # fmt: skip
        if added == "INSERT 0 0":
            await message.ack()
            return
        answer = await http.post(
            handler_url,
            json={"message_id": message_id, "payload": json.loads(message.data)},
            headers={"x-message-id": message_id},
        )
        if answer.status_code not in {200, 409}:
            await self.database.execute(
                "UPDATE inbox_messages SET attempts = attempts + 1, last_error = $2 WHERE message_id = $1",
                message_id, str(answer.status_code),
            )  # fmt: skip
            return
        await self.database.execute(
            "UPDATE inbox_messages SET processed_at = NOW() WHERE message_id = $1", message_id
        )
        await message.ack()
        self.handled += 1

    async def run(self, handler_url: str, stop: asyncio.Event) -> None:
        """Publish and consume until a stop."""
        while not stop.is_set():
            try:
                await self.publish_once()
                await self.consume_once(handler_url)
            except asyncpg.PostgresError as error:
                self.errors.append(str(error))


@asynccontextmanager
async def old_worker(target: Deployment) -> AsyncIterator[OldWorker]:
    """Connect an old worker for the length of a block."""
    async with (
        database_connection(target.environment["SEA_MQ_DATABASE_URL"]) as database,
        connected(target.environment["SEA_MQ_NATS_URL"]) as broker,
    ):
        yield OldWorker(target, database, broker)

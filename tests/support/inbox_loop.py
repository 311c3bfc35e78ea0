"""The inbound loop with in-memory fakes around it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sea_mq_worker.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.inbox.consumer import InboxConsumer, recover_exhausted
from sea_mq_worker.inbox.leases import InboxLeases, InFlightMessage
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.parts import Parts
from sea_mq_worker.settings import ConsumerSettings
from sea_mq_worker.testing.consumer import InMemoryConsumer, InMemoryExhaustedMessages
from sea_mq_worker.testing.handler import Behaviour, InMemoryHandler
from sea_mq_worker.testing.inbox import InboxRow, InboxTable, InMemoryInbox
from sea_mq_worker.testing.stream import InMemoryPublisher, InMemoryStream
from sea_mq_worker.worker import consumer_loops, handler_health
from tests.support.loop_world import LoopWorld
from tests.support.simulation import Interrupted

LEASE = 60.0
ACK_WAIT = 120.0
OVERDUE = 2 * ACK_WAIT
ATTEMPTS_MAX = 3
SLOW_AFTER = 4
PER_SECOND = 1.0
CONCURRENCY = 10
SUBJECT = "vibespro.event.vibe_created.v1"
STREAM, DURABLE = "VIBESPRO_EVENTS", "sea__from_vibespro"


class AckRecorder(InMemoryConsumer):
    """A consumer that remembers which stream sequences were acknowledged and how others were put off."""

    def __init__(self, *, max_ack_pending: int = 50, **given: Any) -> None:
        super().__init__(max_ack_pending=max_ack_pending, **given)
        self.max_ack_pending = max_ack_pending
        self.acked: list[int] = []
        self.naks: list[tuple[int, float]] = []

    async def ack(self, msg: InboundMessage) -> None:
        if msg.reply:
            self.acked.append(msg.seq)
        await super().ack(msg)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        if msg.reply:
            self.naks.append((msg.seq, delay_seconds))
        await super().nak(msg, delay_seconds=delay_seconds)


class World(LoopWorld):
    """An InboxConsumer with everything around it."""

    def __init__(self, **of_the_consumer: Any) -> None:
        super().__init__(
            consumers=(ConsumerSettings(stream=STREAM, durable=DURABLE),),
            handler_concurrency=CONCURRENCY,
            handler_slow_after=SLOW_AFTER,
            handler_slow_failures_per_second=PER_SECOND,
            inbox_attempts_max=ATTEMPTS_MAX,
            inbox_backoff_seconds=0.5,
            inbox_backoff_max_seconds=300.0,
            inbox_lease_seconds=LEASE,
        )
        self.upstream = InMemoryStream(name=STREAM, clock=self.clock)
        self.dead_letters = InMemoryStream(name="SEA_DLQ", clock=self.clock)
        self.dlq = InMemoryPublisher(stream=self.dead_letters, clock=self.clock)
        self.consumer = AckRecorder(
            stream=self.upstream,
            name=DURABLE,
            clock=self.clock,
            **({"ack_wait_seconds": ACK_WAIT, "max_ack_pending": CONCURRENCY} | of_the_consumer),
        )
        fake = InMemoryExhaustedMessages(consumer=self.consumer, clock=self.clock)
        self.exhausted: Any = Interrupted(fake, BrokerUnavailableError("no leader"))
        self.handler = InMemoryHandler()
        self.table = InboxTable(self.clock)
        self.inbox: Any = Interrupted(
            InMemoryInbox(table=self.table, worker="w1"), StoreUnavailableError("the database is away")
        )

    def send(
        self, *, message_id: str = "", body: bytes = b"{}", subject: str = SUBJECT, **headers: str
    ) -> str:
        """Store a message upstream, as if far from any duplicate window; return its id."""
        given = message_id or str(uuid.uuid4())
        self.upstream.store(subject, body, {"ce-id": given, **headers})
        return given

    def row(self, message_id: str) -> InboxRow:
        return self.table.rows[message_id]

    def lose(self, message_id: str) -> None:
        """Lose a row, as a failover to a standby does that lacks the last commits."""
        del self.table.rows[message_id]

    def dead_lettered(self) -> list[tuple[str, str]]:
        """Return message id and reason of each dead letter in the stream."""
        headers = [entry.headers for entry in self.dead_letters.entries()]
        return [(found["Dlq-Message-Id"], found["Dlq-Reason"]) for found in headers]

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Run the loop and the max-deliveries loop for a block; then stop them gracefully."""
        loop = self.loop()
        loops = {(self.consumer.stream, self.consumer.name): loop}
        recovering = recover_exhausted(self.exhausted, loops, self.parts().breaker("stranded"), self.stop)
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(self.stop))
            group.create_task(recovering)
            yield
            self.stop.set()

    def leases(self) -> InboxLeases:
        return self.loop().leases

    async def record(self, message: InboundMessage) -> InFlightMessage:
        """Record a message as a worker does that dies then."""
        item = InFlightMessage.of(message, self.consumer, received_at=self.clock())
        await self.leases().record([item], self.stop)
        return item

    def loop(self) -> InboxConsumer:
        loop = inbox_loop(self.parts(), self.consumer, self.inbox, self.handler, self.dlq)
        self.health = loop.health
        return loop


def inbox_loop(parts: Parts, consumer: Any, inbox: Any, handler: Any, dead_letters: Any) -> InboxConsumer:
    """Put the loop together as the worker does, between these ends."""
    make = consumer_loops(
        parts,
        inbox=inbox,
        handler=handler,
        health=handler_health(parts),
        letters=dead_letters,
        store_breaker=parts.breaker("store"),
    )
    return make(consumer, parts.breaker(f"consumer {consumer.name}"))


def always(behaviour: Behaviour) -> Any:
    return lambda _request, _call: behaviour

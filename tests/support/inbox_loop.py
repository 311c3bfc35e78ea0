"""The inbound loop with in-memory fakes around it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.inbox.consumer import InboxConsumer
from sea_mq_worker.application.inbox.dead_letter_publisher import DeadLetterPublisher
from sea_mq_worker.application.inbox.handler_call import HandlerCaller
from sea_mq_worker.application.inbox.max_deliveries import MaxDeliveriesLoop
from sea_mq_worker.application.inbox.receiving import InboxRecorder, InFlightMessage
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.bootstrap.worker.inbound import _backoff, _health, _inbox_loop
from sea_mq_worker.domain.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.settings import Settings
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.exhausted_messages import InMemoryExhaustedMessages
from sea_mq_worker.testing.handler import Behaviour, InMemoryHandler
from sea_mq_worker.testing.inbox import InboxRow, InboxTable, InMemoryInbox
from sea_mq_worker.testing.observer import RecordingObserver
from sea_mq_worker.testing.publisher import InMemoryPublisher
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.simulation import Interrupted

LEASE = 60.0
ACK_WAIT = 120.0
OVERDUE = 2 * ACK_WAIT
ATTEMPTS_MAX = 3
SLOW_AFTER = 4
PER_SECOND = 1.0
CONCURRENCY = 10
PROBE_MAX = 2.0
SUBJECT = "vibespro.event.vibe_created.v1"


class AckRecorder(InMemoryConsumer):
    """A consumer that remembers which stream sequences were acknowledged and how others were put off."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.max_ack_pending = self._max_ack_pending
        self.acked: list[int] = []
        self.naks: list[tuple[int, float]] = []

    async def ack(self, msg: InboundMessage) -> None:
        if msg.reply:
            self.acked.append(msg.seq)
        await super().ack(msg)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float) -> None:
        if msg.reply:
            self.naks.append((msg.seq, delay_seconds))
        await super().nak(msg, delay_seconds=delay_seconds)


class World:
    """An InboxConsumer with everything around it."""

    def __init__(self, **of_the_consumer: Any) -> None:
        self.clock = asyncio.get_running_loop().time
        self.stop = asyncio.Event()
        self.observer = RecordingObserver()
        self.upstream = InMemoryStream(name="VIBESPRO_EVENTS", clock=self.clock)
        self.dead_letters = InMemoryStream(name="SEA_DLQ", clock=self.clock)
        self.dlq = InMemoryPublisher(stream=self.dead_letters, clock=self.clock)
        self.consumer = AckRecorder(
            stream=self.upstream,
            name="sea__from_vibespro",
            clock=self.clock,
            **({"ack_wait_seconds": ACK_WAIT} | of_the_consumer),
        )
        fake = InMemoryExhaustedMessages(consumer=self.consumer, clock=self.clock)
        self.exhausted: Any = Interrupted(fake, BrokerUnavailableError("no leader"))
        self.handler = InMemoryHandler()
        self.table = InboxTable(self.clock)
        self.inbox: Any = Interrupted(
            InMemoryInbox(table=self.table, worker="w1"), StoreUnavailableError("the database is away")
        )
        self.session_lost_at = -1.0
        self.bytes_max = 2**20
        self.messages_max = CONCURRENCY

    def send(self, *, message_id: str = "", body: bytes = b"{}", subject: str = SUBJECT) -> str:
        """Store a message upstream, as if far from any duplicate window; return its id."""
        given = message_id or str(uuid.uuid4())
        self.upstream.store(subject, body, {"ce-id": given})
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
        max_deliveries = MaxDeliveriesLoop(
            exhausted=self.exhausted,
            loops={(self.consumer.stream, self.consumer.name): loop},
            broker_breaker=self.context.breaker("exhausted messages", cap_seconds=PROBE_MAX),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(self.stop))
            group.create_task(max_deliveries.run(self.stop))
            yield
            self.stop.set()

    def recorder(self) -> InboxRecorder:
        return InboxRecorder(
            inbox=self.inbox,
            store_breaker=self.context.breaker("store", cap_seconds=PROBE_MAX),
            observer=self.observer,
            lease_seconds=LEASE,
        )

    async def record(self, message: InboundMessage) -> InFlightMessage:
        """Record a message as a worker does that dies then."""
        item = self.recorder().identify(message, received_at=self.clock())
        await self.recorder().record([item], self.stop)
        return item

    def loop(self) -> InboxConsumer:
        """Put the loop together as the worker does."""
        loop = inbox_loop(
            self.context,
            consumer=self.consumer,
            recorder=self.recorder(),
            handler=self.handler,
            dead_letters=self.dlq,
        )
        self.health = loop.handler_caller.health
        return loop

    @property
    def context(self) -> "_Context":
        settings = Settings(
            handler_concurrency=CONCURRENCY,
            handler_slow_after=SLOW_AFTER,
            handler_slow_failures_per_second=PER_SECOND,
            inbox_attempts_max=ATTEMPTS_MAX,
            inbox_bytes_max=self.bytes_max,
            inbox_in_flight_max=self.messages_max,
        )
        shared: Any = {"metrics": None, "stack": AsyncExitStack(), "stop": self.stop, "clock": self.clock}
        return _Context(settings=settings, name="w1", observer=self.observer, world=self, **shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context(WorkerContext):
    """Delays that a test can foresee, and a session that it can lose."""

    world: World

    def backoff(self, *, base_seconds: float, cap_seconds: float) -> Backoff:
        return Backoff(base_seconds=base_seconds, cap_seconds=cap_seconds, random=lambda: 0.5)

    def breaker(self, name: str, *, cap_seconds: float) -> CircuitBreaker:
        backoff = Backoff(base_seconds=0.2, cap_seconds=min(cap_seconds, PROBE_MAX), random=lambda: 1.0)
        return CircuitBreaker(name=name, backoff=backoff, observer=self.observer, clock=self.clock)

    def session_lost_since(self, moment: float) -> bool:
        return self.world.session_lost_at >= moment


def inbox_loop(
    base: WorkerContext, *, consumer: Any, recorder: InboxRecorder, handler: Any, dead_letters: Any
) -> InboxConsumer:
    """Put the loop together as the worker does, between these ends."""
    s = base.settings
    dead_letter_publisher = DeadLetterPublisher(
        context=s.context,
        inbox=recorder.inbox,
        publisher=dead_letters,
        observer=base.observer,
        breaker=base.breaker(f"stream {s.dlq_stream}", cap_seconds=PROBE_MAX),
        store_breaker=recorder.store_breaker,
        clock=base.clock,
        lease_seconds=s.inbox_lease_seconds,
    )
    handler_caller = HandlerCaller(
        handler=handler,
        health=_health(base),
        dead_letter_publisher=dead_letter_publisher,
        backoff=_backoff(base),
        attempts_max=s.inbox_attempts_max,
    )
    return _inbox_loop(base, consumer, recorder.inbox, recorder, handler_caller)


def always(behaviour: Behaviour) -> Any:
    return lambda _request, _call: behaviour

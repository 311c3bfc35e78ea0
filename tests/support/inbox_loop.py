"""The inbound loop with in-memory fakes around it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.inbox.completion import CompletionBatcher
from sea_mq_worker.application.inbox.consumer import InboxConsumer
from sea_mq_worker.application.inbox.dead_letter_publisher import DeadLetterPublisher
from sea_mq_worker.application.inbox.handler_call import HandlerCaller
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.inbox.in_flight import CallSlots, InFlight
from sea_mq_worker.application.inbox.lease_renewal import LeaseRenewal
from sea_mq_worker.application.inbox.max_deliveries import MaxDeliveriesLoop
from sea_mq_worker.application.inbox.orphans import OrphanFinder
from sea_mq_worker.application.inbox.read_ahead import ReadAhead
from sea_mq_worker.application.inbox.receiving import InboxRecorder, InFlightMessage
from sea_mq_worker.application.inbox.returned_messages import ReturnedMessages
from sea_mq_worker.domain.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.retry import Backoff
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
SUBJECT = "vibespro.event.vibe_created.v1"


class AckRecorder(InMemoryConsumer):
    """A consumer that remembers which stream sequences were acknowledged and how others were put off."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
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

    def __init__(self, *, lease: float = LEASE, **of_the_consumer: Any) -> None:
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
        self.lease = lease
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
            broker_breaker=self._gate("stranded"),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(self.stop))
            group.create_task(max_deliveries.run(self.stop))
            yield
            self.stop.set()

    def recorder(self) -> InboxRecorder:
        return InboxRecorder(
            inbox=self.inbox,
            store_breaker=self._gate("store"),
            observer=self.observer,
            lease_seconds=self.lease,
        )

    async def record(self, message: InboundMessage) -> InFlightMessage:
        """Record a message as a worker does that dies then."""
        item = self.recorder().identify(message, received_at=self.clock())
        await self.recorder().record([item], self.stop)
        return item

    def loop(self) -> InboxConsumer:
        recorder, broker_breaker = self.recorder(), self._gate("broker")
        store_breaker = recorder.store_breaker
        handler_caller = self._handler_caller(store_breaker)
        in_flight = InFlight(messages_max=self.messages_max, bytes_max=self.bytes_max)
        return InboxConsumer(
            consumer=self.consumer,
            recorder=recorder,
            leases=LeaseRenewal(
                inbox=self.inbox,
                store_breaker=store_breaker,
                clock=self.clock,
                lease_seconds=self.lease,
                session_lost_since=lambda moment: self.session_lost_at >= moment,
            ),
            in_flight=in_flight,
            handler_caller=handler_caller,
            completion=CompletionBatcher(
                consumer=self.consumer,
                inbox=self.inbox,
                recorder=recorder,
                observer=self.observer,
                store_breaker=store_breaker,
                clock=self.clock,
                in_flight=in_flight,
                returned=ReturnedMessages(self.clock),
            ),
            observer=self.observer,
            broker_breaker=broker_breaker,
            clock=self.clock,
            calls=CallSlots(CONCURRENCY),
            heartbeat_seconds=LEASE / 3,
            siblings=frozenset({self.consumer.name}),
            orphans=OrphanFinder(
                consumer=self.consumer,
                inbox=self.inbox,
                observer=self.observer,
                broker_breaker=broker_breaker,
                store_breaker=store_breaker,
                older_than_seconds=OVERDUE,
                every_seconds=OVERDUE / 4,
                lease_seconds=self.lease,
            ),
            ahead=ReadAhead(
                consumer=self.consumer,
                health=handler_caller.health,
                observer=self.observer,
                broker_breaker=broker_breaker,
                clock=self.clock,
            ),
        )

    def _handler_caller(self, store_breaker: CircuitBreaker) -> HandlerCaller:
        dead_letter_publisher = DeadLetterPublisher(
            context="sea",
            inbox=self.inbox,
            publisher=self.dlq,
            observer=self.observer,
            breaker=self._gate("dead letters"),
            store_breaker=store_breaker,
            clock=self.clock,
            lease_seconds=self.lease,
        )
        backoff = Backoff(base_seconds=1.0, cap_seconds=600.0, random=lambda: 0.5)
        self.health = HandlerHealth(
            breaker=self._gate("handler"),
            observer=self.observer,
            clock=self.clock,
            backoff=backoff,
            slow_after=SLOW_AFTER,
            per_second=PER_SECOND,
            slow_calls_max=CONCURRENCY // 2,
        )
        return HandlerCaller(
            handler=self.handler,
            health=self.health,
            dead_letter_publisher=dead_letter_publisher,
            backoff=backoff,
            attempts_max=ATTEMPTS_MAX,
        )

    def _gate(self, name: str) -> CircuitBreaker:
        backoff = Backoff(base_seconds=0.2, cap_seconds=2.0, random=lambda: 1.0)
        return CircuitBreaker(name=name, backoff=backoff, observer=self.observer, clock=self.clock)


def always(behaviour: Behaviour) -> Any:
    return lambda _request, _call: behaviour

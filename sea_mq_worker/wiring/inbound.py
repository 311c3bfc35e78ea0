"""The inbound side: JetStream -> inbox -> handler."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import asyncpg

from sea_mq_worker.connections import open_batch_handler, open_handler
from sea_mq_worker.errors import ContractError, LimitsError, WorkerError
from sea_mq_worker.inbox.completion import CompletionBatcher
from sea_mq_worker.inbox.consumer import InboxConsumer, recover_exhausted
from sea_mq_worker.inbox.dead_letter import DeadLetterPublisher
from sea_mq_worker.inbox.health import HandlerHealth, resume_requested
from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler
from sea_mq_worker.inbox.jetstream import NatsExhaustedMessages, NatsJetStreamConsumer
from sea_mq_worker.inbox.leases import CallSlots, InboxLeases, InFlight
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter, PostgresResumptions
from sea_mq_worker.inbox.rescue import OrphanFinder, ReadAhead, ReturnedMessages
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo
from sea_mq_worker.operators.checks import HandledDurable, PostgresHandledDurables, conflicts
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.outbox.maintenance import PeriodicTask
from sea_mq_worker.ports import EventHandler, InboxRepository, JetStreamPublisher
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, call_when_available
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.runtime.takeover import AbandonedDeliveries
from sea_mq_worker.runtime.waiting import StoppedError
from sea_mq_worker.settings import ConsumerSettings, SettingsError
from sea_mq_worker.wiring.context import WorkerContext
from sea_mq_worker.wiring.watch import missed_message_loop

# --- Refuse two handlers on one inbox before any message is fetched.

_EVERY_SECONDS = 60.0
_DIGEST_CHARS = 8


class InboxSharing:
    """Records the durables of this worker, as far as they exist, for the workers of other handlers."""

    def __init__(
        self, base: WorkerContext, pool: asyncpg.Pool, consumers: Sequence[NatsJetStreamConsumer]
    ) -> None:
        self._base = base
        self._durables = PostgresHandledDurables(pool=pool)
        self._consumers = consumers
        self._handler = handler_name(base.settings.handler_url)

    async def start(self) -> None:
        """Begin, and remove the records at the end; raises as ``begin``."""
        await self._base.connect(self.begin, "PostgreSQL")
        self._base.stack.push_async_callback(self._remove)

    async def begin(self) -> None:
        """Record the durables.

        Raises:
            ContractError: another handler's worker consumes some of the same subjects by another durable.
        """
        for mine, theirs in conflicts(self._own, await self._durables.others(self._handler)):
            raise ContractError(_conflict(mine, theirs, self._base.settings.database_schema))
        await self._record()

    def loop(self, breaker: CircuitBreaker) -> Loop:
        """Return the loop that keeps the records."""
        return PeriodicTask(work=self._record, store_breaker=breaker, seconds=_EVERY_SECONDS).run

    @property
    def _own(self) -> list[HandledDurable]:
        return [
            HandledDurable(stream=one.stream, durable=one.name, handler=self._handler, subjects=one.subjects)
            for one in self._consumers
            if one.is_known
        ]

    async def _record(self) -> None:
        await self._durables.record(self._own)

    async def _remove(self) -> None:
        with contextlib.suppress(WorkerError):
            await self._durables.remove(self._own)


def handler_name(url: str) -> str:
    """Name a handler without possible secrets: a hash stands for its path and query."""
    parts = urlsplit(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{parts.scheme}://{parts.netloc} ({digest})"


def _conflict(mine: HandledDurable, theirs: HandledDurable, schema: str) -> str:
    return (
        f"consumers {mine.durable} and {theirs.durable} of stream {mine.stream} take some of the same"
        f" subjects for two handlers, {mine.handler} and {theirs.handler}. With the tables in schema"
        f" {schema} each message would reach only one of them. Give each handler its own schema"
        " (SEA_MQ_DATABASE_SCHEMA). If this worker replaces the other, stop the other first"
    )


_PROBE_MAX_SECONDS = 2.0
_SICK_PROBE_MAX_SECONDS = 5.0
_HEARTBEATS_PER_LEASE = 3
_RESUME_SECONDS = 2.0
"""Interval between queries for resume requests, while an event type is slow."""
_ORPHAN_SEARCH_SECONDS = 60.0
"""Longest interval between two searches for orphans."""


async def inbound_loops(
    base: WorkerContext,
) -> tuple[NatsConnection, Sequence[NatsJetStreamConsumer], dict[str, Loop]]:
    """Build one consumer loop for each durable, and one loop that recovers exhausted messages.

    Returns the connection, the consumers and the loops.
    """
    s = base.settings
    pool = await base.pool("inbox")
    connection = await base.nats("inbox")
    inbox = PostgresInboxAdapter(pool=pool, worker=base.name, session=base.session_id)
    store_breaker = base.breaker("inbox database", cap_seconds=_PROBE_MAX_SECONDS)
    leases = inbox_leases(base, inbox, store_breaker)
    dead_letters = dead_letter_publisher(base, leases, await _dead_letter_stream(base, connection))
    health = handler_health(base)
    build = partial(
        inbox_loop, base, handler=_handler(base), health=health, leases=leases, dead_letters=dead_letters
    )
    consumers = [await _consumer(base, connection, durable) for durable in s.consumers]
    sharing = InboxSharing(base, pool, consumers)
    await sharing.start()
    consuming: dict[tuple[str, str], InboxConsumer] = {}
    loops = {
        "consumers of the inbox": sharing.loop(store_breaker),
        "missed messages": await missed_message_loop(base, connection, pool, store_breaker, consuming),
    }
    if base.takeover is not None:
        base.takeover.sides["inbox"] = AbandonedDeliveries(
            inbox=inbox,
            consumers={(consumer.stream, consumer.name): consumer for consumer in consumers},
            backoff=_backoff(base),
        ).take_over
    for consumer in consumers:
        loops[f"inbox {consumer.name}"] = _consumer_loop(base, consumer, build, sharing, consuming)
    recovering = partial(
        recover_exhausted,
        await _exhausted_messages(base, connection),
        consuming,
        base.breaker("exhausted messages", cap_seconds=_PROBE_MAX_SECONDS),
    )
    resuming = partial(
        resume_requested,
        PostgresResumptions(pool=pool),
        health,
        base.events,
        every_seconds=_RESUME_SECONDS,
    )
    return connection, consumers, loops | {"max deliveries": recovering, "resume": resuming}


def inbox_leases(base: WorkerContext, inbox: InboxRepository, store_breaker: CircuitBreaker) -> InboxLeases:
    return InboxLeases(
        inbox=inbox,
        store_breaker=store_breaker,
        events=base.events,
        clock=base.clock,
        lease_seconds=base.settings.inbox_lease_seconds,
        session_lost_since=base.session_lost_since,
    )


def _consumer_loop(
    base: WorkerContext,
    consumer: NatsJetStreamConsumer,
    build: Callable[[NatsJetStreamConsumer, CircuitBreaker], InboxConsumer],
    sharing: InboxSharing,
    consuming: dict[tuple[str, str], InboxConsumer],
) -> Loop:
    """Return a loop that waits for its durable if need be: its limits are the loop's, too."""
    breaker = base.breaker(f"consumer {consumer.name}", cap_seconds=_PROBE_MAX_SECONDS)

    async def begin() -> None:
        await consumer.start()
        await sharing.begin()

    async def run(stop: asyncio.Event) -> None:
        if not consumer.is_known:
            try:
                await call_when_available(begin, breaker=breaker, stop=stop)
            except StoppedError:
                return
        loop = build(consumer, breaker)
        consuming[consumer.stream, consumer.name] = loop
        await loop.run(stop)

    return run


def inbox_loop(
    base: WorkerContext,
    consumer: NatsJetStreamConsumer,
    broker_breaker: CircuitBreaker,
    *,
    handler: EventHandler,
    health: HandlerHealth,
    leases: InboxLeases,
    dead_letters: DeadLetterPublisher,
) -> InboxConsumer:
    """Build the loop of one durable; the handler's side is shared by all of them."""
    s = base.settings
    in_flight = InFlight(
        messages_max=min(s.in_flight_max, consumer.max_ack_pending),
        bytes_max=max(1, s.inbox_bytes_max // len(s.consumers)),
    )
    again_seconds = max(consumer.ack_wait_seconds, leases.lease_seconds)
    return InboxConsumer(
        consumer=consumer,
        handler=handler,
        health=health,
        leases=leases,
        dead_letters=dead_letters,
        backoff=_backoff(base),
        attempts_max=s.inbox_attempts_max,
        in_flight=in_flight,
        completion=CompletionBatcher(
            consumer=consumer,
            leases=leases,
            events=base.events,
            in_flight=in_flight,
            returned=ReturnedMessages(consumer, base.clock),
        ),
        events=base.events,
        broker_breaker=broker_breaker,
        # messages that share calls are bounded by the client's requests
        calls=CallSlots(in_flight.capacity if s.handler_batch_url else s.handler_concurrency),
        heartbeat_seconds=min(consumer.ack_wait_seconds, s.inbox_lease_seconds) / _HEARTBEATS_PER_LEASE,
        siblings=frozenset(durable.durable for durable in s.consumers),
        orphans=OrphanFinder(
            consumer=consumer,
            leases=leases,
            events=base.events,
            broker_breaker=broker_breaker,
            older_than_seconds=2 * again_seconds,
            every_seconds=min(_ORPHAN_SEARCH_SECONDS, 2 * again_seconds),
        ),
        ahead=ReadAhead(
            consumer=consumer,
            health=health,
            events=base.events,
            broker_breaker=broker_breaker,
            clock=base.clock,
        ),
    )


async def _exhausted_messages(base: WorkerContext, connection: NatsConnection) -> NatsExhaustedMessages:
    s = base.settings
    exhausted = NatsExhaustedMessages(
        connection=connection,
        stream=s.advisory_stream,
        durable=f"{s.context}__max_deliveries",
        consumers=[(durable.stream, durable.durable) for durable in s.consumers],
        on_event=lambda event, text: base.events.emit(event, text=text),
    )
    await base.connect(exhausted.start, f"stream {s.advisory_stream}")
    base.stack.push_async_callback(exhausted.close)
    return exhausted


async def _dead_letter_stream(base: WorkerContext, connection: NatsConnection) -> NatsJetStreamPublisher:
    s = base.settings
    publisher = NatsJetStreamPublisher(
        connection=connection,
        stream=s.dlq_stream,
        mode="pipeline",
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
    )
    await base.connect(publisher.start, f"stream {s.dlq_stream}")
    return publisher


def dead_letter_publisher(
    base: WorkerContext, leases: InboxLeases, stream: JetStreamPublisher
) -> DeadLetterPublisher:
    return DeadLetterPublisher(
        context=base.settings.context,
        inbox=leases.inbox,
        publisher=stream,
        events=base.events,
        breaker=base.breaker(f"stream {base.settings.dlq_stream}", cap_seconds=_PROBE_MAX_SECONDS),
        store_breaker=leases.store_breaker,
        clock=base.clock,
        lease_seconds=leases.lease_seconds,
    )


def _handler(base: WorkerContext) -> EventHandler:
    http = _handler_client(base)
    base.stack.push_async_callback(http.close)
    if not base.settings.tracing:
        return http
    from sea_mq_worker.telemetry.tracing import TracedHandler  # noqa: PLC0415 - imports OpenTelemetry

    return TracedHandler(http, base.settings.handler_batch_url or base.settings.handler_url)


def _handler_client(base: WorkerContext) -> HttpEventHandler | HttpBatchHandler:
    s = base.settings
    concurrency = s.handler_concurrency * len(s.consumers)
    if not s.handler_batch_url:
        return open_handler(s, concurrency=concurrency)

    def report(error: str) -> None:
        base.events.emit("handler_batch_failed", text=error)

    return open_batch_handler(s, concurrency=concurrency, on_failed=report)


def handler_health(base: WorkerContext) -> HandlerHealth:
    s = base.settings
    health = HandlerHealth(
        breaker=base.breaker("handler", cap_seconds=_SICK_PROBE_MAX_SECONDS),
        events=base.events,
        clock=base.clock,
        backoff=_backoff(base),
        slow_after=s.handler_slow_after,
        per_second=s.handler_slow_failures_per_second,
        slow_calls_max=max(1, s.handler_concurrency * len(s.consumers) // 2),
        silent_after_seconds=s.handler_timeout_seconds / 2,
    )
    base.readiness.check("handler", lambda: health.trouble)
    base.readiness.warn = health.warnings
    return health


def _backoff(base: WorkerContext) -> Backoff:
    s = base.settings
    return base.backoff(base_seconds=s.inbox_backoff_seconds, cap_seconds=s.inbox_backoff_max_seconds)


async def _consumer(
    base: WorkerContext, connection: NatsConnection, durable: ConsumerSettings
) -> NatsJetStreamConsumer:
    """Bind to a durable; one that is missing or unfit pauses its own loop alone."""
    what = f"consumer {durable.durable} of stream {durable.stream}"

    def objection(info: ConsumerInfo) -> str:
        s = base.settings
        if s.handler_timeout_seconds >= info.ack_wait_seconds:
            limit = f"{info.ack_wait_seconds:g}, ack_wait of {what}"
            return f"SEA_MQ_HANDLER_TIMEOUT_SECONDS: must be below {limit}"
        if 0 < info.max_deliver <= s.inbox_attempts_max:
            return f"SEA_MQ_INBOX_ATTEMPTS_MAX: must be below {info.max_deliver}, max_deliver of {what}"
        return ""

    consumer = NatsJetStreamConsumer(
        connection=connection, stream=durable.stream, durable=durable.durable, objection=objection
    )
    base.stack.push_async_callback(consumer.close)
    try:
        await base.connect(consumer.start, what)
    except LimitsError as error:
        raise SettingsError(str(error)) from error
    except ContractError:
        pass  # its loop waits for it, and reports that
    return consumer

"""The inbound side: JetStream -> inbox -> handler."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from sea_mq_worker.connections import open_batch_handler, open_handler
from sea_mq_worker.errors import ContractError, LimitsError
from sea_mq_worker.inbox.consumer import InboxConsumer, recover_exhausted
from sea_mq_worker.inbox.dead_letter import DeadLetterPublisher
from sea_mq_worker.inbox.health import HandlerHealth, resume_requested
from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler
from sea_mq_worker.inbox.jetstream import NatsExhaustedMessages, NatsJetStreamConsumer
from sea_mq_worker.inbox.leases import InboxLeases
from sea_mq_worker.inbox.missed import MissedMessageCheck
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter, PostgresResumptions
from sea_mq_worker.inbox.sharing import InboxSharing, handler_name
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.ports import EventHandler, InboxRepository, JetStreamPublisher
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, call_when_available, periodic
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.runtime.takeover import AbandonedDeliveries
from sea_mq_worker.runtime.waiting import StoppedError
from sea_mq_worker.settings import ConsumerSettings, SettingsError
from sea_mq_worker.wiring.context import WorkerContext

_PROBE_MAX_SECONDS = 2.0
_SICK_PROBE_MAX_SECONDS = 5.0
_RESUME_SECONDS = 2.0
"""Interval between queries for resume requests, while an event type is slow."""
_MISSED_CHECK_SECONDS = 60.0
_SHARING_SECONDS = 60.0


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
    sharing = InboxSharing(
        pool=pool, consumers=consumers, handler=handler_name(s.handler_url), schema=s.database_schema
    )
    await base.connect(sharing.begin, "PostgreSQL")
    base.stack.push_async_callback(sharing.end)
    consuming: dict[tuple[str, str], InboxConsumer] = {}
    missed = MissedMessageCheck(
        connection=connection,
        pool=pool,
        events=base.events,
        durables=[(consumer.stream, consumer.name) for consumer in consumers],
        consuming=consuming,
    )
    await base.connect(lambda: missed.run(base.stop), "PostgreSQL")

    async def check_missed(stop: asyncio.Event) -> None:
        work = partial(missed.run, stop)
        await periodic(work, breaker=store_breaker, seconds=_MISSED_CHECK_SECONDS)(stop)

    record = periodic(sharing.record, breaker=store_breaker, seconds=_SHARING_SECONDS)
    loops: dict[str, Loop] = {"consumers of the inbox": record, "missed messages": check_missed}
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
    return InboxConsumer(
        consumer=consumer,
        handler=handler,
        health=health,
        leases=leases,
        dead_letters=dead_letters,
        backoff=_backoff(base),
        events=base.events,
        broker_breaker=broker_breaker,
        ack_wait_seconds=consumer.ack_wait_seconds,
        attempts_max=s.inbox_attempts_max,
        messages_max=min(s.in_flight_max, consumer.max_ack_pending),
        bytes_max=max(1, s.inbox_bytes_max // len(s.consumers)),
        calls_max=None if s.handler_batch_url else s.handler_concurrency,
        siblings=frozenset(durable.durable for durable in s.consumers),
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
    consumer = NatsJetStreamConsumer(
        connection=connection,
        stream=durable.stream,
        durable=durable.durable,
        handler_timeout_seconds=base.settings.handler_timeout_seconds,
        attempts_max=base.settings.inbox_attempts_max,
    )
    base.stack.push_async_callback(consumer.close)
    try:
        await base.connect(consumer.start, what)
    except LimitsError as error:
        raise SettingsError(str(error)) from error
    except ContractError:
        pass  # its loop waits for it, and reports that
    return consumer

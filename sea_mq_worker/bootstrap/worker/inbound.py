"""The inbound side: JetStream -> inbox -> handler."""

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.consumer import NatsJetStreamConsumer
from sea_mq_worker.adapters.nats.consume.max_deliveries import NatsStrandedMessages
from sea_mq_worker.adapters.nats.publish.publisher import NatsJetStreamPublisher
from sea_mq_worker.adapters.postgres.inbox import PostgresInboxAdapter
from sea_mq_worker.adapters.postgres.resumptions import PostgresResumptions
from sea_mq_worker.application.circuit_breaker import Gate
from sea_mq_worker.application.inbox.completion import Closing
from sea_mq_worker.application.inbox.consumer import InboxConsumer
from sea_mq_worker.application.inbox.dead_lettering import Burial
from sea_mq_worker.application.inbox.handler_call import Handle
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.inbox.max_deliveries import Rescuer
from sea_mq_worker.application.inbox.orphans import Leftovers
from sea_mq_worker.application.inbox.read_ahead import ReadAhead
from sea_mq_worker.application.inbox.receiving import Reception
from sea_mq_worker.application.inbox.resume_requests import Resuming
from sea_mq_worker.application.inbox.returned_messages import GivenBackMessages
from sea_mq_worker.application.readiness import SLOW_TYPES
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.bootstrap.worker.context import Base
from sea_mq_worker.bootstrap.worker.inbox_sharing import share_inbox
from sea_mq_worker.bootstrap.worker.missed_messages import unseen_looks
from sea_mq_worker.bootstrap.worker.telemetry import traced_handler
from sea_mq_worker.connections.handler import open_handler
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.connections.startup_retry import wait_for
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.settings import ConsumerSettings, SettingsError

_PROBE_MAX_SECONDS = 2.0
_SICK_PROBE_MAX_SECONDS = 5.0
_HEARTBEATS_PER_LEASE = 3
_RESUME_SECONDS = 2.0
"""How often what operators resumed is asked for, while an event type is slow."""
_LEFTOVERS_SECONDS = 60.0
"""How often messages without a delivery are looked for, at the rarest."""


async def inbound_loops(base: Base) -> tuple[NatsConnection, dict[str, Loop]]:
    """Put one consumer loop together for each durable, and one loop that rescues what was given up on.

    Returns the loops, and the connection that they share.
    """
    s = base.settings
    pool = await wait_for(
        lambda: open_pool(s, purpose="inbox"), what="PostgreSQL", observer=base.observer, stop=base.stop
    )
    base.stack.push_async_callback(pool.close)
    connection, loops = await base.nats("inbox")
    inbox = PostgresInboxAdapter(pool=pool, worker=base.name)
    store_gate = base.gate("inbox database", cap_seconds=_PROBE_MAX_SECONDS)
    burial = await _burial(base, connection, inbox, store_gate)
    handle = _handle(base, burial)
    reception = Reception(
        inbox=inbox, store_gate=store_gate, observer=base.observer, lease_seconds=s.inbox_lease_seconds
    )
    consumers = [await _consumer(base, connection, durable) for durable in s.consumers]
    loops["consumers of the inbox"] = await share_inbox(base, pool, consumers, store_gate)
    loops["unseen messages"] = await unseen_looks(base, connection, pool, store_gate)
    consuming = {}
    for consumer in consumers:
        loop = _inbox_loop(base, consumer, inbox, reception, handle)
        consuming[consumer.stream, consumer.name] = loop
        loops[f"inbox {consumer.name}"] = loop.run
    rescuer = Rescuer(
        stranded=await _stranded(base, connection),
        loops=consuming,
        broker_gate=base.gate("stranded messages", cap_seconds=_PROBE_MAX_SECONDS),
    )
    resuming = Resuming(
        resumptions=PostgresResumptions(pool=pool),
        health=handle.health,
        observer=base.observer,
        seconds=_RESUME_SECONDS,
    )
    return connection, loops | {"rescue": rescuer.run, "resume": resuming.run}


def _inbox_loop(
    base: Base,
    consumer: NatsJetStreamConsumer,
    inbox: InboxRepository,
    reception: Reception,
    handle: Handle,
) -> InboxConsumer:
    s = base.settings
    broker_gate = base.gate(f"consumer {consumer.name}", cap_seconds=_PROBE_MAX_SECONDS)
    closing = Closing(
        consumer=consumer,
        inbox=inbox,
        reception=reception,
        observer=base.observer,
        store_gate=reception.store_gate,
        clock=base.clock,
        given_back=GivenBackMessages(base.clock),
    )
    return InboxConsumer(
        consumer=consumer,
        inbox=inbox,
        reception=reception,
        handle=handle,
        closing=closing,
        observer=base.observer,
        broker_gate=broker_gate,
        clock=base.clock,
        concurrency=min(s.handler_concurrency, consumer.max_ack_pending),
        bytes_max=max(1, s.inbox_bytes_max // len(s.consumers)),
        heartbeat_seconds=min(consumer.ack_wait_seconds, s.inbox_lease_seconds) / _HEARTBEATS_PER_LEASE,
        lease_seconds=s.inbox_lease_seconds,
        siblings=frozenset(durable.durable for durable in s.consumers),
        leftovers=_leftovers(base, consumer, inbox, broker_gate, reception.store_gate),
        ahead=_ahead(base, consumer, broker_gate, handle.health),
    )


def _ahead(
    base: Base, consumer: NatsJetStreamConsumer, broker_gate: Gate, health: HandlerHealth
) -> ReadAhead:
    return ReadAhead(
        consumer=consumer, health=health, observer=base.observer, broker_gate=broker_gate, clock=base.clock
    )


def _leftovers(
    base: Base,
    consumer: NatsJetStreamConsumer,
    inbox: InboxRepository,
    broker_gate: Gate,
    store_gate: Gate,
) -> Leftovers:
    again_seconds = max(consumer.ack_wait_seconds, base.settings.inbox_lease_seconds)
    return Leftovers(
        consumer=consumer,
        inbox=inbox,
        observer=base.observer,
        broker_gate=broker_gate,
        store_gate=store_gate,
        older_than_seconds=2 * again_seconds,
        every_seconds=min(_LEFTOVERS_SECONDS, 2 * again_seconds),
        lease_seconds=base.settings.inbox_lease_seconds,
    )


async def _stranded(base: Base, connection: NatsConnection) -> NatsStrandedMessages:
    s = base.settings
    stranded = NatsStrandedMessages(
        connection=connection,
        stream=s.advisory_stream,
        durable=f"{s.context}__max_deliveries",
        consumers=[(durable.stream, durable.durable) for durable in s.consumers],
        on_event=lambda event, text: base.observer.observe(Noticed(event=event, text=text)),
    )
    what = f"stream {s.advisory_stream}"
    await wait_for(stranded.start, what=what, observer=base.observer, stop=base.stop)
    base.stack.push_async_callback(stranded.close)
    return stranded


async def _burial(base: Base, connection: NatsConnection, inbox: InboxRepository, store_gate: Gate) -> Burial:
    s = base.settings
    publisher = NatsJetStreamPublisher(
        connection=connection,
        stream=s.dlq_stream,
        mode="pipeline",
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
    )
    await wait_for(publisher.start, what=f"stream {s.dlq_stream}", observer=base.observer, stop=base.stop)
    return Burial(
        context=s.context,
        inbox=inbox,
        publisher=publisher,
        observer=base.observer,
        gate=base.gate(f"stream {s.dlq_stream}", cap_seconds=_PROBE_MAX_SECONDS),
        store_gate=store_gate,
        clock=base.clock,
        lease_seconds=s.inbox_lease_seconds,
    )


def _handle(base: Base, burial: Burial) -> Handle:
    s = base.settings
    http = open_handler(s, concurrency=s.handler_concurrency * len(s.consumers))
    base.stack.push_async_callback(http.close)
    handler = traced_handler(base, http) if s.tracing else http
    return Handle(
        handler=handler,
        health=_health(base),
        burial=burial,
        backoff=_backoff(base),
        attempts_max=s.inbox_attempts_max,
    )


def _health(base: Base) -> HandlerHealth:
    s = base.settings
    health = HandlerHealth(
        gate=base.gate("handler", cap_seconds=_SICK_PROBE_MAX_SECONDS),
        observer=base.observer,
        clock=base.clock,
        backoff=_backoff(base),
        slow_after=s.handler_slow_after,
        per_second=s.handler_slow_failures_per_second,
        slow_calls_max=max(1, s.handler_concurrency * len(s.consumers) // 2),
    )
    base.readiness.check(SLOW_TYPES, health.reasons)
    return health


def _backoff(base: Base) -> Backoff:
    s = base.settings
    return base.backoff(base_seconds=s.inbox_backoff_seconds, cap_seconds=s.inbox_backoff_max_seconds)


async def _consumer(
    base: Base, connection: NatsConnection, durable: ConsumerSettings
) -> NatsJetStreamConsumer:
    consumer = NatsJetStreamConsumer(connection=connection, stream=durable.stream, durable=durable.durable)
    what = f"consumer {durable.durable} of stream {durable.stream}"
    await wait_for(consumer.start, what=what, observer=base.observer, stop=base.stop)
    base.stack.push_async_callback(consumer.close)
    s = base.settings
    if s.handler_timeout_seconds >= consumer.ack_wait_seconds:
        raise SettingsError(
            f"SEA_MQ_HANDLER_TIMEOUT_SECONDS: must be below {consumer.ack_wait_seconds:g}, ack_wait of {what}"
        )
    if 0 < consumer.max_deliver <= s.inbox_attempts_max:
        raise SettingsError(
            f"SEA_MQ_INBOX_ATTEMPTS_MAX: must be below {consumer.max_deliver}, max_deliver of {what}"
        )
    return consumer

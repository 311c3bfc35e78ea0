"""A doubtful event in a stream that others keep busy: found, or sent, in a time that is told."""

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.publisher import NatsJetStreamPublisher
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.claim_size import MemoryBudget
from sea_mq_worker.application.dedup_window import StreamSearches
from sea_mq_worker.application.outbox.batch_publisher import BatchPublisher
from sea_mq_worker.application.outbox.pace import Pace
from sea_mq_worker.application.outbox.publisher import OutboxPublisher
from sea_mq_worker.application.outbox.settlement import Settlement
from sea_mq_worker.application.polling import PollingWakeup
from sea_mq_worker.domain.facts import CircuitOpened, EventPostponed, EventPublished
from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.retry import Backoff, RetryPolicy
from sea_mq_worker.testing.observer import RecordingObserver
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxTable
from tests.support.jetstream import connected, create_stream

PER_SECOND = 5_000
STORED_BEFORE = 300_000
"""A minute of it."""
SEARCH_SECONDS = 1.0
"""Far less than a search of all that takes."""
WINDOW_SECONDS = 2.0
BATCH = 500


@pytest.mark.long
async def test_a_possibly_published_event_in_a_busy_stream_is_settled(
    nats_url: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with connected(nats_url) as connection, connected(nats_url) as others:
        await create_stream(
            connection,
            names,
            f"{names}.event.>",
            allow_batched=True,
            duplicate_window=int(WINDOW_SECONDS * 1e9),
        )
        table = OutboxTable(time.monotonic)
        observer = RecordingObserver()
        lane = await relay(connection, names, table, observer)
        busy = await started(others, names)
        began = time.monotonic()
        stored = str(uuid.uuid4())
        await publish(busy, names, stored)
        for _ in range(STORED_BEFORE // BATCH):
            await publish(busy, names)
        async with kept_busy(busy, names) as sent:
            for event_id in (stored, "never stored"):
                table.add(event_id)
                row = table.rows[event_id]
                row.first_attempt_at, row.attempts, row.error = began, 1, "no acknowledgement"
            began = time.monotonic()
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(lane.run(stop))
                await observer.seen(EventPublished, count=2, within=120.0)
                stop.set()
            seconds = time.monotonic() - began
            rate = (sent[0] * BATCH) / seconds

    searches = 1 + sum(fact.outbox_id == "never stored" for fact in observer.of(EventPostponed))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{STORED_BEFORE} messages, {rate:.0f} more a second: a doubtful event that the stream has and "
            f"one that it has not, are settled after {seconds:.1f} s and {searches} searches of "
            f"{SEARCH_SECONDS:g} s\n"
        )
    assert searches > 2, "one search was enough: the stream was not busy"
    assert not observer.of(CircuitOpened)
    assert {row.failures for row in table.rows.values()} == {0}
    assert table.rows[stored].stream_seq <= BATCH
    assert table.rows["never stored"].stream_seq > STORED_BEFORE


async def started(connection: NatsConnection, stream: str, **given: float) -> NatsJetStreamPublisher:
    publisher = NatsJetStreamPublisher(connection=connection, stream=stream, mode="fast", **given)
    await publisher.start()
    return publisher


async def publish(publisher: NatsJetStreamPublisher, context: str, first: str | None = None) -> None:
    """Store a batch of events of the same type."""
    batch = []
    for number in range(BATCH):
        message_id = first if first and not number else str(uuid.uuid4())
        subject = f"{context}.event.order.created.v1"
        batch.append(OutboundMessage(message_id, subject, b"{}", {MSG_ID: message_id}))
    await publisher.publish_batch(batch, timeout_seconds=30.0)


@contextlib.asynccontextmanager
async def kept_busy(publisher: NatsJetStreamPublisher, context: str) -> AsyncIterator[list[int]]:
    """Store so many a second meanwhile; what is yielded counts the batches."""
    sent = [0]

    async def go_on() -> None:
        due = time.monotonic()
        while True:
            await publish(publisher, context)
            sent[0] += 1
            due += BATCH / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    task = asyncio.create_task(go_on())
    try:
        yield sent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def relay(
    connection: NatsConnection, context: str, table: OutboxTable, observer: RecordingObserver
) -> OutboxPublisher:
    publisher = await started(connection, context, find_timeout_seconds=SEARCH_SECONDS)
    backoff = Backoff(base_seconds=0.1, cap_seconds=1.0, random=lambda: 1.0)
    broker, store = (
        CircuitBreaker(name=name, backoff=backoff, observer=observer, clock=time.monotonic)
        for name in ("broker", "store")
    )
    return OutboxPublisher(
        outbox=InMemoryOutbox(
            table=table,
            worker="w1",
            lease_seconds=60.0,
            ordered=False,
            hold_dead_keys=False,
            failures_max=3,
            random=lambda: 0.5,
        ),
        publishing=BatchPublisher(
            context=context,
            source=f"/{context}",
            publisher=publisher,
            policy=RetryPolicy(
                backoff=backoff,
                failures_max=3,
                age_max_seconds=3600.0,
                duplicate_window_seconds=publisher.duplicate_window_seconds,
            ),
            broker_breaker=broker,
            searches=StreamSearches(context=context, observer=observer),
            clock=time.monotonic,
            timeout_seconds=10.0,
            search_seconds=20.0,
            hold_dead_keys=False,
            session_lost_since=lambda _: False,
        ),
        settlement=Settlement(
            context=context,
            observer=observer,
            store_breaker=store,
            clock=time.monotonic,
            lease_seconds=60.0,
        ),
        deferred=None,
        pace=Pace(
            wakeup=PollingWakeup(),
            clock=time.monotonic,
            linger_seconds=0.005,
            poll_seconds=0.5,
            random=backoff.random,
        ),
        broker_breaker=broker,
        store_breaker=store,
        clock=time.monotonic,
        batch_max=10,
        batch_bytes_max=2**20,
        batches_max=1,
        room=MemoryBudget(2**22),
    )

"""Events of one ordering key reach the stream in the order of their insertion, whoever publishes them."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Literal

import asyncpg
import pytest

from sea_mq_worker.adapters.nats.publish.publisher import NatsJetStreamPublisher
from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS
from sea_mq_worker.adapters.postgres.outbox import PostgresOutboxAdapter
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.claim_size import MemoryBudget
from sea_mq_worker.application.dedup_window import StreamSearches
from sea_mq_worker.application.outbox.batch_publisher import BatchPublisher
from sea_mq_worker.application.outbox.publisher import OutboxPublisher
from sea_mq_worker.application.outbox.settlement import Settlement
from sea_mq_worker.application.polling import PollingWakeup
from sea_mq_worker.domain.facts import EventPostponed, EventPublished
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import FailedTransiently, PublishOutcome, Unsent
from sea_mq_worker.domain.retry import Backoff, RetryPolicy
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult
from sea_mq_worker.ports.jetstream import JetStreamPublisher
from sea_mq_worker.producer import enqueue
from sea_mq_worker.testing.observer import RecordingObserver
from tests.support.builders import enqueueable
from tests.support.jetstream import connected, create_stream, stored_messages
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.waiting import eventually

KEYS = 200
EVENTS_PER_KEY = 10
FAILING = 0.05
LEASE_SECONDS = 30.0
UNFINISHED = "SELECT count(*) FROM outbox_events WHERE state <> 'PUBLISHED'"


class Flaky:
    """A publisher whose stream does not take some messages at the first try; the rest goes through."""

    def __init__(self, inner: JetStreamPublisher, chance: random.Random) -> None:
        self._inner = inner
        self._chance = chance

    @property
    def connected(self) -> bool:
        return self._inner.connected

    @property
    def keeps_order(self) -> bool:
        return self._inner.keeps_order

    @property
    def duplicate_window_seconds(self) -> float:
        return self._inner.duplicate_window_seconds

    @property
    def max_payload(self) -> int:
        return self._inner.max_payload

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        return await self._inner.publish(subject, payload, headers)

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float
    ) -> Sequence[PublishOutcome]:
        failing = [self._chance.random() < FAILING for _ in messages]
        if self.keeps_order and True in failing:
            sent = failing.index(True)
            outcomes = await self._publish(messages[:sent], timeout_seconds)
            return [
                *outcomes,
                FailedTransiently("not now"),
                *[Unsent("behind it")] * (len(messages) - sent - 1),
            ]
        through = [message for message, fails in zip(messages, failing, strict=True) if not fails]
        answers = iter(await self._publish(through, timeout_seconds))
        return [FailedTransiently("not now") if fails else next(answers) for fails in failing]

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        return await self._inner.find(wanted)

    async def _publish(
        self, messages: Sequence[OutboundMessage], timeout_seconds: float
    ) -> Sequence[PublishOutcome]:
        if not messages:
            return []
        return await self._inner.publish_batch(messages, timeout_seconds=timeout_seconds)


def ordered_lane(
    *,
    worker: str,
    context: str,
    pool: asyncpg.Pool,
    publisher: JetStreamPublisher,
    observer: RecordingObserver,
    chance: random.Random,
) -> OutboxPublisher:
    backoff = Backoff(base_seconds=0.02, cap_seconds=0.1, random=chance.random)
    broker, store = (
        CircuitBreaker(name=name, backoff=backoff, observer=observer, clock=time.monotonic)
        for name in ("broker", "store")
    )
    policy = RetryPolicy(
        backoff=backoff, failures_max=100, age_max_seconds=3600, duplicate_window_seconds=3600
    )
    outbox = PostgresOutboxAdapter(
        pool=pool,
        worker=worker,
        lease_seconds=LEASE_SECONDS,
        ordered=True,
        hold_dead_keys=False,
        failures_max=100,
    )
    return OutboxPublisher(
        outbox=outbox,
        publishing=BatchPublisher(
            context=context,
            source=f"/{context}",
            publisher=publisher,
            policy=policy,
            broker_breaker=broker,
            searches=StreamSearches(context=context, observer=observer),
            clock=time.monotonic,
            timeout_seconds=10,
            search_seconds=20,
            hold_dead_keys=False,
        ),
        settlement=Settlement(
            context=context,
            observer=observer,
            store_breaker=store,
            clock=time.monotonic,
            lease_seconds=LEASE_SECONDS,
        ),
        wakeup=PollingWakeup(),
        broker_breaker=broker,
        store_breaker=store,
        clock=time.monotonic,
        batch_max=100,
        batch_bytes_max=2**20,
        room=MemoryBudget(2**22),
        batches_max=2,
        poll_seconds=0.05,
    )


async def insert_events(database: Database, chance: random.Random) -> dict[str, list[str]]:
    """Commit the events of all keys in a random mix; return ids by key in the order of insertion."""
    keys = [f"key-{number}" for number in range(KEYS)] * EVENTS_PER_KEY
    chance.shuffle(keys)
    inserted = defaultdict(list)
    connection = await asyncpg.connect(database.dsn)
    try:
        async with connection.transaction():
            ids = await enqueue(connection, *(enqueueable(ordering_key=key) for key in keys))
    finally:
        await connection.close()
    for key, event_id in zip(keys, ids, strict=True):
        inserted[key].append(str(event_id))
    return inserted


@pytest.mark.clause("ordering: events of one ordering key keep their order through failures and workers")
@pytest.mark.parametrize("mode", ["pipeline", "fast"])
async def test_two_workers_and_failing_publishes_keep_the_order_of_every_key(
    database: Database, nats_url: str, names: str, mode: Literal["pipeline", "fast"]
) -> None:
    chance = random.Random(47)
    observers = {worker: RecordingObserver() for worker in ("w1", "w2")}
    stop = asyncio.Event()
    stream = f"{names.upper()}_EVENTS"
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(connected(nats_url))
        await create_stream(
            broker, stream, f"{names}.event.>", allow_batched=True, duplicate_window=120 * 10**9
        )
        inserted = await insert_events(database, chance)
        lanes = []
        for worker, observer in observers.items():
            own = await stack.enter_async_context(connected(nats_url))
            pool = await stack.enter_async_context(opened(database, hints=WORKER_HINTS))
            publisher = NatsJetStreamPublisher(
                connection=own, stream=stream, mode=mode, publish_timeout_seconds=10
            )
            await publisher.start()
            lanes.append(
                ordered_lane(
                    worker=worker,
                    context=names,
                    pool=pool,
                    publisher=Flaky(publisher, chance),
                    observer=observer,
                    chance=chance,
                )
            )

        async def finished() -> bool:
            return bool(await pool.fetchval(UNFINISHED) == 0)

        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.run(stop))
            try:
                await eventually(finished, within=40)
            finally:
                stop.set()
        stored = [headers["Nats-Msg-Id"] for *_, headers in await stored_messages(broker, stream)]
    assert all(observer.of(EventPublished) for observer in observers.values())
    assert any(observer.of(EventPostponed) for observer in observers.values())
    place = {event_id: number for number, event_id in enumerate(stored)}
    assert len(place) == len(stored) == KEYS * EVENTS_PER_KEY
    found = {key: sorted(ids, key=place.__getitem__) for key, ids in inserted.items()}
    assert found == inserted

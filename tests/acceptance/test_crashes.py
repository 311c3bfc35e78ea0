"""Nothing is lost and nothing happens twice when the worker is killed again and again (SIGKILL)."""

import random
import signal
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.handlers import Call, handler_server
from tests.support.jetstream import connected, consumer_info, store, stored_messages
from tests.support.servers import Database
from tests.support.site import Effects
from tests.support.waiting import eventually
from tests.support.worker import Deployment, apply_streams, deployment, running

KILLS = 8
EVENTS = 1_600
KEYS = 50
SEED = 47
ROUND = -(-EVENTS // KILLS)

# Leases and patience as short as the settings' relations allow: what a dead worker held is soon free again.
IMPATIENT = {
    "outbox_publish_timeout_seconds": 1,
    "database_timeout_seconds": 2,
    "outbox_lease_seconds": 3,
    "outbox_backoff_max_seconds": 0.5,
    "outbox_failures_max": 100,
    "outbox_batch_max": 50,
    "inbox_lease_seconds": 3,
    "inbox_backoff_seconds": 0.1,
    "inbox_backoff_max_seconds": 0.5,
    "inbox_attempts_max": 100,
    "handler_timeout_seconds": 2,
}
IMPATIENT_CONSUMER = {"ack_wait": 3 * 10**9, "max_deliver": 1000, "max_ack_pending": 1000}


class Traffic:
    """Producers on both sides, who know nothing of the worker's deaths."""

    def __init__(self, target: Deployment, database: asyncpg.Connection, broker: NatsConnection) -> None:
        self._subject = f"{target.upstream}.event.made.v1"
        self._database = database
        self._broker = broker
        self.events: list[str] = []
        self.messages: list[str] = []

    async def go_on(self, message_id: str) -> None:
        """Commit one event, every second one of them with an ordering key, and publish one message."""
        number = len(self.events)
        key = f"key-{number % KEYS}" if number % 2 else None
        async with self._database.transaction():
            ids = await enqueue(self._database, enqueueable(ordering_key=key))
        self.events += map(str, ids)
        await store(self._broker, self._subject, headers={"Nats-Msg-Id": message_id})
        self.messages.append(message_id)


async def killed_in_the_middle(
    target: Deployment, traffic: Traffic, effects: Effects, log: Path, chance: random.Random
) -> None:
    """Kill a worker when a random message of a round has taken effect; the rest comes while it is dead."""
    events = min(ROUND, EVENTS - len(traffic.events))
    ends_at = chance.randrange(events)
    async with running(target, log) as worker:
        await worker.ready()

        async def kill(call: Call, _writer: object) -> None:
            effects.taken[call.message_id] += 1
            del effects.script[call.message_id]
            worker.send(signal.SIGKILL)

        for number in range(events):
            message_id = str(uuid.uuid4())
            if number == ends_at:
                effects.script[message_id] = kill
            await traffic.go_on(message_id)
        assert await worker.ended() == -signal.SIGKILL


async def drained(target: Deployment, database: asyncpg.Connection, broker: NatsConnection) -> bool:
    if await database.fetchval("SELECT EXISTS (SELECT FROM outbox_events WHERE state <> 'PUBLISHED')"):
        return False
    info = await consumer_info(broker, target.upstream_stream, target.durable)
    return not info["num_pending"] and not info["num_ack_pending"]


async def assert_each_event_is_stored_once_in_order(
    target: Deployment, traffic: Traffic, database: asyncpg.Connection, broker: NatsConnection
) -> None:
    stored = await stored_messages(broker, target.stream)
    where = {headers["Nats-Msg-Id"]: seq for seq, _, _, headers in stored}
    assert sorted(headers["Nats-Msg-Id"] for *_, headers in stored) == sorted(traffic.events)
    rows = await database.fetch("SELECT id, stream_seq, ordering_key FROM outbox_events ORDER BY seq")
    assert {str(row["id"]): row["stream_seq"] for row in rows} == where
    by_key = defaultdict(list)
    for row in rows:
        if row["ordering_key"] is not None:
            by_key[row["ordering_key"]].append(row["stream_seq"])
    assert by_key
    assert all(seqs == sorted(seqs) for seqs in by_key.values())


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.clause("event-model: a crash loses no event and leads to no second effect")
@pytest.mark.clause("POL-047-003")
async def test_a_worker_that_is_killed_again_and_again_loses_nothing_and_repeats_no_effect(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    effects = Effects()
    async with handler_server(effects.take) as handler, connected(nats_url) as broker:
        target = deployment(
            context=names,
            database_url=database.dsn,
            nats_url=nats_url,
            handler_url=handler.url,
            **IMPATIENT,
        )
        await apply_streams(target, tmp_path / "streams", consumer=IMPATIENT_CONSUMER)
        connection = await asyncpg.connect(database.dsn)
        try:
            traffic = Traffic(target, connection, broker)
            for _ in range(KILLS):
                await killed_in_the_middle(target, traffic, effects, tmp_path / "worker.log", chance)
            async with running(target, tmp_path / "worker.log") as last:
                await eventually(lambda: drained(target, connection, broker), within=90, what="drained")
                last.send(signal.SIGTERM)
                assert await last.ended() == 0
            await assert_each_event_is_stored_once_in_order(target, traffic, connection, broker)
            assert effects.taken == Counter(traffic.messages)
            processed = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"
            assert await connection.fetchval(processed) == len(traffic.messages) == EVENTS
            attempts = await connection.fetchval("SELECT sum(publish_attempts) FROM outbox_events")
            assert attempts > EVENTS, "no worker died with events in its hands"
            assert effects.calls.total() > EVENTS, "no worker died with messages in its hands"
        finally:
            await connection.close()

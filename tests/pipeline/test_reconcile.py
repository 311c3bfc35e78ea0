"""reconcile on a real outbox, stream and inbox: it names what was planted, and nothing else."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.pipeline import reconcile
from sea_mq_worker.pipeline.verdicts import Verdict
from sea_mq_worker.settings import Settings
from tests.pipeline.reconcile_world import IN_TIME, World, make_world, without_message_id
from tests.pipeline.spark_stages import watched
from tests.support.jetstream import connected

ROWS = 3_000
FAULTS = 10
SHUFFLED_BYTES_A_ROW = 300
"""Of row, message, inbox row and order of an event, and what does not grow with the events."""
JOBS = 27
LOG = logging.getLogger(__name__)


@pytest.fixture
async def world(
    pool: asyncpg.Pool, nats_url: str, names: str, settings_with: Callable[..., Settings]
) -> AsyncIterator[World]:
    settings = settings_with(consumers=f"{names.upper()}_EVENTS/own", **IN_TIME)
    async with connected(nats_url) as connection:
        yield await make_world(pool, connection, settings)


async def test_planted_faults_are_named_and_nothing_else(world: World, spark: SparkSession) -> None:
    late = await _insert_late(world)
    messages = await world.insert(ROWS - FAULTS)
    chosen = iter(random.Random(7).sample(messages[FAULTS : ROWS // 2], 5 * FAULTS))
    lost, altered, moved, doubled, unhandled = ([next(chosen) for _ in range(FAULTS)] for _ in range(5))
    order = _moved_back(messages, moved, by=ROWS // 10)
    changed = {message.id: _altered(message, kind) for kind, message in enumerate(altered)}
    await world.send([changed.get(message.id, message) for message in order])
    sequences = {message.id: seq for seq, message in enumerate(order, start=1)}
    await world.settle(sequences)
    await world.send([without_message_id(message) for message in doubled])
    await world.receive(await world.contents(), "own", without=_ids(unhandled))
    await world.stored.delete(*(sequences[message.id] for message in lost))

    options = {"grace_seconds": 0, "late_seconds": 3600, "on_progress": LOG.info}
    with watched(spark) as work:
        result = await asyncio.to_thread(reconcile, spark, world.settings, **options)

    outbox, inbox = result.hops
    assert {verdict: set(ids) for verdict, ids in outbox.examples.items()} == {
        Verdict.MISSING_IN_STREAM: set(_ids(lost)),
        Verdict.ALTERED: set(_ids(altered)),
        Verdict.OUT_OF_ORDER: set(_ids(moved)),
        Verdict.DUPLICATED: set(_ids(doubled)),
        Verdict.LATE: late,
    }
    assert outbox.verdicts[Verdict.DELIVERED] == ROWS - 5 * FAULTS
    assert outbox.latency
    assert outbox.latency.events == ROWS - FAULTS
    assert outbox.latency.p50 < outbox.latency.p99 < 7000 < outbox.latency.longest
    assert {verdict: set(ids) for verdict, ids in inbox.examples.items()} == {
        Verdict.MISSING_IN_INBOX: set(_ids(unhandled)),
        Verdict.ALTERED: set(_ids(altered[::2])),
    }
    assert result.rows == {world.stream: ROWS, "inbox": ROWS - FAULTS, "outbox": ROWS}
    assert work.shuffled / ROWS < SHUFFLED_BYTES_A_ROW
    assert len(work.jobs) <= JOBS, work.jobs


async def _insert_late(world: World) -> set[str]:
    rows = await world.pool.fetch(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)"
        " SELECT gen_random_uuid(), 'order', 'o', 'order.paid', '{}', now() - interval '2 hours'"
        " FROM generate_series(1, $1::int) RETURNING id::text",
        FAULTS,
    )
    return {row["id"] for row in rows}


def _ids(messages: list[OutboundMessage]) -> list[str]:
    return [message.id for message in messages]


def _moved_back(
    messages: list[OutboundMessage], moved: list[OutboundMessage], *, by: int
) -> list[OutboundMessage]:
    """Send some messages that much later than it was their turn."""
    late = {message.id for message in moved}
    places = {
        message.id: place + (by + 0.5 if message.id in late else 0) for place, message in enumerate(messages)
    }
    return sorted(messages, key=lambda message: places[message.id])


def _altered(message: OutboundMessage, kind: int) -> OutboundMessage:
    if kind % 2:
        return message._replace(headers={**message.headers, "ce-time": "2026-01-01T00:00:00Z"})
    return message._replace(payload=message.payload.replace(b"total", b"Total"))

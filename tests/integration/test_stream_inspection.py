"""Where a message is in streams and what consumers did with it, on nats-server."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.info import consumer_info
from sea_mq_worker.operators.records import ConsumerDelivery, ConsumerState, DeliveryState, StoredMessage
from sea_mq_worker.operators.streams import consumer_state, deliveries, locate, oldest_deliverable
from tests.support.jetstream import create_consumer, create_stream, store


class World:
    """A stream with three messages."""

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self.connection, self.stream = connection, stream
        self.ids = [str(uuid.uuid4()) for _ in range(3)]

    async def located(self, seq: int, **other: Any) -> StoredMessage | None:
        given = {"stream": self.stream, "seq": seq, "message_id": self.ids[0], **other}
        return await locate(self.connection, **given)

    async def take(self, durable: str) -> Any:
        """Fetch a message."""
        jetstream = self.connection.client.jetstream()
        [message] = await (await jetstream.pull_subscribe_bind(durable, stream=self.stream)).fetch(1)
        return message

    async def progress(self, number: int, **which: str) -> list[ConsumerDelivery]:
        """Return what consumers did with the message of this number, from 1."""
        found = await self.located(number, message_id=self.ids[number - 1])
        assert found is not None
        return list(await deliveries(self.connection, found, **which))

    async def state(self, durable: str) -> ConsumerState:
        info = await consumer_info(self.connection, self.stream, durable)
        return await consumer_state(self.connection, info)


@pytest.fixture
async def world(connection: NatsConnection, names: str) -> World:
    await create_stream(connection, names, f"{names}.>")
    made = World(connection, names)
    for message_id in made.ids:
        await store(connection, f"{names}.x", b"{}", {"Nats-Msg-Id": message_id})
    return made


async def test_a_message_is_located_by_its_sequence_and_its_id(world: World) -> None:
    found = await world.located(1)
    assert found is not None
    assert (found.stream, found.seq, found.subject) == (world.stream, 1, f"{world.stream}.x")
    assert await world.located(1, message_id=str(uuid.uuid4())) is None
    assert await world.located(4) is None
    assert await world.located(1, stream=f"{world.stream}_NONE") is None
    await api(world.connection, f"STREAM.PURGE.{world.stream}")
    assert await world.located(1) is None


async def test_the_progress_of_consumers_with_a_message(world: World) -> None:
    for name in ("slow", "holder"):
        await create_consumer(world.connection, world.stream, name)
    taken = [await world.take("holder") for _ in range(2)]
    slow = ConsumerDelivery(consumer="slow", reading=DeliveryState.TO_COME, before=2)
    next_one = ConsumerDelivery(consumer="holder", reading=DeliveryState.TO_COME, before=0)
    assert await world.progress(3) == [next_one, slow]
    assert await world.progress(3, consumer="slow") == [slow]
    delivered = ConsumerDelivery(consumer="holder", reading=DeliveryState.DELIVERED, before=0)
    assert await world.progress(1, consumer="holder") == [delivered]
    await taken[0].ack_sync()
    [done] = await world.progress(1, consumer="holder")
    assert done.reading is DeliveryState.DONE
    with pytest.raises(ContractError, match=r"consumer nobody of stream .* does not exist"):
        await world.progress(1, consumer="nobody")


async def test_a_consumer_leaves_out_messages_by_its_filter_or_its_start(world: World) -> None:
    await create_consumer(world.connection, world.stream, "late", deliver_policy="new")
    await create_consumer(world.connection, world.stream, "other", filter_subject=f"{world.stream}.none")
    found = await world.progress(1)
    assert [one.reading for one in found] == [DeliveryState.DONE, DeliveryState.NOT_FOR_IT]


async def test_the_oldest_message_of_streams_bounds_what_inbox_rows_may_go(world: World) -> None:
    first = await world.located(1)
    oldest = await oldest_deliverable(world.connection, {world.stream, f"{world.stream}_NONE"})
    assert first is not None
    assert oldest is not None
    assert abs(oldest.since + timedelta(hours=1) - first.stored_at) < timedelta(milliseconds=1)
    await api(world.connection, f"STREAM.PURGE.{world.stream}")
    assert await oldest_deliverable(world.connection, {world.stream}) is None


async def test_the_backlog_of_a_consumer(world: World) -> None:
    await create_consumer(world.connection, world.stream, "durable", max_ack_pending=7)
    await world.take("durable")
    state = await world.state("durable")
    assert (state.stream, state.durable, state.pending, state.ack_pending) == (world.stream, "durable", 2, 1)
    assert (state.ack_pending_max, state.redelivered, state.paused_seconds) == (7, 0, 0.0)
    assert state.oldest_id == world.ids[1]
    assert 0 <= (state.oldest_seconds or 0.0) < 60
    for _ in range(2):
        await world.take("durable")
    done = await world.state("durable")
    assert (done.pending, done.oldest_seconds) == (0, None)

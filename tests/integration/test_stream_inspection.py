"""Where a message is in streams and what consumers did with it, on nats-server."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.info import consumer_info
from sea_mq_worker.operators.records import (
    ConsumerDelivery,
    ConsumerState,
    DeliveryState,
    StoredMessage,
)
from sea_mq_worker.operators.streams import consumer_state, deliveries, locate, oldest_deliverable
from sea_mq_worker.outbox.maintenance import PublishedRow, PublishedRows, find_loss
from tests.support.jetstream import create_consumer, create_stream, store


@dataclass(kw_only=True)
class World:
    """A stream with durables."""

    connection: NatsConnection
    stream: str

    async def store(self, message_id: str) -> int:
        return await store(self.connection, f"{self.stream}.x", b"{}", {"Nats-Msg-Id": message_id})

    async def durable(self, name: str) -> None:
        await create_consumer(self.connection, self.stream, name, max_ack_pending=7)

    async def take(self, name: str) -> Any:
        """Fetch a message from a durable."""
        jetstream = self.connection.client.jetstream()
        [message] = await (await jetstream.pull_subscribe_bind(name, stream=self.stream)).fetch(1)
        return message

    async def purge(self) -> None:
        await api(self.connection, f"STREAM.PURGE.{self.stream}")


@pytest.fixture
async def world(connection: NatsConnection, names: str) -> World:
    await create_stream(connection, names, f"{names}.>")
    return World(connection=connection, stream=names)


async def located(world: World, seq: int, message_id: str) -> StoredMessage:
    found = await locate(world.connection, world.stream, seq, message_id)
    assert found is not None
    return found


async def test_a_message_is_located_by_its_sequence_and_its_id(world: World) -> None:
    message_id = str(uuid.uuid4())
    seq = await world.store(message_id)
    found = await located(world, seq, message_id)
    assert (found.stream, found.seq, found.subject) == (world.stream, seq, f"{world.stream}.x")
    assert await locate(world.connection, world.stream, seq, str(uuid.uuid4())) is None
    assert await locate(world.connection, world.stream, seq + 1, message_id) is None
    assert await locate(world.connection, f"{world.stream}_NONE", seq, message_id) is None
    await world.purge()
    assert await locate(world.connection, world.stream, seq, message_id) is None


async def test_the_progress_of_consumers_with_a_message(world: World) -> None:
    ids = [str(uuid.uuid4()) for _ in range(3)]
    seqs = [await world.store(each) for each in ids]
    for name in ("slow", "holder"):
        await world.durable(name)
    taken = [await world.take("holder") for _ in range(2)]
    first, _, last = [await located(world, *each) for each in zip(seqs, ids, strict=True)]

    async def progress(found: StoredMessage, **which: str) -> list[ConsumerDelivery]:
        return list(await deliveries(world.connection, found, **which))

    slow = ConsumerDelivery(consumer="slow", reading=DeliveryState.TO_COME, before=2)
    assert await progress(last) == [
        ConsumerDelivery(consumer="holder", reading=DeliveryState.TO_COME, before=0), slow,
    ]  # fmt: skip
    assert await progress(last, consumer="slow") == [slow]
    delivered = ConsumerDelivery(consumer="holder", reading=DeliveryState.DELIVERED, before=0)
    assert await progress(first, consumer="holder") == [delivered]
    await taken[0].ack_sync()
    [done] = await progress(first, consumer="holder")
    assert done.reading is DeliveryState.DONE
    with pytest.raises(ContractError, match=r"consumer nobody of stream .* does not exist"):
        await progress(first, consumer="nobody")


async def test_a_consumer_leaves_out_messages_by_its_filter_or_its_start(world: World) -> None:
    message_id = str(uuid.uuid4())
    seq = await world.store(message_id)
    await create_consumer(world.connection, world.stream, "late", deliver_policy="new")
    await create_consumer(world.connection, world.stream, "other", filter_subject=f"{world.stream}.none")
    found = await deliveries(world.connection, await located(world, seq, message_id))
    assert [one.reading for one in found] == [DeliveryState.DONE, DeliveryState.NOT_FOR_IT]


async def test_a_message_is_lost_if_another_is_in_its_place_or_somebody_removed_it(world: World) -> None:
    message_id = str(uuid.uuid4())
    seq = await world.store(message_id)
    row = PublishedRow(message_id, seq, datetime.now(UTC))

    async def evidence(**other: Any) -> str:
        asked = row._replace(**other)
        return await find_loss(
            world.connection, world.stream, PublishedRows(greatest=asked.seq, some=[asked])
        )

    assert not await evidence()
    assert f"another message at {seq}" in await evidence(id=str(uuid.uuid4()))
    assert f"ends at {seq}" in await evidence(seq=seq + 1)
    await world.purge()
    assert f"removed message {seq}" in await evidence()


async def test_the_time_of_the_oldest_message_and_the_backlog_of_a_consumer(world: World) -> None:
    none = {world.stream, f"{world.stream}_NONE"}
    assert await oldest_deliverable(world.connection, none) is None
    ids = [str(uuid.uuid4()) for _ in range(3)]
    first = await world.store(ids[0])
    for each in ids[1:]:
        await world.store(each)
    stored_at = (await located(world, first, ids[0])).stored_at
    oldest = await oldest_deliverable(world.connection, {world.stream})
    assert oldest is not None
    assert abs(oldest.since + timedelta(hours=1) - stored_at) < timedelta(milliseconds=1)

    await world.durable("durable")
    await world.take("durable")
    state = await state_of(world, "durable")
    assert (state.stream, state.durable, state.pending, state.ack_pending) == (
        world.stream, "durable", 2, 1,
    )  # fmt: skip
    assert (state.ack_pending_max, state.redelivered, state.paused_seconds) == (7, 0, 0.0)
    assert state.oldest_id == ids[1]
    assert state.oldest_seconds is not None
    assert 0 <= state.oldest_seconds < 60
    await world.take("durable")
    await world.take("durable")
    done = await state_of(world, "durable")
    assert (done.pending, done.oldest_seconds) == (0, None)
    with pytest.raises(ContractError, match=r"consumer nobody of stream .* does not exist"):
        await state_of(world, "nobody")


async def state_of(world: World, durable: str) -> ConsumerState:
    info = await consumer_info(world.connection, world.stream, durable)
    return await consumer_state(world.connection, info)

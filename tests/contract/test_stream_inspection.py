"""The contract of StreamInspection, over nats-server and the in-memory fake."""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.message import SearchedId, SearchProgress, Stored
from sea_mq_worker.operators.inspection import NatsStreamInspection
from sea_mq_worker.operators.ports import StreamInspection
from sea_mq_worker.operators.records import ConsumerDelivery, DeliveryState, PublishedRow, StoredMessage
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.operators import InMemoryStreamInspection
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.jetstream import connected, create_consumer, create_stream, store

HOUR = 3600.0


@dataclass(kw_only=True)
class NatsWorld:
    """A stream with durables."""

    connection: NatsConnection
    stream: str

    @property
    def inspection(self) -> StreamInspection:
        return NatsStreamInspection(connection=self.connection)

    async def store(self, message_id: str) -> int:
        return await store(self.connection, f"{self.stream}.x", b"{}", {"Nats-Msg-Id": message_id})

    async def durable(self, name: str) -> None:
        await create_consumer(self.connection, self.stream, name, max_ack_pending=7)

    async def take(self, name: str) -> Any:
        """Fetch a message from a durable; return what its ``ack`` takes."""
        jetstream = self.connection.client.jetstream()
        [message] = await (await jetstream.pull_subscribe_bind(name, stream=self.stream)).fetch(1)
        return message

    async def ack(self, name: str, taken: Any) -> None:  # noqa: ARG002
        await taken.ack_sync()

    async def purge(self) -> None:
        await api(self.connection, f"STREAM.PURGE.{self.stream}")


@dataclass(kw_only=True)
class MemoryWorld:
    stream: str
    consumers: dict[str, InMemoryConsumer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stream = InMemoryStream(name=self.stream, clock=time.monotonic)

    @property
    def inspection(self) -> StreamInspection:
        return InMemoryStreamInspection(streams=[self._stream], consumers=[*self.consumers.values()])

    async def store(self, message_id: str) -> int:
        return self._stream.store(f"{self.stream}.x", b"{}", {"Nats-Msg-Id": message_id}).seq

    async def durable(self, name: str) -> None:
        self.consumers[name] = InMemoryConsumer(
            stream=self._stream, name=name, clock=time.monotonic, max_ack_pending=7
        )

    async def take(self, name: str) -> Any:
        [message] = await self.consumers[name].fetch(1)
        return message

    async def ack(self, name: str, taken: Any) -> None:
        await self.consumers[name].ack(taken)

    async def purge(self) -> None:
        self._stream.purge()


@asynccontextmanager
async def nats_world(nats_url: str, name: str) -> AsyncIterator[NatsWorld]:
    async with connected(nats_url) as connection:
        await create_stream(connection, name, f"{name}.>")
        yield NatsWorld(connection=connection, stream=name)


World: TypeAlias = MemoryWorld | NatsWorld


@pytest_asyncio.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, nats_url: str, names: str) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld(stream=names)
        return
    async with nats_world(nats_url, names) as made:
        yield made


async def located(world: World, seq: int, message_id: str) -> StoredMessage:
    found = await world.inspection.locate(world.stream, seq, message_id)
    assert found is not None
    return found


async def test_a_message_is_located_by_its_sequence_and_its_id(world: World) -> None:
    message_id = str(uuid.uuid4())
    seq = await world.store(message_id)
    found = await located(world, seq, message_id)
    assert (found.stream, found.seq, found.subject) == (world.stream, seq, f"{world.stream}.x")
    inspection = world.inspection
    assert await inspection.locate(world.stream, seq, str(uuid.uuid4())) is None
    assert await inspection.locate(world.stream, seq + 1, message_id) is None
    assert await inspection.locate(f"{world.stream}_NONE", seq, message_id) is None
    await world.purge()
    assert await inspection.locate(world.stream, seq, message_id) is None


async def test_the_progress_of_consumers_with_a_message(world: World) -> None:
    ids = [str(uuid.uuid4()) for _ in range(3)]
    seqs = [await world.store(each) for each in ids]
    for name in ("slow", "holder"):
        await world.durable(name)
    taken = [await world.take("holder") for _ in range(2)]
    first, _, last = [await located(world, *each) for each in zip(seqs, ids, strict=True)]

    async def progress(found: StoredMessage, **which: str) -> list[ConsumerDelivery]:
        return list(await world.inspection.deliveries(found, **which))

    slow = ConsumerDelivery(consumer="slow", reading=DeliveryState.TO_COME, before=2)
    assert await progress(last) == [
        ConsumerDelivery(consumer="holder", reading=DeliveryState.TO_COME, before=0), slow,
    ]  # fmt: skip
    assert await progress(last, consumer="slow") == [slow]
    delivered = ConsumerDelivery(consumer="holder", reading=DeliveryState.DELIVERED, before=0)
    assert await progress(first, consumer="holder") == [delivered]
    await world.ack("holder", taken[0])
    [done] = await progress(first, consumer="holder")
    assert done.reading is DeliveryState.DONE
    with pytest.raises(ContractError, match=r"consumer nobody of stream .* does not exist"):
        await progress(first, consumer="nobody")


async def test_a_consumer_leaves_out_messages_by_its_filter_or_its_start(nats_url: str, names: str) -> None:
    async with nats_world(nats_url, names) as world:
        message_id = str(uuid.uuid4())
        seq = await world.store(message_id)
        await create_consumer(world.connection, names, "late", deliver_policy="new")
        await create_consumer(world.connection, names, "other", filter_subject=f"{names}.none")
        found = await world.inspection.deliveries(await located(world, seq, message_id))
    assert [one.reading for one in found] == [DeliveryState.DONE, DeliveryState.NOT_FOR_IT]


async def test_a_stream_is_searched_for_a_message_up_to_its_end(world: World) -> None:
    wanted, other = str(uuid.uuid4()), str(uuid.uuid4())
    seq = await world.store(wanted)
    await world.store(other)
    search = world.inspection.search
    found = await search(world.stream, SearchedId(wanted, HOUR), timeout_seconds=10)
    assert found == Stored(world.stream, seq, duplicate=True)
    absent = await search(world.stream, SearchedId(str(uuid.uuid4()), HOUR), timeout_seconds=10)
    assert isinstance(absent, SearchProgress)
    assert (absent.is_over, absent.through) == (True, 2)
    with pytest.raises(ContractError, match=r"stream .*_NONE does not exist"):
        await search(f"{world.stream}_NONE", SearchedId(wanted, HOUR), timeout_seconds=10)


async def test_a_message_is_lost_if_another_is_in_its_place_or_somebody_removed_it(world: World) -> None:
    message_id = str(uuid.uuid4())
    seq = await world.store(message_id)
    row = PublishedRow(message_id, seq, datetime.now(UTC))

    async def evidence(**other: Any) -> str:
        return await world.inspection.evidence_of_loss(world.stream, row._replace(**other))

    assert not await evidence()
    assert f"another message at {seq}" in await evidence(id=str(uuid.uuid4()))
    assert f"ends at {seq}" in await evidence(seq=seq + 1)
    await world.purge()
    assert f"removed message {seq}" in await evidence()


async def test_the_time_of_the_oldest_message_and_the_backlog_of_a_consumer(world: World) -> None:
    inspection = world.inspection
    assert await inspection.first_stored_at(world.stream) is None
    assert await inspection.first_stored_at(f"{world.stream}_NONE") is None
    ids = [str(uuid.uuid4()) for _ in range(3)]
    first = await world.store(ids[0])
    for each in ids[1:]:
        await world.store(each)
    stored_at = (await located(world, first, ids[0])).stored_at
    oldest = await inspection.first_stored_at(world.stream)
    assert oldest is not None
    assert abs(oldest - stored_at) < timedelta(milliseconds=1)

    await world.durable("durable")
    await world.take("durable")
    state = await world.inspection.consumer_state(world.stream, "durable")
    assert (state.stream, state.durable, state.pending, state.ack_pending) == (
        world.stream, "durable", 2, 1,
    )  # fmt: skip
    assert (state.ack_pending_max, state.redelivered, state.paused_seconds) == (7, 0, 0.0)
    assert state.oldest_id == ids[1]
    assert state.oldest_seconds is not None
    assert 0 <= state.oldest_seconds < 60
    await world.take("durable")
    await world.take("durable")
    done = await world.inspection.consumer_state(world.stream, "durable")
    assert (done.pending, done.oldest_seconds) == (0, None)
    with pytest.raises(ContractError, match=r"consumer nobody of stream .* does not exist"):
        await world.inspection.consumer_state(world.stream, "nobody")

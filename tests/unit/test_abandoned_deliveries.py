"""Redelivery of the messages of a worker that has ended."""

from functools import partial

from sea_mq_worker.inbox.message import InboxMessage
from sea_mq_worker.inbox.rescue import take_over_deliveries
from sea_mq_worker.runtime.breaker import Backoff
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.inbox import InboxTable, InMemoryInbox
from sea_mq_worker.testing.stream import InMemoryStream

DEAD = "0000000b"
ACK_WAIT = 120.0


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.table = InboxTable(lambda: self.now)
        self.stream = InMemoryStream(name="UP", clock=lambda: self.now)
        self.consumer = InMemoryConsumer(
            stream=self.stream, name="c", clock=lambda: self.now, ack_wait_seconds=ACK_WAIT, wait_seconds=0.0
        )
        self.dead = InMemoryInbox(table=self.table, worker="dead", session=DEAD)
        self.take_over = partial(
            take_over_deliveries,
            inbox=InMemoryInbox(table=self.table, worker="heir"),
            consumers={("UP", "c"): self.consumer},
            backoff=Backoff(base_seconds=1.0, cap_seconds=60.0, random=lambda: 1.0),
        )

    async def deliver(self, *, consumer: str = "c") -> None:
        self.stream.store("s", b"{}", {})
        [message] = await self.consumer.fetch(1)
        await self.lease(message.reply, consumer)

    async def lease(self, reply: str, consumer: str = "c") -> None:
        entry = InboxMessage("m", "s", consumer, "UP", 1, b"h", reply)
        await self.dead.insert_batch([entry], lease_seconds=ACK_WAIT)

    async def delivered(self) -> bool:
        return bool(await self.consumer.fetch(1))


async def test_a_delivery_comes_again_at_once_and_later_each_time_that_its_worker_ends() -> None:
    world = World()
    await world.deliver()
    assert await world.take_over(DEAD) == 1
    world.now += 0.2
    [message] = await world.consumer.fetch(1)
    await world.lease(message.reply)
    await world.take_over(DEAD)
    world.now += 1.9
    assert not await world.delivered()
    world.now += 0.2
    assert await world.delivered()


async def test_a_delivery_of_another_consumer_waits_for_its_ack_wait() -> None:
    world = World()
    await world.deliver(consumer="other")
    assert await world.take_over(DEAD) == 1
    world.now += ACK_WAIT - 1
    assert not await world.delivered()


async def test_a_message_that_no_delivery_brought_is_only_released() -> None:
    world = World()
    await world.lease("")
    assert await world.take_over(DEAD) == 1
    assert world.table.rows["m"].locked_by is None

"""Workers that stand by while another one serves the lane with ordering keys, in virtual time."""

import asyncio
from dataclasses import replace

from sea_mq_worker.application.outbox.publisher import OutboxPublisher
from sea_mq_worker.testing.lane_turn import InMemoryLane, InMemoryLaneTurn
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import World


class Shared(World):
    """A relay's lane with ordering keys; ``other`` is another worker's turn in it."""

    def __init__(self) -> None:
        super().__init__(ordered=True)
        lane = InMemoryLane()
        self.turn, self.other = InMemoryLaneTurn(lane), InMemoryLaneTurn(lane)

    def lane(self) -> OutboxPublisher:
        return replace(super().lane(), turn=self.turn)


@in_virtual_time
async def test_a_worker_stands_by_while_another_one_serves_the_lane() -> None:
    world = Shared()
    assert await world.other.take()
    world.table.add("a", ordering_key="k")
    async with world.relaying():
        await asyncio.sleep(60.0)
        assert world.row("a").attempts == 0
        await world.other.leave()
        left_at = world.clock()
        await world.published(1)
        assert world.clock() - left_at <= 1.5
        assert not await world.other.take()
    assert await world.other.take(), "the worker left the lane at its end"


@in_virtual_time
async def test_a_worker_that_stands_by_stops_at_once() -> None:
    world = Shared()
    assert await world.other.take()
    async with world.relaying():
        await asyncio.sleep(10.0)
        stopped_at = world.clock()
    assert world.clock() == stopped_at

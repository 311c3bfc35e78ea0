"""A worker waits while another one serves the lane with ordering keys, in virtual time."""

import asyncio

from sea_mq_worker.testing.lane_turn import InMemoryLane, InMemoryLaneTurn
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import World


@in_virtual_time
async def test_a_worker_stands_by_while_another_one_serves_the_lane_and_stops_at_once() -> None:
    lane = InMemoryLane()
    serves = InMemoryLaneTurn(lane)
    assert await serves.take()
    stopped, heir = World(ordered=True), World(ordered=True)
    stopped.turn, heir.turn = InMemoryLaneTurn(lane), InMemoryLaneTurn(lane)
    heir.table.add("a", ordering_key="k")
    async with heir.relaying():
        async with stopped.relaying():
            await asyncio.sleep(60.0)
            stopped_at = stopped.clock()
        assert stopped.clock() == stopped_at
        assert heir.row("a").attempts == 0
        await serves.leave()
        left_at = heir.clock()
        await heir.published(1)
        assert heir.clock() - left_at <= 1.5
        assert not await serves.take()
    assert await serves.take(), "the worker left the lane at its end"

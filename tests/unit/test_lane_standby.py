"""A worker waits while another one serves the lane with ordering keys, in virtual time."""

import asyncio

from sea_mq_worker.testing.sessions import InMemoryLane, InMemoryLaneTurn
from sea_mq_worker.testing.stream import Fault
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


@in_virtual_time
async def test_a_worker_that_cannot_publish_probes_in_the_lane_until_another_one_takes_it() -> None:
    lane = InMemoryLane()
    sick, other = World(ordered=True), InMemoryLaneTurn(lane)
    sick.turn = InMemoryLaneTurn(lane)
    sick.table.add("a", ordering_key="k")
    sick.faults["a"] = Fault.LOST
    async with sick.relaying():
        await sick.events.seen("batch_relayed", count=3, within=600.0)
        await sick.events.seen("circuit_opened")
        for _ in range(10):  # a probe waits ten seconds for its acknowledgement
            if serves := await other.take():
                break
            await asyncio.sleep(1.5)
        assert serves
        probes = len(sick.sent)
        await asyncio.sleep(600.0)
        assert len(sick.sent) <= probes, "the other worker serves the lane"
        await other.leave()
        sick.faults.clear()
        await sick.published(1)
        assert not await other.take(), "it serves the lane again"
    assert sick.stored() == ["a"]

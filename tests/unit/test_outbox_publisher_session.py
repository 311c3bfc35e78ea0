"""What a publisher does with a claim that another worker may have by now."""

import asyncio

from sea_mq_worker.domain.facts import LeasesLost
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import LEASE, World


@in_virtual_time
async def test_after_a_lost_session_no_more_of_a_claim_is_sent_and_the_rest_is_released() -> None:
    """Others may have taken this worker for gone, and its claim over."""
    world = World(ordered=True)
    for event_id in ("a", "b", "c"):
        world.table.add(event_id, ordering_key="k")

    def lose_session(event_id: str) -> None:
        if event_id == "a":
            world.session_lost_at = world.clock()

    world.on_send = lose_session
    async with world.relaying():
        await world.published(3)
    assert world.sent == ["a", "b", "c"]
    assert [world.row(event_id).attempts > 1 for event_id in ("a", "b", "c")] == [False, True, True]


@in_virtual_time
async def test_a_settlement_that_outlasts_its_lease_is_given_up_and_stored_only_once() -> None:
    world = World()
    world.table.add("a")

    def lose_database(_event_id: str) -> None:
        world.outbox.down = len(world.sent) == 1

    world.on_send = lose_database
    async with world.relaying():
        lost = await world.observer.seen(LeasesLost, within=2 * LEASE)
        world.outbox.down = False
        await asyncio.sleep(1)
        assert (await world.outbox.reap()).leases == 1
        await world.published(1)
    assert (lost.side, lost.count) == ("outbox", 1)
    assert world.sent == ["a", "a"]
    assert world.stored() == ["a"]

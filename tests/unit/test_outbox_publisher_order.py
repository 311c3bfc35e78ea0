"""What a relay lets go of comes free in an order that keeps a key with one worker."""

from typing import Any

from sea_mq_worker.testing.publisher import Fault
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import World


@in_virtual_time
async def test_no_other_worker_gets_the_head_of_a_key_while_this_one_holds_what_follows() -> None:
    world = World(ordered=True, keeps_order=True)
    for event_id in ("a1", "a2"):
        world.table.add(event_id, ordering_key="a")
    world.faults["a1"] = Fault.FAILED
    postpone = world.outbox.increment_attempts
    before: dict[str, str] = {}

    async def noted(*args: Any) -> Any:
        before.update(world.states())
        world.faults.clear()
        return await postpone(*args)

    world.outbox.increment_attempts = noted
    async with world.relaying():
        await world.published(2)
    assert before == {"a1": "CLAIMED", "a2": "PENDING"}
    assert world.stored() == ["a1", "a2"]

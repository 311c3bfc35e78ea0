"""A replay into a stream that was made anew, or set back: lower sequences than the earlier copy's are new."""

import pytest

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.facts import EventPostponed
from sea_mq_worker.testing.publisher import Fault
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import World


@pytest.mark.parametrize("window", [10.0, 3600.0], ids=["searched for", "known as a duplicate"])
@in_virtual_time
async def test_a_replay_whose_acknowledgement_was_lost_is_stored_once_in_a_recreated_stream(
    window: float,
) -> None:
    world = World(window=window)
    world.table.add("a")
    row = world.row("a")
    row.state, row.published_at, row.stream_seq = EventState.PUBLISHED, world.clock(), 5000
    world.table.replay("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.observer.seen(EventPostponed)
        world.faults.clear()
        await world.published(1)
    assert world.stored() == ["a"]
    assert (row.stream_seq, len(world.observer.of(EventPostponed))) == (1, 1)

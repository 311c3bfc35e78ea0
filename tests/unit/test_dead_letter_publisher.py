"""Dead letters whose id the stream remembers and no longer holds, on in-memory fakes, in virtual time."""

import asyncio

from sea_mq_worker.testing.handler import Respond
from tests.support.inbox_loop import LEASE, World, always
from tests.support.simulation import in_virtual_time


@in_virtual_time
async def test_a_removed_dead_letter_does_not_hide_the_next_one_of_its_message() -> None:
    world = World()
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        message_id = world.send()
        for count in range(1, 4):
            await world.events.seen("message_dead_lettered", count=count)
            assert world.dead_lettered() == [(message_id, "REJECTED")]
            world.dead_letters.purge()
            del world.table.rows[message_id]
            world.send(message_id=message_id)
        await world.events.seen("message_dead_lettered", count=4)
    assert world.dead_lettered() == [(message_id, "REJECTED")]


@in_virtual_time
async def test_an_intent_that_outlasted_its_lease_is_noted_again_before_anything_is_sent() -> None:
    """The message may be another worker's by then, and so may its dead letter."""
    world = World()
    world.handler.script = always(Respond(status=422))
    world.dlq.connected = False
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("circuit_opened", lambda fact: fact.circuit == "stream SEA_DLQ")
        world.inbox.down = True
        await asyncio.sleep(LEASE + 1)
        row = world.row(message_id)
        row.locked_by, row.locked_until = "w2#9", world.clock() + 2 * LEASE
        world.dlq.connected = True
        await asyncio.sleep(LEASE)
        assert world.dead_lettered() == []
        world.inbox.down = False
        await world.events.seen("leases_lost")
    assert world.dead_lettered() == []

"""Dead letters whose id the stream remembers and no longer holds, on twins, in virtual time."""

from sea_mq_worker.adapters.memory.handler import Answer
from sea_mq_worker.domain.facts import MessageDeadLettered
from tests.support.inbox_loop import World, always
from tests.support.simulation import in_virtual_time


@in_virtual_time
async def test_a_removed_dead_letter_does_not_hide_the_next_one_of_its_message() -> None:
    world = World()
    world.handler.script = always(Answer(status=422))
    async with world.consuming():
        message_id = world.send()
        for count in range(1, 4):
            await world.observer.seen(MessageDeadLettered, count=count)
            assert world.buried() == [(message_id, "REJECTED")]
            world.dead_letters.purge()
            del world.table.rows[message_id]
            world.send(message_id=message_id)
        await world.observer.seen(MessageDeadLettered, count=4)
    assert world.buried() == [(message_id, "REJECTED")]

"""Outcomes gather before they are recorded, in virtual time."""

from sea_mq_worker.inbox.message import HandlerRequest
from sea_mq_worker.testing.handler import Behaviour, Hang, Respond
from tests.support.inbox_loop import World
from tests.support.simulation import in_virtual_time

_SOON_SECONDS = 0.01


@in_virtual_time
async def test_endings_that_come_one_by_one_are_recorded_by_the_half_of_what_is_in_hand() -> None:
    world = World()
    answered = 0

    def one_after_the_other(_request: HandlerRequest, _call: int) -> Behaviour:
        nonlocal answered
        answered += 1
        return Respond(slow_seconds=answered / 10_000)

    world.handler.script = one_after_the_other
    ids = [world.send() for _ in range(10)]
    async with world.consuming():
        await world.events.seen("message_processed", count=10)
    moments = sorted(str(world.row(message_id).processed_at) for message_id in ids)
    assert len(set(moments[:5])) == len(set(moments[5:])) == 1


@in_virtual_time
async def test_the_ending_of_a_lone_message_is_recorded_at_once() -> None:
    world = World()
    world.send()
    async with world.consuming():
        fact = await world.events.seen("message_processed")
    assert fact.seconds == 0


@in_virtual_time
async def test_an_ending_does_not_wait_for_a_message_that_takes_long() -> None:
    world = World()
    world.handler.script = lambda request, _call: Hang() if request.payload == b'"long"' else Respond()
    world.send(body=b'"long"')
    world.send()
    async with world.consuming():
        fact = await world.events.seen("message_processed")
        world.handler.script = lambda _request, _call: Respond()
        await world.events.seen("message_processed", count=2, within=60)
    assert 0 < fact.seconds < _SOON_SECONDS

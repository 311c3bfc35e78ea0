"""Messages that the server has given up on are handled like all others, on fakes, in virtual time."""

import asyncio

import pytest

from sea_mq_worker.inbox.dead_letter import dead_letter_message
from sea_mq_worker.inbox.leases import InFlightMessage
from sea_mq_worker.inbox.message import Leased
from sea_mq_worker.testing.handler import Respond
from tests.support.builders import dead_letter
from tests.support.inbox_loop import ATTEMPTS_MAX, LEASE, SLOW_AFTER, World, always
from tests.support.simulation import in_virtual_time


async def give_up(world: World, *, body: bytes = b"{}") -> tuple[str, InFlightMessage]:
    """Let the server give up a message after its last delivery; return its id and that delivery."""
    message_id = world.send(body=body)
    [message] = await world.consumer.fetch(1)
    await world.consumer.nak(message, delay_seconds=0)
    await world.consumer.fetch(1)
    assert world.consumer.exhausted_deliveries
    return message_id, InFlightMessage.of(message, world.consumer, received_at=world.clock())


async def lease(world: World, item: InFlightMessage) -> Leased:
    """Lease a message as the worker did that had the last delivery."""
    [receipt] = await world.leases().record([item], world.stop)
    assert isinstance(receipt, Leased)
    return receipt


async def settled(world: World) -> None:
    """Let enough time pass for several rounds; nothing may be left to rescue."""
    await asyncio.sleep(600)
    assert world.consumer.exhausted_deliveries == {}


@pytest.mark.clause("durable-consumer-max-deliver")
@in_virtual_time
async def test_a_message_that_was_given_up_with_attempts_left_is_handled() -> None:
    world = World(max_deliver=1)
    message_id, _ = await give_up(world)
    async with world.consuming():
        fact = await world.events.seen("message_processed")
        await settled(world)
    assert fact.message_id == message_id
    assert world.dead_lettered() == []
    assert world.handler.calls[message_id] == 1


@pytest.mark.clause("EVT-047-002", "durable-consumer-max-deliver")
@in_virtual_time
async def test_one_that_fails_again_and_again_is_dead_lettered_once_its_attempts_are_spent() -> None:
    world = World(max_deliver=1)
    message_id, _ = await give_up(world)
    world.handler.script = always(Respond(status=500))
    async with world.consuming():
        fact = await world.events.seen("message_dead_lettered", within=60.0)
        await settled(world)
    assert (fact.message_id, fact.reason, fact.attempts) == (message_id, "EXHAUSTED", ATTEMPTS_MAX)
    assert world.handler.calls[message_id] == ATTEMPTS_MAX
    assert world.dead_lettered() == [(message_id, "EXHAUSTED")]


@pytest.mark.parametrize("status", [401, 503])
@in_virtual_time
async def test_deliveries_that_were_given_back_cost_no_message_its_life(status: int) -> None:
    world = World(max_deliver=3)
    ids = [world.send() for _ in range(3 * SLOW_AFTER)]
    world.handler.script = always(Respond(status=status))
    async with world.consuming():
        await asyncio.sleep(900.0)
        assert len(world.consumer.exhausted_deliveries) > SLOW_AFTER
        assert world.dead_lettered() == []
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", count=len(ids), within=10.0)
        await settled(world)
    assert world.dead_lettered() == []


@pytest.mark.clause("POL-047-003")
@in_virtual_time
async def test_a_message_that_was_processed_at_its_last_delivery_is_only_forgotten() -> None:
    world = World(max_deliver=1)
    _, item = await give_up(world)
    run = await lease(world, item)
    await world.inbox.mark_processed_batch([run.lease])
    async with world.consuming():
        await settled(world)
    assert world.dead_lettered() == []
    assert not world.handler.calls


@in_virtual_time
async def test_a_message_whose_last_delivery_killed_its_worker_waits_for_the_lease_to_end() -> None:
    world = World(max_deliver=1)
    message_id, item = await give_up(world)
    await lease(world, item)
    async with world.consuming():
        await asyncio.sleep(LEASE / 2)
        assert not world.handler.calls
        await world.events.seen("message_processed", within=600.0)
        await settled(world)
    assert world.row(message_id).attempts == 2


@pytest.mark.clause("CMD-052-idempotency")
@in_virtual_time
async def test_a_dead_letter_that_a_dead_worker_had_begun_is_found_and_not_repeated() -> None:
    world = World(max_deliver=1)
    message_id, item = await give_up(world, body=b"{")
    run = await lease(world, item)
    await world.inbox.begin_dead_letter(run.lease, reason="INVALID_PAYLOAD", detail="")
    letter = dead_letter(item.message, message_id=message_id, reason="INVALID_PAYLOAD")
    message = dead_letter_message(letter, context="sea")
    await world.dlq.publish(message.subject, message.payload, message.headers)
    async with world.consuming():
        await world.events.seen("message_dead_lettered", within=600.0)
        await settled(world)
    assert world.dead_lettered() == [(message_id, "INVALID_PAYLOAD")]


@pytest.mark.parametrize("lost", ["inbox", "stranded", "dead letters"])
@in_virtual_time
async def test_an_outage_delays_the_rescue_and_loses_nothing(lost: str) -> None:
    world = World(max_deliver=1)
    message_id, _ = await give_up(world, body=b"{")

    def set_lost(*, away: bool) -> None:
        match lost:
            case "inbox":
                world.inbox.down = away
            case "stranded":
                world.exhausted.down = away
            case _:
                world.dlq.connected = not away

    set_lost(away=True)
    async with world.consuming():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(LEASE / 2)
        set_lost(away=False)
        await world.events.seen("circuit_closed")
        await world.events.seen("message_dead_lettered")
        await settled(world)
    assert world.dead_lettered() == [(message_id, "INVALID_PAYLOAD")]

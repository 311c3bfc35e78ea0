"""Messages that nothing will deliver again, found by their rows, on in-memory fakes, in virtual time."""

import asyncio
import uuid

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.testing.handler import Respond
from tests.support.inbox_loop import ATTEMPTS_MAX, LEASE, OVERDUE, SUBJECT, World, always
from tests.support.simulation import in_virtual_time


async def find_undeliverable(world: World, *, body: bytes = b"{}") -> str:
    """Record a message as a worker did that died then, and have somebody else acknowledge it."""
    message_id = world.send(body=body)
    [message] = await world.consumer.fetch(1)
    await world.record(message)
    await world.consumer.ack(message)
    return message_id


async def forbidden(_seqs: object) -> None:
    raise ContractError("no permission")


def reported(world: World) -> list[str]:
    return [notice.key for notice in world.events.notices]


@in_virtual_time
async def test_a_message_that_somebody_else_acknowledged_is_handled_again() -> None:
    world = World()
    message_id = await find_undeliverable(world)
    async with world.consuming():
        await asyncio.sleep(OVERDUE / 2)
        assert not world.handler.calls
        fact = await world.events.seen("message_processed", within=OVERDUE)
    assert fact.message_id == message_id
    assert reported(world) == ["message_undeliverable"]


@in_virtual_time
async def test_one_without_an_effect_comes_again_until_its_attempts_are_spent() -> None:
    world = World()
    message_id = await find_undeliverable(world)
    world.handler.script = always(Respond(status=500))
    async with world.consuming():
        await asyncio.sleep(ATTEMPTS_MAX * OVERDUE)
    assert world.dead_lettered() == [(message_id, "EXHAUSTED")]
    assert world.handler.calls[message_id] == ATTEMPTS_MAX - 1


@in_virtual_time
async def test_what_a_consumer_will_deliver_again_is_left_to_it() -> None:
    world = World()
    world.send()
    [message] = await world.consumer.fetch(1)
    await world.record(message)
    for _ in range(6):
        await asyncio.sleep(LEASE)
        await world.consumer.in_progress(message)
    async with world.consuming():
        await world.events.seen("message_processed", within=OVERDUE)
    assert reported(world) == []


@in_virtual_time
async def test_a_message_dropped_by_its_stream_is_reported_once_and_stays_open() -> None:
    world = World()
    message_id = await find_undeliverable(world)
    world.upstream.purge()
    async with world.consuming():
        await asyncio.sleep(4 * OVERDUE)
        assert reported(world) == ["message_lost"]
        row = world.row(message_id)
        assert (row.settled, row.attempts, "no longer holds it" in (row.last_error or "")) == (False, 1, True)
        world.send(message_id=message_id)
        await world.events.seen("message_processed")


@pytest.mark.parametrize("same_id", [False, True])
@in_virtual_time
async def test_another_message_in_its_place_is_not_taken_for_it(*, same_id: bool) -> None:
    world = World()
    message_id = await find_undeliverable(world)
    world.upstream.purge()
    world.upstream.last_seq = 0
    world.upstream.store(SUBJECT, b"[]", {"ce-id": message_id if same_id else str(uuid.uuid4())})
    async with world.consuming():
        await asyncio.sleep(2 * OVERDUE)
    assert (reported(world), set(world.handler.calls)) == (["message_lost"], set())
    assert not world.row(message_id).settled


@in_virtual_time
async def test_a_conflicting_message_is_found_under_the_id_of_its_own() -> None:
    world = World()
    first = await find_undeliverable(world)
    world.send(message_id=first, body=b"[]")
    [message] = await world.consumer.fetch(1)
    item = await world.record(message)
    await world.consumer.ack(message)
    async with world.consuming():
        await asyncio.sleep(2 * OVERDUE)
    assert world.dead_lettered() == [(item.entry.message_id, "CONTENT_CONFLICT")]
    assert world.row(first).processed_at is not None


@in_virtual_time
async def test_a_worker_without_the_right_to_read_the_stream_reports_it_and_continues() -> None:
    world = World()
    await find_undeliverable(world)
    world.consumer.find_undeliverable = forbidden  # type: ignore[assignment, method-assign]
    async with world.consuming():
        await asyncio.sleep(2 * OVERDUE)
        world.send()
        await world.events.seen("message_processed")
    assert set(reported(world)) == {"undeliverable_not_readable"}

"""Leases of messages in hand, kept while a call lasts or taken over by another, and their endings."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.leases import renewing_lease
from sea_mq_worker.inbox.message import HandlerRequest, Lease
from sea_mq_worker.testing.handler import Behaviour, Hang, Respond, Unreachable
from sea_mq_worker.testing.inbox import InMemoryInbox
from tests.support.inbox_loop import ACK_WAIT, LEASE, World, always
from tests.support.inboxes import entry
from tests.support.simulation import Interrupted, in_virtual_time

if TYPE_CHECKING:
    from sea_mq_worker.nats.message import InboundMessage


def at_first(change: Callable[[], None], *statuses: int) -> Any:
    """Change something in the first call; answer by these statuses in turn, then by the last one again."""

    def behave(_request: HandlerRequest, call: int) -> Behaviour:
        if call == 1:
            change()
        return Respond(status=statuses[min(call, len(statuses)) - 1])

    return behave


def take_over(world: World, message_id: str) -> None:
    """Give a message's lease to another worker."""
    world.row(message_id).locked_by = "w2#9"


@pytest.mark.clause("POL-047-004")
@in_virtual_time
async def test_a_message_that_somebody_took_over_is_not_acknowledged() -> None:
    world = World()
    message_id = world.send()
    world.handler.script = at_first(lambda: take_over(world, message_id), 200)
    async with world.consuming():
        lost = await world.events.seen("leases_lost")
        assert (lost.side, lost.count) == ("inbox", 1)
        assert world.consumer.acked == []
        assert world.consumer.naks == []
        world.row(message_id).locked_until = world.clock()
        await world.events.seen("message_processed", within=2 * ACK_WAIT)
    assert world.handler.effects[message_id] == 1


@in_virtual_time
async def test_after_a_lost_session_the_handler_is_called_only_under_a_lease_that_still_holds() -> None:
    """The lease would last long, but others may have taken this worker for gone, and ended it."""
    world = World()
    world.handler.script = always(Unreachable())
    taken, kept = world.send(), world.send()
    async with world.consuming():
        await world.events.seen("circuit_opened")
        asked = world.handler.calls[taken]
        world.session_lost_at = world.clock()
        row = world.row(taken)
        row.locked_by, row.locked_until = "w2#9", world.clock() + LEASE
        world.handler.script = always(Respond())
        done = await world.events.seen("message_processed")
        lost = await world.events.seen("leases_lost")
    assert (done.message_id, lost.count) == (kept, 1)
    assert world.handler.calls[taken] == asked


@in_virtual_time
async def test_a_message_that_somebody_took_over_while_it_waited_is_not_handed_to_the_handler() -> None:
    world = World()
    world.handler.script = always(Unreachable())
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("circuit_opened")
        world.inbox.down = True
        await asyncio.sleep(LEASE + 1)
        row = world.row(message_id)
        row.locked_by, row.locked_until = "w2#9", world.clock() + LEASE
        asked = world.handler.calls[message_id]
        world.handler.script = always(Respond())
        world.inbox.down = False
        lost = await world.events.seen("leases_lost")
        assert (lost.side, lost.count) == ("inbox", 1)
        assert world.handler.calls[message_id] == asked
        other = world.send()
        await world.events.seen("message_processed")
        assert world.handler.calls[other] == 1, "the gate has to be open to others"


@in_virtual_time
async def test_messages_whose_leases_nobody_confirms_are_delivered_to_other_workers() -> None:
    """Whether PostgreSQL went away before they were recorded, or during a call."""
    world = World()
    world.handler.script = always(Hang())
    world.send()
    async with world.consuming():
        await asyncio.sleep(1)
        world.inbox.down = True
        world.send()
        await asyncio.sleep(LEASE)
        taken: list[InboundMessage] = []
        while len(taken) < 2:
            taken += await world.consumer.fetch(2)
            assert world.clock() < 1 + LEASE + LEASE / 3 + ACK_WAIT
        world.inbox.down = False


@in_virtual_time
async def test_a_message_whose_row_is_lost_while_it_waits_is_at_work_again_at_once() -> None:
    world = World()
    world.handler.script = always(Unreachable())
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("circuit_opened")
        world.lose(message_id)
        await asyncio.sleep(LEASE)
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", within=10)
    assert world.handler.effects[message_id] == 1


@pytest.mark.parametrize("status", [200, 500])
@in_virtual_time
async def test_an_ending_whose_note_was_lost_on_its_way_back_is_noted_once(status: int) -> None:
    world = World()
    message_id = world.send()
    world.handler.script = lambda _request, call: Respond(status=status if call == 1 else 200)
    world.inbox.loses_answer_of = "mark_processed_batch" if status == 200 else "record_error_batch"
    async with world.consuming():
        await asyncio.sleep(10)
    assert world.handler.calls[message_id] == (1 if status == 200 else 2)
    assert world.row(message_id).attempts == world.handler.calls[message_id]
    assert world.consumer.acked == [1]
    assert world.events.of("leases_lost") == [], "the worker's own write ended the lease"
    retried = [fact.attempts for fact in world.events.of("message_retried")]
    assert (retried, world.events.of("message_given_back")) == ([1] * (status == 500), [])


@in_virtual_time
async def test_a_message_that_another_worker_settled_counts_as_lost() -> None:
    """This worker was taken for gone, so its lease proves nothing."""
    world = World()
    message_id = world.send()

    def settle_elsewhere() -> None:
        world.session_lost_at = world.clock()
        world.row(message_id).processed_at = world.clock()
        world.row(message_id).unlock()

    world.handler.script = at_first(settle_elsewhere, 200)
    async with world.consuming():
        lost = await world.events.seen("leases_lost")
        await asyncio.sleep(1)
    assert (lost.count, world.consumer.acked) == (1, [1])


@in_virtual_time
async def test_a_message_that_was_tried_often_is_asked_for_as_soon_as_any_other() -> None:
    world = World()
    message_id = world.send()
    held = 2 * LEASE - 10

    def fails_and_is_taken_over(_request: HandlerRequest, call: int) -> Behaviour:
        if call == 2:
            world.row(message_id).locked_by = "w2#9"
            world.row(message_id).locked_until = free_at
        return Respond(status=500) if call == 1 else Respond()

    free_at = world.clock() + held
    world.handler.script = fails_and_is_taken_over
    async with world.consuming():
        await world.events.seen("message_processed", within=10 * ACK_WAIT)
        assert free_at <= world.clock() <= free_at + LEASE / 2


@in_virtual_time
async def test_a_lease_that_is_kept_for_hours_does_not_use_up_the_messages_deliveries() -> None:
    world = World()
    message_id = world.send()
    free_at = world.clock() + 2 * 3600.0
    world.handler.script = at_first(lambda: take_over(world, message_id), 200)
    async with world.consuming():
        await world.events.seen("leases_lost")
        while world.clock() < free_at:
            world.row(message_id).locked_until = world.clock() + LEASE
            await asyncio.sleep(LEASE / 3)
        assert world.handler.calls[message_id] == 1
        await world.events.seen("message_processed", within=3600.0)
    assert not world.consumer.exhausted_deliveries


@pytest.mark.clause("POL-047-006")
@in_virtual_time
async def test_a_rejected_message_that_somebody_took_over_is_not_dead_lettered() -> None:
    world = World()
    message_id = world.send()
    world.handler.script = at_first(lambda: take_over(world, message_id), 422)
    async with world.consuming():
        await world.events.seen("leases_lost")
    assert world.dead_lettered() == []
    assert world.consumer.acked == []


@in_virtual_time
async def test_a_lease_that_the_database_refuses_to_extend_is_extended_once_it_does() -> None:
    world = World()
    inbox = InMemoryInbox(table=world.table, worker="redrive")
    recorded = entry()
    [run] = await inbox.insert_batch([recorded], lease_seconds=LEASE)
    assert isinstance(run, Lease)
    refusing: Any = Interrupted(inbox, ContractError("the user lacks a privilege"))
    refusing.down = True
    async with renewing_lease(refusing, run, lease_seconds=LEASE):
        await asyncio.sleep(0.4 * LEASE)
        refusing.down = False
        await asyncio.sleep(LEASE)
        until = world.row(recorded.message_id).locked_until
        assert until is not None
        assert until > world.clock()


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
    assert 0 < fact.seconds < 0.01

"""Messages that no delivery brings, or none in time: orphaned, exhausted, passed, missed or given back."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.leases import InFlightMessage
from sea_mq_worker.inbox.message import GivenBack, Lease
from sea_mq_worker.inbox.rescue import ReturnedMessages
from sea_mq_worker.inbox.undelivered import Missed, Passed, Standing, find_missed
from sea_mq_worker.testing.handler import Respond
from tests.support.builders import dead_letter, inbound_message
from tests.support.inbox_loop import ATTEMPTS_MAX, LEASE, OVERDUE, SLOW_AFTER, SUBJECT, World, always
from tests.support.simulation import in_virtual_time

CONSUMER: Any = object()

# --- Orphaned: recorded without an outcome, and acknowledged by somebody else.


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


# --- Exhausted: the server gave it up after max_deliver.


async def give_up(world: World, *, body: bytes = b"{}") -> tuple[str, InFlightMessage]:
    """Let the server give up a message after its last delivery; return its id and that delivery."""
    message_id = world.send(body=body)
    [message] = await world.consumer.fetch(1)
    await world.consumer.nak(message, delay_seconds=0)
    await world.consumer.fetch(1)
    assert world.consumer.exhausted_deliveries
    return message_id, InFlightMessage.of(message, world.consumer, received_at=world.clock())


async def lease_last(world: World, item: InFlightMessage) -> Lease:
    """Lease a message as the worker did that had the last delivery."""
    [receipt] = await world.leases().record([item], world.stop)
    assert isinstance(receipt, Lease)
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
    run = await lease_last(world, item)
    await world.inbox.mark_processed_batch([run])
    async with world.consuming():
        await settled(world)
    assert world.dead_lettered() == []
    assert not world.handler.calls


@in_virtual_time
async def test_a_message_whose_last_delivery_killed_its_worker_waits_for_the_lease_to_end() -> None:
    world = World(max_deliver=1)
    message_id, item = await give_up(world)
    await lease_last(world, item)
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
    run = await lease_last(world, item)
    await world.inbox.begin_dead_letter(run, reason="INVALID_PAYLOAD", detail="")
    message = dead_letter(item.message, message_id=message_id, reason="INVALID_PAYLOAD")
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


@in_virtual_time
async def test_an_exhausted_message_waits_for_a_slot_while_others_are_read_ahead() -> None:
    world = World(max_ack_pending=4, max_deliver=1)
    world.change_settings(inbox_backoff_seconds=300.0, handler_slow_after=100)
    world.handler.script = lambda request, _call: (
        Respond(status=500) if request.payload == b"0" else Respond(slow_seconds=25)
    )
    exhausted, _ = await give_up(world)
    world.exhausted.down = True
    for _ in range(4):
        world.send(body=b"0")
    for _ in range(100):
        world.send()

    def in_hand() -> int:
        return sum(row.locked_by is not None for row in world.table.rows.values())

    async with world.consuming():
        await world.events.seen("message_retried", count=4)
        await asyncio.sleep(5)
        assert in_hand() == 2, "half of max_ack_pending"
        world.exhausted.down = False
        await world.events.seen("circuit_closed", within=20)
        await asyncio.sleep(1)
        assert in_hand() == 2, "their calls last"
        for _ in range(100):
            await asyncio.sleep(1)
            assert in_hand() <= 4, "the slots that were free for both"
    assert world.row(exhausted).processed_at is not None


# --- Given back: the memory of what waits for its next delivery.


def test_a_type_takes_its_own_and_thousands_may_wait_for_bodies_are_not_kept() -> None:
    returned = ReturnedMessages(CONSUMER, clock=lambda: 0.0)
    message = inbound_message(reply="$JS.ACK.x", payload=b"x" * 1024)
    for seq, event_type in enumerate(("other", "made"), message.seq - 1):
        returned.add(
            message._replace(seq=seq), GivenBack("503", delay_seconds=60, event_type=event_type), CONSUMER
        )
    [(remembered, _, _)] = returned.take("made")
    assert remembered == message._replace(payload=b"", headers={})


def test_a_message_that_is_delivered_too_soon_waits_on_under_its_new_reply_subject() -> None:
    returned = ReturnedMessages(CONSUMER, clock=lambda: 0.0)
    read_ahead = inbound_message(reply="")
    returned.add(
        read_ahead, GivenBack("503", delay_seconds=60, event_type="made", least_seconds=40), CONSUMER
    )
    assert returned.take_back(inbound_message(reply="$JS.ACK.x")) == 40
    [(waiting, _, delay_seconds)] = returned.take("made")
    assert (waiting.reply, delay_seconds) == ("$JS.ACK.x", 40)


# --- Missed: two states of a consumer tell what was never delivered and is gone.

BEFORE = Standing(
    stream_created="2025-01-01",
    consumer_created="2025-01-02",
    first_seq=1,
    last_seq=50,
    delivered=10,
    deliveries=10,
    pending=40,
    takes_all=True,
    replaces=False,
)
FILTERED = replace(BEFORE, takes_all=False, pending=3)
DONE = replace(BEFORE, delivered=50, deliveries=50, pending=0)
ANEW = replace(BEFORE, consumer_created="2025-02-01", first_seq=31, delivered=30, deliveries=0, pending=20)
MISSED: dict[str, tuple[Standing | None, dict[str, object], Missed | None]] = {
    "retention took them from a consumer that was away": (
        BEFORE, {"first_seq": 41, "pending": 10}, Missed(11, 40, 30)),
    "a purge took them, and the server moved the consumer on": (
        BEFORE, {"first_seq": 81, "last_seq": 80, "delivered": 80, "pending": 0}, Missed(11, 80, 70)),
    "they were delivered before they left": (
        BEFORE, {"first_seq": 61, "last_seq": 70, "delivered": 70, "deliveries": 75, "pending": 0}, None),
    "deliveries that are repeated make the count too low": (
        BEFORE, {"first_seq": 41, "delivered": 45, "deliveries": 18, "pending": 5}, Missed(11, 40, 27)),
    "of a filtered consumer only the pending ones": (
        FILTERED, {"first_seq": 200, "last_seq": 300, "pending": 0}, Missed(11, 199, 3)),
    "a filtered consumer without pending ones": (
        replace(FILTERED, pending=0), {"first_seq": 200, "pending": 0}, None),
    "the stream was made anew": (
        BEFORE,
        {"stream_created": "2025-02-01", "consumer_created": "2025-02-01", "last_seq": 5, "pending": 5},
        Missed(11, 50, 40)),
    "the stream lost its end": (BEFORE, {"last_seq": 45, "pending": 35}, Missed(46, 50, 5)),
    "the stream lost its end and more": (
        BEFORE, {"last_seq": 8, "delivered": 8, "deliveries": 8, "pending": 0}, Missed(11, 50, 40)),
    "the stream lost an end that was delivered": (DONE, {"last_seq": 45}, None),
    "they were stored between the requests of a check": (
        replace(DONE, delivered=55, deliveries=55),
        {"first_seq": 61, "last_seq": 60, "delivered": 60, "deliveries": 60}, None),
    "a stream that replaces them": (BEFORE, {"first_seq": 41, "pending": 10, "replaces": True}, None),
}  # fmt: skip


@pytest.mark.parametrize("why", MISSED)
def test_messages_are_missed_that_were_never_delivered_and_are_gone(why: str) -> None:
    before, changes, found = MISSED[why]
    assert before is not None
    assert find_missed(before, replace(before, **changes)) == found


@pytest.mark.parametrize(("takes_all", "found"), [(True, Missed(11, 20, 10)), (False, None)])
def test_at_the_first_look_the_stream_may_begin_behind_what_was_delivered(
    *, takes_all: bool, found: Missed | None
) -> None:
    assert find_missed(None, replace(BEFORE, first_seq=21, pending=30, takes_all=takes_all)) == found


def test_what_a_recreated_durable_begins_behind_is_missed_as_what_left_the_stream() -> None:
    assert find_missed(BEFORE, ANEW) == Missed(11, 30, 20)
    assert find_missed(BEFORE, replace(ANEW, pending=15)) == Missed(11, 30, 20)
    assert find_missed(BEFORE, replace(ANEW, delivered=50, pending=0)) == Missed(11, 50, 40)
    assert find_missed(BEFORE, replace(ANEW, first_seq=1, delivered=0, deliveries=0, pending=50)) is None
    now = replace(ANEW, takes_all=False, delivered=45, deliveries=4, pending=2)
    assert find_missed(replace(FILTERED, pending=10), now) == Missed(11, 45, 4)


# --- Passed: which of the messages behind ``compared`` are to be compared with the inbox.


def passed(*looks: tuple[str, int, int]) -> Passed:
    search = Passed(("stream", "consumer"), "a", 10, 10)
    for look in looks:
        search.look(*look)
    return search


def test_nothing_is_compared_while_the_same_server_answers() -> None:
    search = passed()
    for settled in (20, 30, 40):
        assert search.look("a", settled, 50) <= search.compared
    assert search.compared == 30


def test_after_another_server_answers_all_is_compared_that_was_stored_by_then() -> None:
    search = passed(("a", 20, 20))
    assert (search.look("b", 30, 50), search.compared) == (30, 10)
    search.compared = 30
    assert (search.look("b", 30, 60), search.compared) == (30, 30)
    assert (search.look("b", 70, 80), search.compared) == (50, 30)
    search.compared = 50
    assert search.look("b", 90, 90) <= search.compared


def test_what_is_stored_anew_in_the_place_of_lost_messages_is_compared() -> None:
    search = passed(("a", 100, 100))
    assert (search.look("b", 100, 95), search.compared) == (95, 10)
    search.compared = 95
    assert (search.look("b", 100, 105), search.compared) == (100, 95)


def test_a_consumer_that_was_set_back_is_compared_from_there() -> None:
    assert passed(("a", 20, 20), ("b", 5, 20)).compared == 5

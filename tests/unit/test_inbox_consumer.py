"""The inbound loop on in-memory fakes, in virtual time."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sea_mq_worker.inbox.message import HandlerRequest
from sea_mq_worker.testing.handler import Behaviour, FailBatch, LoseResponse, Respond, Unreachable
from sea_mq_worker.testing.stream import InMemoryPublisher
from tests.support.inbox_loop import (
    ACK_WAIT,
    ATTEMPTS_MAX,
    CONCURRENCY,
    LEASE,
    SLOW_AFTER,
    SUBJECT,
    World,
    always,
)
from tests.support.simulation import in_virtual_time


def losing_the_database(world: World, *, status: int = 200) -> Any:
    """Answer, and lose the database before the outcome can be recorded."""

    def behave(_request: HandlerRequest, _call: int) -> Behaviour:
        world.inbox.down = True
        return Respond(status=status)

    return behave


@pytest.mark.clause("POL-047-005", "CMD-051", "handler-200")
@in_virtual_time
async def test_a_message_that_is_handled_is_recorded_and_then_acknowledged() -> None:
    world = World()
    message_id = world.send()
    async with world.consuming():
        fact = await world.events.seen("message_processed")
    assert (fact.message_id, fact.status) == (message_id, 200)
    assert world.row(message_id).processed_at is not None
    assert world.consumer.acked == [1]


@pytest.mark.clause("POL-047-005", "handler-200")
@in_virtual_time
async def test_a_message_whose_effect_is_there_already_counts_as_handled() -> None:
    world = World()
    message_id = world.send()
    world.handler.script = lambda _request, call: LoseResponse() if call == 1 else Respond()
    async with world.consuming():
        fact = await world.events.seen("message_processed")
    assert (fact.message_id, fact.status) == (message_id, 409)
    assert world.handler.effects[message_id] == 1
    assert world.consumer.acked == [1]


@pytest.mark.clause("POL-047-006", "CMD-052", "EVT-047-002", "handler-422")
@in_virtual_time
async def test_a_rejected_message_is_dead_lettered_and_then_acknowledged() -> None:
    world = World()
    message_id = world.send(body=b'{"vibe": 1}')
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        await world.events.seen("message_dead_lettered")
        await asyncio.sleep(1)
    [letter] = world.dead_letters.entries()
    assert letter.subject == f"sea.dlq.{SUBJECT}"
    assert letter.payload == b'{"vibe": 1}'
    assert world.dead_lettered() == [(message_id, "REJECTED")]
    assert world.row(message_id).dead_lettered_at is not None
    assert world.consumer.acked == [1]


@pytest.mark.clause("POL-047-007", "handler-5xx")
@pytest.mark.parametrize("status", [500, 503, 400, 418, 201])
@in_virtual_time
async def test_any_other_answer_brings_the_message_again(status: int) -> None:
    world = World()
    message_id = world.send()
    world.handler.script = lambda _request, call: Respond(status=status if call == 1 else 200)
    async with world.consuming():
        retried = await world.events.seen("message_retried")
        assert world.consumer.acked == []
        await world.events.seen("message_processed")
    assert (retried.message_id, retried.attempts, retried.delay_seconds) == (message_id, 1, 0.5)
    assert world.consumer.naks == [(1, 0.5)]


@pytest.mark.clause("POL-047-007", "handler-5xx")
@in_virtual_time
async def test_an_unreachable_handler_pauses_the_loop_and_spends_no_attempt() -> None:
    world = World()
    ids = [world.send()]
    world.handler.script = always(Unreachable())
    async with world.consuming():
        paused = await world.events.seen("circuit_opened")
        ids += [world.send() for _ in range(29)]
        await asyncio.sleep(1)
        assert len(world.table.rows) == 1, "one message tries the handler, other workers may have the rest"
        await asyncio.sleep(3600)
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", count=len(ids))
    assert paused.circuit == "handler"
    assert {world.row(message_id).attempts for message_id in ids} == {1}
    assert world.dead_lettered() == []


@in_virtual_time
async def test_a_worker_whose_handler_is_unreachable_leaves_its_messages_to_one_that_waits_for_some() -> None:
    world = World()
    ids = [world.send() for _ in range(CONCURRENCY)]
    world.handler.script = always(Unreachable())
    async with world.consuming():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(3 * LEASE)
        assert world.consumer.naks == [], "nobody else takes messages"
        began, taken = world.clock(), []
        while len(taken) < len(ids):
            taken += await world.consumer.fetch(len(ids))
            assert world.clock() - began < 2 * LEASE / 3
        assert {message.deliveries for message in taken} == {2}
        assert {world.row(message_id).attempts for message_id in ids} == {0}
        assert all(world.row(message_id).locked_by is None for message_id in ids)
        for message in taken:
            await world.consumer.ack(message)


@in_virtual_time
async def test_a_worker_that_gave_its_last_message_away_finds_that_its_handler_is_back() -> None:
    world = World()
    ids = [world.send() for _ in range(CONCURRENCY)]
    world.handler.script = always(Unreachable())
    async with world.consuming():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(3 * LEASE)
        while ids:
            for message in await world.consumer.fetch(len(ids)):
                await world.consumer.ack(message)
                ids.pop()
        await asyncio.sleep(3600)
        assert world.events.of("circuit_closed") == []
        world.handler.script = always(Respond())
        await world.events.seen("circuit_closed", within=15.0)
    assert world.handler.requests == []


@in_virtual_time
async def test_workers_that_all_fail_do_not_use_up_the_deliveries_of_a_message_between_them() -> None:
    world = World()
    world.send()
    world.handler.script = always(Unreachable())
    async with world.consuming():
        deliveries, until = 0, world.clock() + 86_400
        while world.clock() < until:
            for message in await world.consumer.fetch(1):
                deliveries = message.deliveries
                await world.consumer.nak(message, delay_seconds=0.1)
        assert 2 <= deliveries <= 2 * 11, "in a day, half of them by the other worker"
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", within=86_400)


@in_virtual_time
async def test_a_call_that_breaks_off_does_not_show_that_an_unreachable_handler_is_back() -> None:
    world = World()
    ids = [world.send() for _ in range(6)]
    calls = itertools.count()
    world.handler.script = lambda _request, _call: Unreachable() if next(calls) % 2 == 0 else LoseResponse()
    async with world.consuming():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(30)
        assert world.events.of("circuit_closed") == []
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", count=len(ids), within=400.0)


@pytest.mark.clause("POL-047-003", "CMD-051-idempotency")
@in_virtual_time
async def test_a_processed_message_that_comes_again_is_acknowledged_without_a_call() -> None:
    world = World()
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("message_processed")
        world.send(message_id=message_id)
        await world.events.seen("message_skipped")
    assert world.handler.calls[message_id] == 1
    assert world.consumer.acked == [1, 2]


@pytest.mark.clause("POL-047-003")
@pytest.mark.fault("S14")
@in_virtual_time
async def test_a_known_id_with_another_content_is_dead_lettered_under_an_id_of_its_own() -> None:
    world = World()
    message_id = world.send(body=b"1")
    async with world.consuming():
        await world.events.seen("message_processed")
        world.send(message_id=message_id, body=b"2")
        fact = await world.events.seen("message_dead_lettered")
    assert fact.reason == "CONTENT_CONFLICT"
    assert fact.message_id != message_id
    assert world.handler.calls[message_id] == 1
    assert [entry.payload for entry in world.dead_letters.entries()] == [b"2"]


@pytest.mark.parametrize("other", ["sea__from_another", "sea__from_vibespro"])
@in_virtual_time
async def test_messages_settled_by_another_workers_consumer_are_reported_once_and_counted(other: str) -> None:
    world = World()
    ids = [world.send() for _ in range(3)]
    async with world.consuming():
        await world.events.seen("message_processed", count=3)
        for message_id in ids:
            row = world.row(message_id)
            row.entry = row.entry._replace(consumer=other)
            world.send(message_id=message_id)
        await world.events.seen("message_skipped", count=3)
    foreign = other != world.consumer.name
    skipped = world.events.of("message_skipped")
    assert [fact.brought_by for fact in skipped] == [other if foreign else ""] * 3
    reported = [notice.key for notice in world.events.notices]
    assert reported == ["consumers_overlap"] * foreign


@pytest.mark.parametrize("large", [{"body": b'"%s"' % (b"x" * 448)}, {"large": "x" * 448}])
@in_virtual_time
async def test_messages_in_hand_are_bounded_by_their_bytes(large: dict[str, Any]) -> None:
    world = World()
    world.change_settings(inbox_bytes_max=1400)
    world.handler.script = always(Respond(slow_seconds=10))
    for _ in range(5):
        world.send(**large)
    async with world.consuming():
        await asyncio.sleep(5)
        assert len(world.handler.requests) == 3, (
            "two make 1200 bytes or more, and one may be larger than the rest"
        )
        await world.events.seen("message_processed", count=5, within=60)


@in_virtual_time
async def test_the_body_of_a_message_whose_attempts_are_spent_is_not_looked_at() -> None:
    """It may be what killed the worker each time."""
    world = World()
    deadly = world.send(body=b"{")
    [message] = await world.consumer.fetch(1)
    for _ in range(ATTEMPTS_MAX):
        await world.record(message)
        await asyncio.sleep(LEASE)
    async with world.consuming():
        await world.events.seen("message_dead_lettered", within=2 * ACK_WAIT)
    assert world.dead_lettered() == [(deadly, "EXHAUSTED")]


@pytest.mark.parametrize("status", [200, 500])
@in_virtual_time
async def test_the_databases_circuit_stays_open_while_there_is_nothing_to_write(status: int) -> None:
    world = World()
    world.send()
    world.handler.script = losing_the_database(world, status=status)
    async with world.consuming():
        await world.events.seen("circuit_opened", lambda fact: fact.circuit == "store")
        await asyncio.sleep(LEASE / 2)
        assert world.events.of("circuit_closed") == []


@in_virtual_time
async def test_an_effect_is_recorded_when_the_database_is_back_and_acknowledged_only_then() -> None:
    world = World()
    world.send()
    world.handler.script = losing_the_database(world)
    async with world.consuming():
        await world.events.seen("circuit_opened", lambda fact: fact.circuit == "store")
        await asyncio.sleep(LEASE / 2)
        assert world.consumer.acked == []
        world.inbox.down = False
        await world.events.seen("message_processed")
    assert world.consumer.acked == [1]


@in_virtual_time
async def test_in_flight_messages_wait_for_one_of_fewer_calls_and_a_stop_gives_them_back() -> None:
    world = World(max_ack_pending=3 * CONCURRENCY)
    ids = [world.send() for _ in range(3 * CONCURRENCY)]
    world.handler.script = always(Respond(slow_seconds=10.0))
    async with world.consuming():
        await asyncio.sleep(15)
        called = [request.message_id for request in world.handler.requests]
        assert called == ids[: 2 * CONCURRENCY], "in order, as many at a time as there are calls"
        assert len(world.table.rows) == len(ids)
        world.stop.set()
        await asyncio.sleep(1)
        assert [seq for seq, _ in world.consumer.naks] == [*range(2 * CONCURRENCY + 1, len(ids) + 1)]
    assert sorted(world.consumer.acked) == [*range(1, 2 * CONCURRENCY + 1)]
    given_back = [world.row(message_id) for message_id in ids[2 * CONCURRENCY :]]
    assert {(row.attempts, row.locked_by) for row in given_back} == {(0, None)}


@in_virtual_time
async def test_a_message_of_a_failed_batch_is_called_for_again_in_smaller_ones_uncounted() -> None:
    world = World()
    world.handler.script = lambda request, _call: (
        Respond() if request.batch_max == 1 else FailBatch((request.batch_max or 8) // 2)
    )
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("message_processed")
    assert [request.batch_max for request in world.handler.requests] == [0, 4, 2, 1]
    assert world.row(message_id).attempts == 1


@in_virtual_time
async def test_a_message_that_failed_before_is_sent_by_itself() -> None:
    world = World()
    world.send()
    world.handler.script = lambda _request, call: LoseResponse() if call == 1 else Respond()
    async with world.consuming():
        await world.events.seen("message_processed")
    assert [request.batch_max for request in world.handler.requests] == [0, 1]


@pytest.mark.clause("POL-047-006")
@in_virtual_time
async def test_bad_messages_with_good_ones_between_them_do_not_make_their_type_slow() -> None:
    world = World()
    world.handler.script = lambda request, _call: Respond(status=422 if request.payload == b'"bad"' else 200)
    async with world.consuming():
        for good in range(1, 4):
            for _ in range(SLOW_AFTER - 1):
                world.send(body=b'"bad"')
            await world.events.seen("message_dead_lettered", count=good * (SLOW_AFTER - 1))
            world.send()
            await world.events.seen("message_processed", count=good)
    assert world.events.of("type_slowed") == []


@in_virtual_time
async def test_messages_do_not_wait_behind_others_that_wait_for_their_retries() -> None:
    world = World(max_ack_pending=4)
    world.change_settings(inbox_backoff_seconds=300.0, handler_slow_after=100)
    world.handler.script = lambda request, _call: Respond(status=500 if request.payload == b"0" else 200)
    async with world.consuming():
        for sent in range(1, 21):
            world.send(body=b"0")
            world.send()
            await world.events.seen("message_processed", count=sent, within=2.0)
    assert len(world.events.of("message_retried")) == 20


@pytest.mark.clause("EVT-047-002")
@in_virtual_time
async def test_a_dead_letter_that_is_too_large_leaves_its_body_in_the_original_stream() -> None:
    world = World()
    world.dlq = InMemoryPublisher(stream=world.dead_letters, clock=world.clock, max_payload=2000)
    message_id = world.send(body=b'"' + b"x" * 2000 + b'"')
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        await world.events.seen("message_dead_lettered")
    [letter] = world.dead_letters.entries()
    assert world.dead_lettered() == [(message_id, "REJECTED")]
    assert (letter.payload, letter.headers["Dlq-Body-Omitted"]) == (b"", "2002")


def stopping(world: World) -> Any:
    """Stop the worker in a call, and fail the batch."""

    def behave(_request: HandlerRequest, _call: int) -> Behaviour:
        world.stop.set()
        return FailBatch(4)

    return behave


STOPS: dict[str, tuple[Callable[[World], Any], int | None]] = {
    "before an unreachable handler": (lambda _: always(Unreachable()), 0),
    "after a failed batch": (stopping, 0),
    "before an effect is recorded": (losing_the_database, 1),
    "before the message is recorded": (lambda _: always(Respond()), None),
}


@pytest.mark.parametrize("when", STOPS)
@in_virtual_time
async def test_a_stop_gives_messages_back_without_an_attempt(when: str) -> None:
    world = World()
    script, attempts = STOPS[when]
    world.handler.script = script(world)
    world.inbox.down = attempts is None
    message_id = world.send()
    async with world.consuming():
        if when == "after a failed batch":
            await world.stop.wait()
        else:
            await world.events.seen("circuit_opened")
    assert world.consumer.acked == []
    assert [seq for seq, _ in world.consumer.naks] == [1]
    assert [row.attempts for row in world.table.rows.values()] == ([] if attempts is None else [attempts])
    assert world.handler.effects[message_id] == (1 if when == "before an effect is recorded" else 0)

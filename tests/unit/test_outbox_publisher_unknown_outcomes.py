"""The outbound loop with unknown outcomes, while paused, and without its session."""

import asyncio
from typing import Any

import pytest

from sea_mq_worker.errors import (
    BrokerUnavailableError,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.testing.stream import Fault
from tests.support.simulation import Interrupted, in_virtual_time
from tests.unit.test_outbox_publisher import LEASE, World


@in_virtual_time
async def test_no_other_worker_gets_the_head_of_a_key_while_this_one_holds_what_follows() -> None:
    world = World(ordered=True, keeps_order=True)
    for event_id in ("a1", "a2"):
        world.table.add(event_id, ordering_key="a")
    world.faults["a1"] = Fault.FAILED
    postpone = world.outbox.increment_attempts_batch
    before: dict[str, str] = {}

    async def noted(*args: Any) -> Any:
        before.update(world.states())
        world.faults.clear()
        return await postpone(*args)

    world.outbox.increment_attempts_batch = noted
    async with world.relaying():
        await world.published(2)
    assert before == {"a1": "CLAIMED", "a2": "PENDING"}
    assert world.stored() == ["a1", "a2"]


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
        await world.events.seen("event_postponed")
        world.faults.clear()
        await world.published(1)
    assert world.stored() == ["a"]
    assert (row.stream_seq, len(world.events.of("event_postponed"))) == (1, 1)


@in_virtual_time
async def test_a_settlement_that_outlasts_its_lease_is_given_up_and_stored_only_once() -> None:
    world = World()
    world.table.add("a")

    def lose_database(_event_id: str) -> None:
        world.outbox.down = len(world.sent) == 1

    world.on_send = lose_database
    async with world.relaying():
        lost = await world.events.seen("leases_lost", within=2 * LEASE)
        world.outbox.down = False
        await asyncio.sleep(1)
        assert (await world.outbox.reap()).leases == 1
        await world.published(1)
    assert (lost.side, lost.count) == ("outbox", 1)
    assert world.sent == ["a", "a"]
    assert world.stored() == ["a"]


@pytest.mark.clause("CMD-050-idempotency")
@in_virtual_time
async def test_a_possibly_published_event_waits_while_the_stream_cannot_be_searched() -> None:
    world = World(window=10.0, delay=60.0)
    searching = Interrupted(world.publisher, BrokerUnavailableError("no leader"))
    searching.down = True
    find, world.publisher.find = world.publisher.find, searching.find
    world.table.add("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.events.seen("event_postponed", lambda fact: fact.error == "no leader", within=600.0)
        assert "no leader" not in [fact.reason for fact in world.events.of("circuit_opened")]
        world.table.add("b")
        await world.published(1)
        assert world.states() == {"a": "PENDING", "b": "PUBLISHED"}
        await world.events.seen("search_unfinished", within=6000.0)
        world.publisher.find = find
        await world.published(2)
    assert world.sent == ["a", "b"]
    assert world.row("a").failures == 0


@pytest.mark.parametrize("change", ["the stream's window", "the database's clock"])
@in_virtual_time
async def test_a_repeat_is_searched_for_after_a_change_of(change: str) -> None:
    world = World(window=10.0 if "clock" in change else 3600.0)
    world.table.add("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.events.seen("event_postponed")
        world.faults.clear()
        world.row("a").available_at = world.clock() + 20.0
        if "clock" in change:
            world.row("a").first_attempt_at = world.clock() + 600.0
        world.stream.duplicate_window_seconds = 10.0
        await world.published(1)
    assert world.stored() == ["a"]


@in_virtual_time
async def test_a_window_that_was_shortened_while_no_answer_came_lets_no_second_copy_in() -> None:
    world = World(window=3600.0, delay=60.0)
    world.table.add("a")
    world.publisher.hears = False
    async with world.relaying():
        await world.events.seen("event_postponed")
        world.stream.duplicate_window_seconds = 1.0
        await world.events.seen("event_postponed", count=2, within=600.0)
        world.publisher.hears = True
        await world.published(1)
    assert world.stored() == ["a"]


@pytest.mark.parametrize("fault", [Fault.ACK_LOST, Fault.LOST], ids=["stored", "not stored"])
@in_virtual_time
async def test_a_search_longer_than_a_claim_continues_and_delays_no_event(fault: Fault) -> None:
    world = World(window=10.0, delay=60.0, ordered=True)
    for number in range(40):
        world.stream.store("sea.event.order.created.v1", b"{}", {"Nats-Msg-Id": f"other {number}"})
    world.table.add("a", ordering_key="k")
    world.table.add("behind", ordering_key="k")
    world.faults["a"] = fault
    world.publisher.find_max = 7
    async with world.relaying():
        await world.events.seen("event_postponed")
        del world.faults["a"]
        await world.events.seen("event_postponed", lambda fact: "searched" in fact.error, within=600.0)
        for number in range(5):
            world.table.add(f"new {number}", ordering_key=str(number))
            await world.published(number + 1)
        await world.published(7)
    [opened] = world.events.of("circuit_opened")
    assert opened.reason.startswith("no acknowledgement")
    events = [name for name in world.stored() if name in {"a", "behind"}]
    assert events == ["a", "behind"]
    assert world.row("a").failures == 0


@in_virtual_time
async def test_a_connection_that_comes_back_ends_the_pause_though_nothing_waits() -> None:
    world = World()
    world.publisher.connected = False
    async with world.relaying():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(600)
        assert world.events.of("circuit_closed") == []
        world.publisher.connected = True
        await world.events.seen("circuit_closed", within=600.0)


@in_virtual_time
async def test_a_stream_that_refused_stays_paused_until_it_takes_something() -> None:
    world = World()
    lane = world.lane()
    lane.broker_breaker.record_failure("the stream is full", refused=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await asyncio.sleep(600)
        assert world.events.of("circuit_closed") == []
        world.table.add("a")
        await world.published(1)
        world.stop.set()


@in_virtual_time
async def test_a_probe_whose_only_good_news_is_an_event_that_was_found_gives_others_their_turn() -> None:
    world = World(window=10.0)
    for event_id in ("barred", "barred too"):
        world.table.add(event_id)
        world.faults[event_id] = Fault.BARRED
    world.table.add("doubtful")
    world.faults["doubtful"] = Fault.ACK_LOST
    async with world.relaying():
        await world.published(1)
        world.faults.clear()
        await world.published(3)
    assert world.stored() == ["doubtful", "barred", "barred too"]

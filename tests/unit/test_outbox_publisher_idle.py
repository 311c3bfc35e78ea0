"""A relay that has nothing to publish, or nothing that gets through, does not stay paused for it."""

import asyncio

import pytest

from sea_mq_worker.domain.errors import ContractError, DependencyError, StoreUnavailableError
from sea_mq_worker.domain.facts import CircuitClosed, CircuitOpened
from sea_mq_worker.testing.publisher import Fault
from tests.support.simulation import Interrupted, in_virtual_time
from tests.unit.test_outbox_publisher import World


@in_virtual_time
async def test_a_connection_that_comes_back_ends_the_pause_though_nothing_waits() -> None:
    world = World()
    world.publisher.connected = False
    async with world.relaying():
        await world.observer.seen(CircuitOpened)
        await asyncio.sleep(600)
        assert world.observer.of(CircuitClosed) == []
        world.publisher.connected = True
        await world.observer.seen(CircuitClosed, within=600.0)


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), ContractError("a table is missing")])
@in_virtual_time
async def test_a_claim_that_the_database_cannot_answer_pauses_the_lane_until_it_can(
    error: DependencyError,
) -> None:
    world = World()
    world.table.add("a")
    world.outbox = Interrupted(world.outbox, error)
    world.outbox.down = True
    async with world.relaying():
        await world.observer.seen(CircuitOpened, lambda fact: fact.reason == str(error))
        await asyncio.sleep(10.0)
        world.outbox.down = False
        await world.published(1)
    assert world.row("a").attempts == 1


@in_virtual_time
async def test_a_stream_that_refused_stays_paused_until_it_takes_something() -> None:
    world = World()
    lane = world.lane()
    lane.broker_breaker.record_failure("the stream is full")
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await asyncio.sleep(600)
        assert world.observer.of(CircuitClosed) == []
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

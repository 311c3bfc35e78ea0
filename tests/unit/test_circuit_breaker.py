"""The circuit breaker, by its waits in virtual time: 0.2 s at first, twice as long each time, at most 2 s."""

import asyncio

import pytest

from sea_mq_worker.errors import (
    BrokerUnavailableError,
    ContractError,
    DependencyError,
    FinalError,
    RowsRefusedError,
)
from sea_mq_worker.runtime.breaker import Permit, call_when_available
from sea_mq_worker.testing.events import Emitted
from tests.support.loop_world import LoopWorld
from tests.support.simulation import in_virtual_time


class World(LoopWorld):
    def __init__(self) -> None:
        super().__init__()
        self.breaker = self.parts().breaker("store")

    async def enter(self) -> Permit:
        return await self.breaker.enter(self.stop)

    async def probe_seconds(self) -> float:
        """Wait for the permit to probe; return for how long."""
        began = self.clock()
        assert await self.enter() is Permit.PROBE
        return round(self.clock() - began, 3)


@in_virtual_time
async def test_a_closed_circuit_lets_everything_through_even_during_a_stop() -> None:
    world = World()
    assert await world.enter() is Permit.FREE
    world.stop.set()
    assert await world.enter() is Permit.FREE


@in_virtual_time
async def test_an_open_circuit_lets_one_probe_through_and_the_others_after_its_success() -> None:
    world = World()
    world.breaker.record_failure("down")
    first, second, third = (asyncio.create_task(world.enter()) for _ in range(3))
    assert await first is Permit.PROBE
    await asyncio.sleep(10.0)
    assert not second.done()
    world.breaker.record_success()
    assert [await second, await third] == [Permit.FREE] * 2


@in_virtual_time
async def test_a_failed_probe_makes_the_next_wait_longer_and_one_that_tried_nothing_does_not() -> None:
    world = World()
    world.breaker.record_failure("down")
    waits = []
    for _ in range(6):
        waits.append(await world.probe_seconds())
        world.breaker.record_failure("down")
    assert waits == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    world = World()
    world.breaker.record_failure("down")
    for _ in range(2):
        assert await world.probe_seconds() == 0.2
        world.breaker.release()


@in_virtual_time
async def test_callers_probe_in_turn() -> None:
    world = World()
    world.breaker.record_failure("down")
    turns: list[str] = []

    async def probe(name: str) -> None:
        while await world.enter() is Permit.PROBE:
            turns.append(name)
            world.breaker.record_failure("down")

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(probe(name))
        await asyncio.sleep(60.0)
        world.stop.set()
    assert "".join(turns).startswith("abcabcabc")


@in_virtual_time
async def test_a_probe_may_try_more_each_time_that_it_was_refused_and_one_thing_after_silence() -> None:
    world = World()
    world.breaker.record_failure("no room", answered=True)
    allowed = [world.breaker.probe_batch_max]
    for answered in (True, True, True, True, False):
        await world.probe_seconds()
        world.breaker.record_failure("no room", answered=answered)
        allowed.append(world.breaker.probe_batch_max)
    assert allowed == [8, 64, 512, 4096, 4096, 1]


@in_virtual_time
async def test_late_failures_of_others_do_not_answer_for_the_probe() -> None:
    world = World()
    world.breaker.record_failure("down")
    world.breaker.record_failure("down, says a late one")
    assert world.breaker.reason == "down"
    assert await world.probe_seconds() == 0.2


@in_virtual_time
async def test_a_late_failure_during_a_probe_costs_one_probe_more_and_no_other_wait() -> None:
    world = World()
    world.breaker.record_failure("down")
    assert await world.probe_seconds() == 0.2
    world.breaker.record_failure("down, says a late one")
    world.breaker.record_failure("down, says the probe, whose place is free again")
    assert await world.probe_seconds() == 0.4
    world.breaker.record_success()
    assert await world.enter() is Permit.FREE


@in_virtual_time
async def test_a_stop_ends_the_wait() -> None:
    world = World()
    world.breaker.record_failure("down")
    waiting = asyncio.create_task(world.enter())
    world.stop.set()
    assert await waiting is Permit.STOPPED


async def ask(world: World, errors: list[DependencyError]) -> str:
    async def answer() -> str:
        if errors:
            raise errors.pop()
        return "done"

    return await call_when_available(answer, breaker=world.breaker, stop=world.stop)


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ContractError("a stream is missing")])
@in_virtual_time
async def test_outages_and_fixable_errors_are_retried(error: DependencyError) -> None:
    world, errors = World(), [error] * 3
    assert [await ask(world, errors), await ask(world, errors)] == ["done"] * 2
    opened, closed = world.events.emitted
    assert opened.key == "circuit_opened"
    assert closed == Emitted("circuit_closed", circuit="store", paused_seconds=world.clock())


@pytest.mark.parametrize("error", [FinalError("the schema is newer"), RowsRefusedError("a trigger")])
@in_virtual_time
async def test_what_no_waiting_helps_is_raised_at_once(error: DependencyError) -> None:
    world, errors = World(), [error] * 3
    with pytest.raises(type(error)):
        await ask(world, errors)
    assert (len(errors), world.events.emitted) == (2, [])

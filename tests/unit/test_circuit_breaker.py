import asyncio

import pytest

from sea_mq_worker.errors import (
    BrokerUnavailableError,
    ContractError,
    DependencyError,
    FinalError,
    RowsRefusedError,
)
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, Permit, call_when_available
from sea_mq_worker.testing.events import Emitted, RecordingEvents
from tests.support.loop_world import LoopWorld
from tests.support.simulation import in_virtual_time
from tests.support.waiting import eventually


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.stop = asyncio.Event()
        self.events = RecordingEvents()
        backoff = Backoff(base_seconds=0.01, cap_seconds=1.0, random=lambda: 1.0)
        self.breaker = CircuitBreaker(
            name="broker", backoff=backoff, events=self.events, clock=lambda: self.now
        )


async def test_a_closed_circuit_breaker_lets_everything_through() -> None:
    world = World()
    assert await world.breaker.enter(world.stop) is Permit.FREE
    world.stop.set()
    assert await world.breaker.enter(world.stop) is Permit.FREE


async def test_an_open_circuit_breaker_lets_one_probe_through_when_it_is_due() -> None:
    world = World()
    world.breaker.record_failure("down")
    world.now = 1.0
    assert await world.breaker.enter(world.stop) is Permit.PROBE
    second = asyncio.create_task(world.breaker.enter(world.stop))
    await asyncio.sleep(0)
    assert not second.done()
    world.breaker.record_success()
    assert await second is Permit.FREE


async def test_callers_probe_in_turn() -> None:
    world = World()
    world.breaker.record_failure("down")
    turns: list[str] = []

    async def probe(name: str) -> None:
        while await world.breaker.enter(world.stop) is Permit.PROBE:
            turns.append(name)
            world.breaker.record_failure("down")
            world.now += 1.0

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(probe(name))
        await asyncio.sleep(0)
        world.now = 1.0
        await eventually(lambda: len(turns) >= 9)
        world.stop.set()
    assert "".join(turns).startswith("abcabcabc")


async def test_a_failed_probe_keeps_it_closed_for_longer() -> None:
    world = World()
    world.breaker.record_failure("down")
    world.now = 1.0
    await world.breaker.enter(world.stop)
    world.breaker.record_failure("down")
    assert not world.breaker.is_closed
    waiting = asyncio.create_task(world.breaker.enter(world.stop))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.now = 2.0
    assert await waiting is Permit.PROBE


async def test_a_probe_may_try_more_each_time_that_it_was_refused_and_one_thing_after_silence() -> None:
    world = World()
    world.breaker.record_failure("no room", answered=True)
    allowed = [world.breaker.probe_batch_max]
    for answered in (True, True, True, True, False):
        world.now += 1.0
        assert await world.breaker.enter(world.stop) is Permit.PROBE
        world.breaker.record_failure("no room", answered=answered)
        allowed.append(world.breaker.probe_batch_max)
    assert allowed == [8, 64, 512, 4096, 4096, 1]


async def test_failures_of_others_do_not_answer_for_the_probe() -> None:
    world = World()
    world.breaker.record_failure("down")
    world.breaker.record_failure("down, says a late one")
    assert world.breaker.reason == "down"


async def test_a_probe_without_work_leaves_its_permit_to_the_next() -> None:
    world = World()
    world.breaker.record_failure("down")
    world.now = 1.0
    assert await world.breaker.enter(world.stop) is Permit.PROBE
    world.breaker.release()
    world.now = 2.0
    assert await world.breaker.enter(world.stop) is Permit.PROBE


async def test_a_stop_ends_the_wait() -> None:
    world = World()
    world.breaker.record_failure("down")
    waiting = asyncio.create_task(world.breaker.enter(world.stop))
    world.stop.set()
    assert await waiting is Permit.STOPPED


class Failing(LoopWorld):
    """A dependency that fails three times."""

    def __init__(self, error: DependencyError) -> None:
        super().__init__()
        self._breaker = self.parts().breaker("store", cap_seconds=2.0)
        self.errors = [error] * 3

    async def ask(self) -> str:
        return await call_when_available(self._answer, breaker=self._breaker, stop=self.stop)

    async def _answer(self) -> str:
        if self.errors:
            raise self.errors.pop()
        return "done"


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ContractError("a stream is missing")])
@in_virtual_time
async def test_outages_and_fixable_errors_are_retried(error: DependencyError) -> None:
    failing = Failing(error)
    assert [await failing.ask(), await failing.ask()] == ["done"] * 2
    opened, closed = failing.events.emitted
    assert opened.key == "circuit_opened"
    assert closed == Emitted("circuit_closed", circuit="store", paused_seconds=failing.clock())


@pytest.mark.parametrize("error", [FinalError("the schema is newer"), RowsRefusedError("a trigger")])
@in_virtual_time
async def test_what_no_waiting_helps_is_raised_at_once(error: DependencyError) -> None:
    failing = Failing(error)
    with pytest.raises(type(error)):
        await failing.ask()
    assert (len(failing.errors), failing.events.emitted) == (2, [])

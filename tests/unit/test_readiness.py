"""A fault that an operator must fix may last for the set time, and no longer."""

import asyncio

import pytest

from sea_mq_worker.errors import ContractError, DependencyError, StoreUnavailableError
from sea_mq_worker.runtime.breaker import call_when_available
from tests.support.loop_world import LoopWorld
from tests.support.simulation import in_virtual_time

LIMIT = 60.0


class World(LoopWorld):
    def __init__(self, error: DependencyError) -> None:
        super().__init__()
        context = self.context()
        self.breaker, self.readiness = context.breaker("inbox database", cap_seconds=2.0), context.readiness
        self.error: DependencyError | None = error

    async def ask(self) -> None:
        if self.error:
            raise self.error

    async def keep_asking(self) -> None:
        while not self.stop.is_set():
            await call_when_available(self.ask, breaker=self.breaker, stop=self.stop)
            await asyncio.sleep(1)


@pytest.mark.fault("D17")
@in_virtual_time
async def test_trouble_longer_than_the_limit_ends_the_worker() -> None:
    world = World(ContractError("permission denied"))
    asking = asyncio.create_task(world.keep_asking())
    with pytest.raises(
        ContractError, match="inbox database: permission denied; it was not fixed within 60 s"
    ):
        await world.readiness.give_up_after(LIMIT, world.stop)
    assert LIMIT < world.clock() < LIMIT + 5
    asking.cancel()


@in_virtual_time
async def test_trouble_that_ends_in_time_does_not_end_the_worker() -> None:
    world = World(ContractError("permission denied"))
    async with asyncio.TaskGroup() as group:
        group.create_task(world.keep_asking())
        group.create_task(world.readiness.give_up_after(LIMIT, world.stop))
        for error in (None, ContractError("again"), StoreUnavailableError("away")):
            await asyncio.sleep(LIMIT - 5)
            world.error = error
        await asyncio.sleep(10 * LIMIT)
        world.error = None
        await asyncio.sleep(LIMIT)
        world.stop.set()


@in_virtual_time
async def test_a_part_that_is_refused_is_given_up_with_its_reason() -> None:
    world = World(StoreUnavailableError("away"))
    world.readiness.check("nats outbox", lambda: "refused", broken_seconds=world.clock)
    with pytest.raises(ContractError, match="nats outbox: refused"):
        await world.readiness.give_up_after(LIMIT, world.stop)

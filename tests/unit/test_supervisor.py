"""The loops' end and its exit code; and how long a fault that an operator must fix may last."""

import asyncio
import contextlib

import pytest

from sea_mq_worker.errors import ContractError, DependencyError, StoreUnavailableError
from sea_mq_worker.runtime.breaker import periodic
from sea_mq_worker.runtime.supervisor import ExitCode, Loop, supervise
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.testing.events import Emitted, RecordingEvents
from tests.support.loop_world import LoopWorld
from tests.support.simulation import in_virtual_time

LIMIT = 60.0


async def until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


async def supervised(
    *, grace_seconds: float = 5.0, stop: asyncio.Event | None = None, **loops: Loop
) -> tuple[ExitCode, RecordingEvents]:
    events, stop = RecordingEvents(), stop or asyncio.Event()
    given = {"name": "w", "version": "1"}
    return await supervise(loops, stop, events=events, grace_seconds=grace_seconds, **given), events


async def test_the_death_of_one_loop_stops_the_worker() -> None:
    async def dies(_: asyncio.Event) -> None:
        raise ExceptionGroup("of a group", [RuntimeError("a secret payload")])

    code, events = await supervised(a=until_stopped, b=dies)
    assert code is ExitCode.GAVE_UP
    [noticed] = events.notices
    assert noticed.key == "loop_died"
    assert "b died: RuntimeError" in noticed.text
    assert "secret" not in noticed.text


async def test_a_call_that_is_cancelled_from_within_stops_the_worker_with_an_error() -> None:
    async def waits(stop: asyncio.Event) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.cancel)  # as a driver does that gives up its connection
        with contextlib.suppress(StoppedError):
            await cancel_on_stop(stop, answer)

    code, events = await supervised(a=until_stopped, b=waits)
    assert code is ExitCode.GAVE_UP
    assert events.notices == [Emitted("loop_died", text="b died: CancelledError")]


async def test_what_does_not_finish_in_the_grace_period_is_cut_off_and_named() -> None:
    async def hangs(_: asyncio.Event) -> None:
        await asyncio.Event().wait()

    stop = asyncio.Event()
    stop.set()
    code, events = await supervised(stop=stop, grace_seconds=0.01, a=until_stopped, slow=hangs)
    assert code is ExitCode.GRACE_EXCEEDED
    assert len(asyncio.all_tasks()) == 1
    assert events.emitted[-1] == Emitted("worker_stopped", name="w", unfinished=("slow",))


class Broken(LoopWorld):
    """A database that fails as long as there is an ``error``."""

    def __init__(self, error: DependencyError) -> None:
        super().__init__()
        parts = self.parts()
        self.readiness = parts.readiness
        self.breaker = parts.breaker("inbox database", cap_seconds=2.0)
        self.error: DependencyError | None = error

    async def ask(self) -> None:
        if self.error:
            raise self.error

    async def keep_asking(self) -> None:
        await periodic(self.ask, breaker=self.breaker, seconds=1.0)(self.stop)


@pytest.mark.fault("D17")
@in_virtual_time
async def test_trouble_longer_than_the_limit_ends_the_worker() -> None:
    world = Broken(ContractError("permission denied"))
    asking = asyncio.create_task(world.keep_asking())
    with pytest.raises(
        ContractError, match="inbox database: permission denied; it was not fixed within 60 s"
    ):
        await world.readiness.give_up_after(LIMIT, world.stop)
    assert LIMIT < world.clock() < LIMIT + 5
    asking.cancel()


@in_virtual_time
async def test_trouble_that_ends_in_time_does_not_end_the_worker() -> None:
    world = Broken(ContractError("permission denied"))
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
    world = Broken(StoreUnavailableError("away"))
    world.readiness.check("nats outbox", lambda: "refused", broken_seconds=world.clock)
    with pytest.raises(ContractError, match="nats outbox: refused"):
        await world.readiness.give_up_after(LIMIT, world.stop)

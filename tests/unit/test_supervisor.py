import asyncio
import contextlib

from sea_mq_worker.runtime.supervisor import ExitCode, Loop, Supervisor
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.testing.events import Emitted, RecordingEvents


async def until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


async def supervise(
    *, grace_seconds: float = 5.0, stop: asyncio.Event | None = None, **loops: Loop
) -> tuple[ExitCode, RecordingEvents]:
    events = RecordingEvents()
    supervisor = Supervisor(name="w", version="1", loops=loops, events=events, grace_seconds=grace_seconds)
    return await supervisor.run(stop or asyncio.Event()), events


async def test_the_death_of_one_loop_stops_the_worker() -> None:
    async def dies(_: asyncio.Event) -> None:
        raise ExceptionGroup("of a group", [RuntimeError("a secret payload")])

    code, events = await supervise(a=until_stopped, b=dies)
    assert code is ExitCode.GAVE_UP
    noticed = events.notices
    assert [notice.key for notice in noticed] == ["loop_died"]
    assert "b died: RuntimeError" in noticed[0].text
    assert "secret" not in noticed[0].text


async def test_a_call_that_is_cancelled_from_within_stops_the_worker_with_an_error() -> None:
    async def waits(stop: asyncio.Event) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.cancel)  # as a driver does that gives up its connection
        with contextlib.suppress(StoppedError):
            await cancel_on_stop(stop, answer)

    code, events = await supervise(a=until_stopped, b=waits)
    assert code is ExitCode.GAVE_UP
    assert events.notices == [Emitted("loop_died", text="b died: CancelledError")]


async def test_what_does_not_finish_in_the_grace_period_is_cut_off_and_named() -> None:
    async def hangs(_: asyncio.Event) -> None:
        await asyncio.Event().wait()

    stop = asyncio.Event()
    stop.set()
    code, events = await supervise(stop=stop, grace_seconds=0.01, a=until_stopped, slow=hangs)
    assert code is ExitCode.GRACE_EXCEEDED
    assert len(asyncio.all_tasks()) == 1
    assert events.emitted[-1] == Emitted("worker_stopped", name="w", unfinished=("slow",))

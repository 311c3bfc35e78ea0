import asyncio

from sea_mq_worker.application.supervisor import ExitCode, Loop, Supervisor
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.facts import Noticed, WorkerStopped
from sea_mq_worker.testing.observer import RecordingObserver


async def until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


async def supervise(
    *, grace_seconds: float = 5.0, stop: asyncio.Event | None = None, **loops: Loop
) -> tuple[ExitCode, RecordingObserver]:
    observer = RecordingObserver()
    supervisor = Supervisor(
        name="w", version="1", loops=loops, observer=observer, grace_seconds=grace_seconds
    )
    return await supervisor.run(stop or asyncio.Event()), observer


async def test_a_stop_ends_all_loops_gracefully() -> None:
    stop = asyncio.Event()
    stop.set()
    code, observer = await supervise(stop=stop, a=until_stopped, b=until_stopped)
    assert code is ExitCode.DONE
    assert observer.facts[-1] == WorkerStopped(name="w", unfinished=())


async def test_the_death_of_one_loop_stops_the_worker() -> None:
    async def dies(_: asyncio.Event) -> None:
        raise RuntimeError("a secret payload")

    code, observer = await supervise(a=until_stopped, b=dies)
    assert code is ExitCode.GAVE_UP
    noticed = [fact for fact in observer.facts if isinstance(fact, Noticed)]
    assert [fact.event for fact in noticed] == ["loop_died"]
    assert "b died: RuntimeError" in noticed[0].text
    assert "secret" not in noticed[0].text


async def test_a_contract_error_is_logged_with_its_text() -> None:
    async def breaks(_: asyncio.Event) -> None:
        async with asyncio.TaskGroup():
            raise ContractError("stream SEA_EVENTS is missing")

    code, observer = await supervise(a=breaks)
    assert code is ExitCode.CONTRACT
    assert any(isinstance(f, Noticed) and "SEA_EVENTS is missing" in f.text for f in observer.facts)


async def test_what_does_not_finish_in_the_grace_period_is_cut_off_and_named() -> None:
    async def hangs(_: asyncio.Event) -> None:
        await asyncio.Event().wait()

    stop = asyncio.Event()
    stop.set()
    code, observer = await supervise(stop=stop, grace_seconds=0.01, a=until_stopped, slow=hangs)
    assert code is ExitCode.GRACE_EXCEEDED
    assert observer.facts[-1] == WorkerStopped(name="w", unfinished=("slow",))

"""The contract of WorkerSessions, over PostgreSQL and the in-memory fake."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.ports import OtherSession, WorkerSessions
from sea_mq_worker.postgres.sessions import PostgresWorkerSession
from sea_mq_worker.testing.sessions import InMemorySessions, SessionTable
from tests.support.servers import Database
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker with both sides; ``end`` takes its last connection."""

    id: str
    sessions: WorkerSessions
    end: Callable[[], Awaitable[None]]

    async def seen_by(self, other: "Worker") -> list[OtherSession]:
        return sorted(one for one in await other.sessions.others() if one.session == self.id)


Start = Callable[[], Awaitable[Worker]]


@pytest.fixture(params=["memory", "postgres"])
async def start(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Start]:
    """Return what starts a worker on the same database."""
    table, numbers = SessionTable(), count()
    both: dict[str, Any] = {"worker": "w", "sides": ("inbox", "outbox")}

    async def in_memory() -> Worker:
        session = f"{next(numbers):08x}"

        async def end() -> None:
            table.held.discard(session)

        return Worker(session, InMemorySessions(table=table, session=session, **both), end)

    async with AsyncExitStack() as stack:

        async def on_postgres() -> Worker:
            given: dict[str, Any] = {"silent_seconds": 60.0, "on_event": lambda *_: None, **both}
            made = PostgresWorkerSession(dsn=database.dsn, schema="public", **given)
            await made.start()
            stack.push_async_callback(made.close)
            return Worker(made.id, made, made.close)

        yield in_memory if request.param == "memory" else on_postgres


async def test_each_side_of_another_worker_is_seen_and_lives_as_long_as_its_worker(start: Start) -> None:
    first, second = await start(), await start()
    alive = [OtherSession(first.id, side, "w", is_gone=False) for side in ("inbox", "outbox")]
    assert await first.seen_by(second) == alive
    assert await first.seen_by(first) == []
    await first.end()
    gone = [one._replace(is_gone=True) for one in alive]

    async def is_gone() -> bool:
        return await first.seen_by(second) == gone

    await eventually(is_gone)


async def test_a_side_that_is_gone_is_forgotten_by_itself_and_one_that_lives_is_not(start: Start) -> None:
    first, second, third = await start(), await start(), await start()
    inbox, outbox = await first.seen_by(second)
    await first.end()

    async def is_forgotten() -> bool:
        await second.sessions.forget(inbox)
        return [one.side for one in await first.seen_by(second)] == [outbox.side]

    await eventually(is_forgotten)
    for session in await third.seen_by(second):
        await second.sessions.forget(session)
    assert len(await third.seen_by(second)) == 2


async def test_a_worker_whose_own_session_has_ended_learns_nothing(start: Start) -> None:
    first = await start()
    await first.end()
    with pytest.raises(StoreUnavailableError):
        await first.sessions.others()


async def test_a_session_that_begins_wakes_those_that_wait(start: Start) -> None:
    first = await start()
    await first.sessions.wait_for_change(timeout_seconds=0.01)  # its own begin
    waiting = asyncio.create_task(first.sessions.wait_for_change(timeout_seconds=60.0))
    await asyncio.sleep(0)
    await start()
    async with asyncio.timeout(10.0):
        await waiting

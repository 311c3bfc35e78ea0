"""Takeover: from whom it takes over, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sea_mq_worker.errors import RowsRefusedError
from sea_mq_worker.runtime.takeover import Takeover
from sea_mq_worker.testing.events import Emitted, RecordingEvents
from sea_mq_worker.testing.sessions import InMemorySessions, SessionTable
from tests.support.simulation import in_virtual_time

OWN, DEAD = "0000000a", "0000000b"
SECONDS_UNTIL_TAKEN_OVER = 1.5


class World:
    def __init__(self) -> None:
        self.table = SessionTable()
        self.events = RecordingEvents()
        self.taken: list[str] = []
        sessions = InMemorySessions(table=self.table, session=OWN, worker="heir", sides=["outbox"])
        self.takeover = Takeover(sessions=sessions, events=self.events, sides={"outbox": self.end_leases})
        self.error: RowsRefusedError | None = None

    async def end_leases(self, session: str) -> int:
        self.taken.append(session)
        if self.error is not None:
            raise self.error
        return 3

    def begin(self, session: str = DEAD, side: str = "outbox") -> None:
        self.table.begin(session, [side], f"worker {session}")

    def kill(self, session: str = DEAD) -> None:
        self.table.held.discard(session)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.takeover.run(stop))
            yield
            stop.set()


@in_virtual_time
async def test_a_worker_that_is_ended_in_two_checks_is_taken_over_once() -> None:
    world = World()
    world.begin()
    world.kill()
    assert await world.takeover.check()
    assert world.taken == []
    assert not await world.takeover.check()
    assert world.taken == [DEAD]
    assert world.events.of("worker_taken_over") == [
        Emitted("worker_taken_over", worker=f"worker {DEAD}", side="outbox", count=3)
    ]
    await world.takeover.check()
    assert world.taken == [DEAD]


@in_virtual_time
async def test_a_worker_that_comes_back_between_two_checks_is_left_alone() -> None:
    world = World()
    world.begin()
    for _ in range(3):
        world.kill()
        await world.takeover.check()
        world.begin()
        await world.takeover.check()
    assert world.taken == []


@in_virtual_time
async def test_checks_before_and_after_the_own_session_was_lost_are_not_two_in_a_row() -> None:
    world = World()
    world.begin()
    world.kill()
    async with world.running():
        await asyncio.sleep(0.1)
        world.table.held.discard(OWN)
        await asyncio.sleep(0.5)
        world.begin()
        world.table.held.add(OWN)
        await asyncio.sleep(SECONDS_UNTIL_TAKEN_OVER)
    assert world.taken == []


@in_virtual_time
async def test_a_server_that_was_started_again_tells_of_no_end() -> None:
    world = World()
    world.begin()
    async with world.running():
        await asyncio.sleep(0.1)
        world.table.restart()
        world.table.held.add(OWN)
        await asyncio.sleep(2 * SECONDS_UNTIL_TAKEN_OVER)
    assert world.taken == []


@in_virtual_time
async def test_a_side_that_this_worker_does_not_have_is_left_to_others() -> None:
    world = World()
    world.begin(side="inbox")
    world.kill()
    for _ in range(3):
        await world.takeover.check()
    assert world.taken == []
    assert (DEAD, "inbox") in world.table.rows


@in_virtual_time
async def test_a_worker_that_dies_is_taken_over_within_one_and_a_half_seconds() -> None:
    world = World()
    async with world.running():
        await asyncio.sleep(10.0)  # alone: it checks again when the other one begins
        world.begin()
        await asyncio.sleep(3.7)
        world.kill()
        await asyncio.sleep(SECONDS_UNTIL_TAKEN_OVER)
        assert world.taken == [DEAD]


@in_virtual_time
async def test_leases_that_cannot_be_ended_are_reported_and_left_to_their_time() -> None:
    world = World()
    world.error = RowsRefusedError("a trigger refuses")
    world.begin()
    world.kill()
    await world.takeover.check()
    await world.takeover.check()
    assert [notice.key for notice in world.events.notices] == ["row_refused"]
    assert world.table.rows == {(OWN, "outbox"): "heir"}

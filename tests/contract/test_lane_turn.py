"""The contract of LaneTurn, over PostgreSQL and the in-memory fake."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from sea_mq_worker.ports import LaneTurn
from sea_mq_worker.postgres.lane import PostgresLaneTurn
from sea_mq_worker.testing.sessions import InMemoryLane, InMemoryLaneTurn
from tests.support.rows import as_worker, opened
from tests.support.servers import Database

Worker = Callable[[], LaneTurn]


@pytest.fixture(params=["memory", "postgres"])
async def worker(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Worker]:
    """Return what makes another worker's turn in the same lane."""
    if request.param == "memory":
        lane = InMemoryLane()
        yield lambda: InMemoryLaneTurn(lane)
        return
    async with opened(database, join=as_worker) as pool, AsyncExitStack() as stack:

        def make() -> LaneTurn:
            turn = PostgresLaneTurn(pool=pool)
            stack.push_async_callback(turn.leave)
            return turn

        yield make


async def test_one_worker_serves_the_lane_and_the_others_stand_by(worker: Worker) -> None:
    first, second = worker(), worker()
    assert [await turn.take() for turn in (first, second, first, second)] == [True, False, True, False]


async def test_a_worker_that_leaves_makes_room_at_once(worker: Worker) -> None:
    first, second = worker(), worker()
    assert await first.take()
    await second.leave()
    assert not await second.take()
    await first.leave()
    assert await second.take()
    assert not await first.take()

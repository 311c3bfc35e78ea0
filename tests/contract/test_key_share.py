"""The contract of KeyShare, over PostgreSQL and the in-memory fake."""

from collections.abc import AsyncIterator, Callable

import pytest

from sea_mq_worker.outbox.share import PostgresKeyShare
from sea_mq_worker.ports import KeyShare
from sea_mq_worker.testing.sessions import InMemoryKeyShare
from tests.support.rows import opened
from tests.support.servers import Database

Worker = Callable[[str], KeyShare]


@pytest.fixture(params=["memory", "postgres"])
async def worker(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Worker]:
    """Return what makes another worker's share; each looks whenever it is asked."""
    if request.param == "memory":
        serving = dict[str, float]()
        yield lambda name: InMemoryKeyShare(serving, name, lambda: 0.0)
        return
    clock = iter(range(1000))
    async with opened(database) as pool:
        yield lambda name: PostgresKeyShare(pool=pool, worker=name, clock=lambda: 9.0 * next(clock))


async def test_workers_that_serve_divide_the_keys(worker: Worker) -> None:
    a, b, c = map(worker, "abc")
    assert await b.take(serves=True) == (0, 1)
    assert [await each.take(serves=True) for each in (a, c)] == [(0, 2), (2, 3)]
    assert [await each.take(serves=True) for each in (a, b, c)] == [(0, 3), (1, 3), (2, 3)]


async def test_a_worker_that_does_not_serve_has_a_share_that_others_have_too(worker: Worker) -> None:
    a, b = map(worker, "ab")
    assert await a.take(serves=True) == (0, 1)
    assert await b.take(serves=False) == (1, 2)
    assert await a.take(serves=True) == (0, 1)
    assert await b.take(serves=True) == (1, 2)
    assert await a.take(serves=True) == (0, 2)
    assert await a.take(serves=False) == (0, 2)
    assert await b.take(serves=True) == (0, 1)


async def test_a_worker_that_leaves_is_not_counted(worker: Worker) -> None:
    a, b = map(worker, "ab")
    for each in (a, b):
        await each.take(serves=True)
    await a.leave()
    assert await b.take(serves=True) == (0, 1)

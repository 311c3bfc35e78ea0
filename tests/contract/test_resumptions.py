"""The contract of Resumptions, over PostgreSQL and the in-memory fake."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sea_mq_worker.inbox.postgres import PostgresResumptions
from sea_mq_worker.operators.changes import resume
from sea_mq_worker.ports import Resumptions
from sea_mq_worker.testing.inbox import InMemoryResumptions
from tests.support.rows import opened
from tests.support.servers import Database


@dataclass(kw_only=True)
class World:
    """What workers read, and how an operator writes it."""

    resumptions: Resumptions
    resume: Callable[[str], Awaitable[object]]


@pytest_asyncio.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    if request.param == "memory":
        fake = InMemoryResumptions(time.monotonic)

        async def note(event_type: str) -> None:
            fake.resume(event_type)

        yield World(resumptions=fake, resume=note)
        return
    async with opened(database) as pool:
        yield World(
            resumptions=PostgresResumptions(pool=pool),
            resume=lambda event_type: resume(pool, event_type, actor="ann", reason="mended"),
        )


async def test_a_recent_resume_is_returned_with_its_age(world: World) -> None:
    assert list(await world.resumptions.resumed(within_seconds=60.0)) == []
    await world.resume("vibe_created")
    await world.resume("")
    found = await world.resumptions.resumed(within_seconds=60.0)
    assert sorted(event_type for event_type, _ in found) == ["", "vibe_created"]
    assert all(0.0 <= seconds_ago < 60.0 for _, seconds_ago in found)


async def test_what_was_resumed_long_ago_is_not(world: World) -> None:
    await world.resume("vibe_created")
    assert list(await world.resumptions.resumed(within_seconds=0.0)) == []

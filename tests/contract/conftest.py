"""The outbox in its two forms, for the contracts that hold over both."""

from collections.abc import AsyncIterator

import pytest

from sea_mq_worker.adapters.postgres.connection import connect_pool
from tests.support.outboxes import MemoryWorld, PostgresWorld, World
from tests.support.servers import Database


@pytest.fixture
def memory_world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
async def postgres_world(database: Database) -> AsyncIterator[PostgresWorld]:
    pool = await connect_pool(
        database.dsn,
        schema="public",
        size_max=6,
        application_name="test",
        statement_timeout_seconds=10,
        connect_timeout_seconds=10,
    )
    try:
        yield PostgresWorld(pool)
    finally:
        await pool.close()


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made

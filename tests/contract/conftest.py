"""The outbox in its three forms, for the contracts that hold over all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from sea_mq_worker.adapters.postgres.connection import connect_pool
from tests.support import servers
from tests.support.outboxes import MemoryWorld, PostgresWorld, World
from tests.support.partitions import ids_of_all_partitions, partition_outbox
from tests.support.servers import Database, PostgresAddress


@pytest.fixture
def memory_world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
async def postgres_world(database: Database) -> AsyncIterator[PostgresWorld]:
    async with _world(database.dsn) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def partitioned_template(
    postgres_server: PostgresAddress, template_database: Database
) -> AsyncIterator[Database]:
    """A database whose outbox has partitions, to copy."""
    async with servers.scratch_database(
        postgres_server, prefix="template_", template=template_database.name
    ) as made:
        await partition_outbox(made.dsn)
        yield made


@pytest.fixture
async def partitions_world(
    postgres_server: PostgresAddress, partitioned_template: Database
) -> AsyncIterator[PostgresWorld]:
    """One event after the other is in another partition, at the same place as its neighbours there."""
    async with (
        servers.scratch_database(
            postgres_server, prefix="test_", template=partitioned_template.name
        ) as database,
        _world(database.dsn, new_id=ids_of_all_partitions()) as made,
    ):
        yield made


@asynccontextmanager
async def _world(dsn: str, **options: Any) -> AsyncIterator[PostgresWorld]:
    pool = await connect_pool(
        dsn,
        schema="public",
        size_max=6,
        application_name="test",
        statement_timeout_seconds=10,
        connect_timeout_seconds=10,
    )
    try:
        yield PostgresWorld(pool, **options)
    finally:
        await pool.close()


@pytest.fixture(params=["memory", "postgres", "partitions"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made

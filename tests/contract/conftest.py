"""The outbox in its three forms, for the contracts that hold over all of them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support import servers
from tests.support.outboxes import MemoryWorld, PostgresWorld, World
from tests.support.partitions import ids_of_all_partitions, partition_outbox
from tests.support.rows import opened
from tests.support.servers import Database, PostgresAddress


@pytest.fixture
def memory_world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
async def postgres_world(database: Database) -> AsyncIterator[PostgresWorld]:
    async with opened(database) as pool:
        yield PostgresWorld(pool)


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
        opened(database) as pool,
    ):
        yield PostgresWorld(pool, new_id=ids_of_all_partitions())


@pytest.fixture(params=["postgres", "partitions"])
def database_world(request: pytest.FixtureRequest) -> PostgresWorld:
    """For what PostgreSQL alone shows: the fake promises no more than the port."""
    made: PostgresWorld = request.getfixturevalue(f"{request.param}_world")
    return made


@pytest.fixture(params=["memory", "postgres", "partitions"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made

"""Fixtures of the tests of a service's own transactions."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.servers import Database


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """Another connection, on a database that also has a table of the service's own."""
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute("CREATE TABLE orders (id TEXT)")
        yield connection
    finally:
        await connection.close()

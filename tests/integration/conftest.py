"""Connections, pools and sites of a test's own, and the tables of a service."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.support.handlers import HandlerServer, handler_server
from tests.support.jetstream import connected
from tests.support.partitions import partition_outbox
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.site import Site, site


@pytest.fixture
async def plain(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """The owner's session, with the tables as `migrate` makes them."""
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def owner(database: Database, plain: asyncpg.Connection) -> asyncpg.Connection:
    """The owner's session, with the outbox in partitions."""
    await partition_outbox(database.dsn)
    return plain


@pytest.fixture
async def reader(plain: asyncpg.Connection) -> asyncpg.Connection:
    """Another connection, on a database that also has a table of the service's own."""
    await plain.execute("CREATE TABLE orders (id TEXT)")
    return plain


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """A pool as operators' commands open it."""
    async with opened(database, hints=OPERATOR_HINTS) as made:
        yield made


@pytest.fixture
async def connection(nats_url: str) -> AsyncIterator[NatsConnection]:
    async with connected(nats_url) as made:
        yield made


@pytest.fixture
async def place(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[HandlerServer]:
    async with handler_server() as running:
        yield running

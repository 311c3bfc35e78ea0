"""Servers that a fault test may kill, freeze or fill."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from tests.support.servers import QUICK


@pytest.fixture
async def own_nats() -> AsyncIterator[EmbeddedNats]:
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedNats(Path(folder)) as server:
            yield server


@pytest.fixture
async def own_postgres() -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own, migrated; it survives its crashes, but not the machine's."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedPostgres(Path(folder), settings=QUICK) as server:
            await migrate(server.dsn)
            yield server

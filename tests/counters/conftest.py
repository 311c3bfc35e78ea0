"""Servers that count, for all tests of this folder, and what one worker needs on them."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.counters.meters import Meters, Servers, counting_servers, meters


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    """Servers of this folder's own: nobody else's work shows in their counters."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with counting_servers(Path(folder)) as started:
            yield started


@pytest_asyncio.fixture(loop_scope="session")
async def metered(servers: Servers, tmp_path: Path) -> AsyncIterator[Meters]:
    """A database, streams and a handler of the test's own."""
    async with meters(servers, tmp_path) as made:
        yield made

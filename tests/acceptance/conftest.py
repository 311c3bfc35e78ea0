"""Commands as they are typed, on the session's servers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.checkups import Patient, patient
from tests.support.operators import World, world_of
from tests.support.servers import Database


@pytest.fixture
async def world(database: Database, nats_url: str, names: str) -> AsyncIterator[World]:
    """Servers without streams, and settings that name them."""
    async with world_of(database, nats_url, names) as made:
        yield made


@pytest.fixture
async def system(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    """A healthy system, but for what is true of the test's servers."""
    async with patient(database, nats_url, names, tmp_path) as made:
        yield made

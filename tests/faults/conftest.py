"""Servers that a fault test may kill, freeze or fill, and a site on the session's own."""

import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from sea_mq_worker.adapters.postgres.schema.migrations import migrate
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.servers import QUICK, Database
from tests.support.site import Site, SiteWith, site


@pytest.fixture
async def own_nats() -> AsyncIterator[EmbeddedNats]:
    """A nats-server of the test's own."""
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


@pytest.fixture
def site_with(database: Database, nats_url: str, names: str, tmp_path: Path) -> SiteWith:
    """Set a site up with what differs from `shared`; see `site` for what that may be."""
    return partial(site, dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path)


@pytest.fixture
async def shared(site_with: SiteWith) -> AsyncIterator[Site]:
    """A site with the fast profile on the session's servers, which nobody may hurt."""
    async with site_with() as made:
        yield made

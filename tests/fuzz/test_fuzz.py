"""Whatever settings, rows and messages say: no crash, no hang, nothing dropped in silence."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fuzz.campaign import Servers, run
from tests.support.servers import Database, PostgresAddress, scratch_database

SEED = 47


@pytest.fixture
async def servers(
    database: Database, postgres_server: PostgresAddress, template_database: Database, nats_url: str
) -> AsyncIterator[Servers]:
    async with scratch_database(postgres_server, prefix="test_", template=template_database.name) as other:
        yield Servers(dsn=database.dsn, other_dsn=other.dsn, nats_url=nats_url)


@pytest.mark.slow
async def test_nonsense_is_refused_or_brought_to_its_end(
    servers: Servers, names: str, tmp_path: Path
) -> None:
    found = await run(servers, name=names, folder=tmp_path, seconds=8, rate=30, seed=SEED)
    assert min(*found["rows"].values(), *found["settings files"].values()) > 0
    assert min(found["messages"]["processed"], found["messages"]["dead letters"]) > 0

"""Servers that count, for all tests of this folder, and what one worker needs on them."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest_asyncio

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from tests.counters.meters import Meters, Servers
from tests.support.handlers import handler_server
from tests.support.jetstream import connected
from tests.support.servers import ROOMY, PostgresAddress, database_connection, scratch_database, unique
from tests.support.worker import apply_streams, deployment

# Full page images as PostgreSQL has them by default, but no checkpoint and no vacuum in between.
COUNTING = {
    "fsync": "off",
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "shared_preload_libraries": "pg_stat_statements",
}
SET_UP = """
CREATE EXTENSION pg_stat_statements;
CREATE ROLE counted SUPERUSER LOGIN PASSWORD 'counted';
"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    """Servers of this folder's own: nobody else's work shows in their counters."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with (
            EmbeddedPostgres(Path(folder) / "postgres", settings=COUNTING) as postgres,
            EmbeddedNats(Path(folder) / "nats", config=ROOMY) as nats,
            database_connection(postgres.dsn) as admin,
        ):
            await admin.execute(SET_UP)
            yield Servers(postgres, nats, admin)


@pytest_asyncio.fixture(loop_scope="session")
async def metered(servers: Servers, tmp_path: Path) -> AsyncIterator[Meters]:
    """An empty database, streams and a handler that says 200 to everything."""
    async with (
        scratch_database(PostgresAddress(servers.postgres.dsn), prefix="counted_") as own,
        database_connection(own.dsn) as database,
        connected(servers.nats.url) as broker,
        handler_server() as handler,
    ):
        await migrate(own.dsn)
        target = deployment(
            context=unique("c"),
            database_url=as_counted(own.dsn),
            nats_url=servers.nats.url,
            handler_url=handler.url,
        )
        await apply_streams(target, tmp_path / "streams")
        yield Meters(
            servers=servers, target=target, database_name=own.name, database=database, broker=broker,
            handler=handler,
        )  # fmt: skip


def as_counted(dsn: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"counted:counted@{parts.hostname}:{parts.port}").geturl()

"""An outbox whose events may have any past, and the lake that it is archived to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.archive import KEPT, ArchiveResult, archive
from sea_mq_worker.pipeline.lake import ARCHIVE, Lake
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings
from tests.integration.test_migrations import run_psql
from tests.support.rows import add_event
from tests.support.servers import Database, unique


@dataclass(frozen=True, slots=True)
class Desk:
    """Both, and who archives."""

    spark: SparkSession
    settings: Settings
    pool: asyncpg.Pool
    folder: Path

    @property
    def lake(self) -> str:
        return str(self.folder)

    async def run(self, **given: Any) -> ArchiveResult:
        """Archive what was published a day ago; it has a loop of its own, and so needs a thread."""
        return await asyncio.to_thread(self.run_here, **given)

    def run_here(self, **given: Any) -> ArchiveResult:
        usual = {"before": datetime.now(UTC) - timedelta(days=1), "lake": self.lake}
        return archive(self.spark, self.settings, actor="ada", reason="old", **(usual | given))

    async def add(self, state: str = "PUBLISHED", *, days_ago: int = 2, **given: Any) -> str:
        """Insert an event that was published some days ago, if it was."""
        event = await add_event(self.pool, state, **given)
        at = datetime.now(UTC) - timedelta(days=days_ago)
        publish = "UPDATE outbox_events SET published_at = $2 WHERE id = $1 AND state = 'PUBLISHED'"
        await self.pool.execute(publish, event, at)
        return str(event)

    async def table(self) -> dict[str, dict[str, Any]]:
        """Return what the outbox has of each event and the lake keeps."""
        rows = await self.pool.fetch(f"SELECT {', '.join(KEPT)} FROM outbox_events")
        return {str(row["id"]): {name: _plain(value) for name, value in row.items()} for row in rows}

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return what the lake has of each event."""
        rows = Lake(self.spark, self.lake).read(ARCHIVE.name).select(*KEPT).collect()
        found = {row["id"]: row.asDict() for row in rows}
        assert len(found) == len(rows)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value  # what is endless has no time zone
        return moment.replace(tzinfo=None)
    return value if value is None or isinstance(value, int) else str(value)


@asynccontextmanager
async def limited(database: Database, pool: asyncpg.Pool, role: str) -> AsyncIterator[str]:
    """Yield the DSN of a login that has the rights of a role of sql/roles.sql alone."""
    prefix = unique("p")
    login, password = f"{prefix}_login", "p%3Aw"
    await run_psql(database.dsn, "-v", f"prefix={prefix}", "-f", str(resource_folder("sql") / "roles.sql"))
    await pool.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'p:w' IN ROLE {prefix}_{role}")
    try:
        address = urlsplit(database.dsn)
        yield address._replace(netloc=f"{login}:{password}@{address.hostname}:{address.port}").geturl()
    finally:
        names = ", ".join(
            (login, *(f"{prefix}_{one}" for one in ("producer", "operator", "relay", "janitor", "reader")))
        )
        await pool.execute(f"DROP OWNED BY {names}; DROP ROLE {names}")

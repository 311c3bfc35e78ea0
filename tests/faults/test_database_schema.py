"""A schema that changes under a worker, or is another than it knows: it goes on, or stops and says why."""

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.postgres.migrations import altered_migrations, migrate, migrations
from sea_mq_worker.resources import resource_folder
from tests.releases import DUMPS
from tests.support.servers import PostgresAddress, database_connection, scratch_database
from tests.support.site import Site, SiteWith

KNOWN = len(migrations())
PROJECT = resource_folder("sql").parent
ADDITIONS = """
ALTER TABLE outbox_events ADD COLUMN region TEXT NOT NULL DEFAULT 'eu', ADD COLUMN priority INT;
ALTER TABLE inbox_messages ADD COLUMN region TEXT NOT NULL DEFAULT 'eu', ADD COLUMN weight INT;
CREATE INDEX idx_outbox_region ON outbox_events (region);
"""
WRITES = (
    "SELECT (SELECT sum(publish_attempts) FROM outbox_events) + (SELECT count(*) FROM inbox_messages)"
    " + (SELECT count(*) FROM sea_mq_context)"
)

ENDED = {
    "outbox_events WHERE NOT is_open": "id, state, published_at, publish_attempts, failures, publish_error,"
    " stream_seq",
    "inbox_messages": "message_id, processed_at, dead_lettered_at, dead_letter_reason, attempts, last_error",
}
"""Which rows of a release no worker moves, and their columns."""


@pytest.fixture
def of_next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From the call on, workers are started from the following version: this one, with a migration more."""
    folder = tmp_path / "next"

    def begin(script: str) -> None:
        for part in ("sea_mq_worker", "sql", "streams"):
            shutil.copytree(PROJECT / part, folder / part)
        (folder / "sql" / "migrations" / f"{KNOWN + 1:04}_next.sql").write_text(script)
        monkeypatch.chdir(folder)

    return begin


@pytest.fixture(params=DUMPS, ids=lambda dump: f"from_{dump.stem}")
async def released(
    request: pytest.FixtureRequest, postgres_server: PostgresAddress, names: str, site_with: SiteWith
) -> AsyncIterator[Site]:
    """A site on the tables of a release, with rows in every state, migrated to this version."""
    async with scratch_database(postgres_server, prefix="released_") as database:
        async with database_connection(database.dsn) as connection:
            await connection.execute(request.param.read_text())
            await connection.execute("UPDATE public.sea_mq_context SET context = $1", names)
        await migrate(database.dsn)
        async with site_with(dsn=database.dsn) as made:
            yield made


async def migrated(shared: Site, *, announced: str) -> None:
    async with shared.worker("migrate", "--dry-run", name="migrate --dry-run") as command:
        assert await command.ended() == 0
    assert f"would apply {KNOWN + 1:04}_next" in command.written
    assert announced in command.written
    async with shared.worker("migrate", name="migrate") as command:
        assert await command.ended() == 0
    assert f"applied {KNOWN + 1:04}_next" in command.written


async def ended_rows(database: asyncpg.Connection) -> dict[str, list[asyncpg.Record]]:
    return {which: await database.fetch(f"SELECT {columns} FROM {which}") for which, columns in ENDED.items()}


async def audit_beside(shared: Site, old_rows: Mapping[str, list[asyncpg.Record]]) -> None:
    """Prove that the old rows are as they were, and audit all others."""
    for which, rows in old_rows.items():
        table, key = which.split()[0], ENDED[which].partition(",")[0]
        delete = f"DELETE FROM {table} WHERE {key} = ANY ($1) RETURNING {ENDED[which]}"
        assert set(await shared.database.fetch(delete, [row[0] for row in rows])) == set(rows)
    await shared.audit()


@pytest.mark.fault("L14")
async def test_two_versions_work_together_on_a_schema_that_serves_both(
    released: Site, of_next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, database = released, released.database
    old_rows = await ended_rows(database)
    async with shared.worker(name="old", outbox_batch_max=3) as old:
        await old.ready()
        await shared.both_ways()
        of_next_version(f"-- Serves workers from version {KNOWN}.\n{ADDITIONS}")
        await migrated(shared, announced="running workers can continue")
        async with shared.worker(name="new", outbox_batch_max=3) as new:
            await new.ready()
            for _ in range(5):
                await shared.both_ways()
            await shared.quiet()
            assert old.process.returncode is None
    await shared.both_ways()
    monkeypatch.chdir(PROJECT)
    async with shared.worker(name="old started anew"):
        await shared.quiet()
    assert await altered_migrations(database) == []
    await audit_beside(shared, old_rows)


@pytest.mark.fault("L14")
@pytest.mark.slow
async def test_a_migration_that_does_not_serve_it_stops_a_worker_that_runs(
    shared: Site, of_next_version: Callable[[str], None]
) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        of_next_version(ADDITIONS)
        await migrated(shared, announced=f"workers of schema version {KNOWN} will end with exit code 3")
        assert await worker.ended(within=20) == 3
    assert f"version {KNOWN + 1}, this worker knows only {KNOWN}" in worker.written


@pytest.mark.fault("D14")
@pytest.mark.parametrize("is_older", [True, False])
async def test_a_schema_that_does_not_serve_it_is_left_alone(
    shared: Site, of_next_version: Callable[[str], None], is_older: bool
) -> None:
    await shared.both_ways()
    if is_older:
        of_next_version(ADDITIONS)
        reported = f"version {KNOWN}, this worker needs {KNOWN + 1}"
    else:
        await shared.database.execute("INSERT INTO sea_mq_migrations VALUES (99, 'later', '')")
        reported = f"version 99, this worker knows only {KNOWN}"
    async with shared.worker() as worker:
        assert await worker.ended() == 3
    assert reported in worker.written
    assert await shared.database.fetchval(WRITES) == 0


async def test_a_migration_that_was_applied_with_other_content_is_reported(shared: Site) -> None:
    await shared.database.execute("UPDATE sea_mq_migrations SET sha256 = 'other'")
    async with shared.worker() as worker:
        await worker.ready()
    assert "migration_altered" in worker.events()


async def test_statements_are_planned_again_after_a_column_has_changed(shared: Site) -> None:
    """PostgreSQL refuses the plans of before with SQLSTATE 0A000."""
    async with shared.worker() as worker:
        await worker.ready()
        await shared.both_ways()
        await shared.quiet()
        await shared.database.execute("ALTER TABLE inbox_messages ALTER COLUMN attempts TYPE BIGINT")
        await shared.both_ways()
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("D15")
@pytest.mark.parametrize("table", ["outbox_events", "inbox_messages"])
async def test_a_table_that_vanishes_is_named_and_waited_for(shared: Site, table: str) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        await shared.database.execute(f"ALTER TABLE {table} RENAME TO moved_away")
        await shared.send()
        assert "migrate" in await worker.answers(503, f'relation \\"{table}\\" does not exist')
        await shared.database.execute(f"ALTER TABLE moved_away RENAME TO {table}")
        await worker.ready()
        await shared.quiet()
    await shared.audit()

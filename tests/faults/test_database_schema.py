"""A schema that changes under a worker, or is another than it knows: it goes on, or stops and says why."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sea_mq_worker.resources import resource_folder
from tests.support.site import Site

KNOWN = len(list((resource_folder("sql") / "migrations").glob("*.sql"))) - 1
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


def next_version(folder: Path, script: str) -> None:
    """Make the worker of the following version: this one, with a migration more."""
    for part in ("sea_mq_worker", "sql", "streams"):
        shutil.copytree(PROJECT / part, folder / part)
    (folder / "sql" / "migrations" / f"{KNOWN + 1:04}_next.sql").write_text(script)


@pytest.fixture
def of_next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From the call on, workers are started from the following version."""

    def begin(script: str) -> None:
        next_version(tmp_path / "next", script)
        monkeypatch.chdir(tmp_path / "next")

    return begin


async def migrated(shared: Site, *, announced: str) -> None:
    async with shared.worker("migrate", "--dry-run", name="migrate --dry-run") as command:
        assert await command.ended() == 0
    assert (f"would apply {KNOWN + 1:04}_next" in command.written, announced in command.written) == (
        True,
        True,
    )
    async with shared.worker("migrate", name="migrate") as command:
        assert await command.ended() == 0
    assert f"applied {KNOWN + 1:04}_next" in command.written


@pytest.mark.fault("L14")
async def test_two_versions_work_together_on_a_schema_that_serves_both(
    shared: Site, of_next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    await shared.audit()


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
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            f"DELETE FROM sea_mq_migrations WHERE version = {KNOWN}",
            f"version {KNOWN - 1}, this worker needs {KNOWN}",
        ),
        (
            "INSERT INTO sea_mq_migrations VALUES (99, 'later')",
            f"version 99, this worker knows only {KNOWN}",
        ),
    ],
)
async def test_a_schema_that_does_not_serve_it_is_left_alone(
    shared: Site, change: str, reported: str
) -> None:
    await shared.both_ways()
    await shared.database.execute(change)
    async with shared.worker() as worker:
        assert await worker.ended() == 3
    assert reported in worker.written
    assert await shared.database.fetchval(WRITES) == 0


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

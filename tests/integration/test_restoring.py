"""An outbox and an inbox that move to another database, by the commands of the document."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.postgres.migrations import TABLES, altered_migrations, migrate
from sea_mq_worker.producer import enqueue
from tests.integration.test_migrations import PSQL
from tests.integration.test_sending import shell
from tests.releases import FOLDER
from tests.support.builders import enqueueable
from tests.support.documents import commands
from tests.support.partitions import partition_outbox
from tests.support.servers import QUICK, PostgresAddress, scratch_database
from tests.support.waiting import eventually

RESTORING = "docs/how-to/restoring.md"
REPLICATION = "Logical replication, and blue/green"
PROGRAMS = PSQL.parent
MOVED = sorted({*TABLES} - {"sea_mq_migrations", "sea_mq_sessions", "sea_mq_shares"})
SEQUENCES = (
    "SELECT pg_sequence_last_value(pg_get_serial_sequence('outbox_events', 'seq')),"
    " pg_sequence_last_value(pg_get_serial_sequence('operator_actions', 'id'))"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def source() -> AsyncIterator[EmbeddedPostgres]:
    """A server with rows in every state."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedPostgres(Path(folder), settings={**QUICK, "wal_level": "logical"}) as server:
            await migrate(server.dsn)
            connection = await asyncpg.connect(server.dsn)
            await connection.execute((FOLDER / "rows.sql").read_text())
            await connection.close()
            yield server


async def contents(connection: asyncpg.Connection) -> dict[str, list[asyncpg.Record]]:
    return {
        table: await connection.fetch(f"SELECT * FROM {table} AS row ORDER BY row::text") for table in MOVED
    }


async def copy_by_replication(folder: Path, urls: dict[str, str]) -> None:
    publish, subscribe, missing, behind, *end = (one.text for one in commands(RESTORING, REPLICATION))
    await shell(publish, folder, PROGRAMS, **urls)
    await shell(subscribe, folder, PROGRAMS, **urls)
    for count in (missing, behind):
        await eventually(lambda count=count: _is_zero(count, folder, urls), what=f"{count} prints 0")
    for command in end:
        await shell(command, folder, PROGRAMS, **urls)


async def _is_zero(command: str, folder: Path, urls: dict[str, str]) -> bool:
    return (await shell(command, folder, PROGRAMS, **urls)).strip() == "0"


@pytest.mark.parametrize("heading", ["A whole database", "Rows alone", REPLICATION])
async def test_the_commands_of_the_document_copy_everything(
    heading: str, source: EmbeddedPostgres, postgres_server: PostgresAddress, tmp_path: Path
) -> None:
    await _copy_everything(heading, source, postgres_server, tmp_path)


async def test_an_outbox_in_partitions_is_replicated(
    source: EmbeddedPostgres, postgres_server: PostgresAddress, tmp_path: Path
) -> None:
    await partition_outbox(source.dsn)
    await _copy_everything(REPLICATION, source, postgres_server, tmp_path)


async def _copy_everything(
    heading: str, source: EmbeddedPostgres, postgres_server: PostgresAddress, tmp_path: Path
) -> None:
    async with scratch_database(postgres_server, prefix="target_") as target:
        urls = {"SOURCE": source.dsn, "TARGET": target.dsn}
        if heading != "A whole database":
            await migrate(target.dsn)
        if heading == REPLICATION:
            await copy_by_replication(tmp_path, urls)
            left = commands(RESTORING, "Sequences")
        else:
            left = commands(RESTORING, heading)
        for command in left:
            await shell(command.text, tmp_path, PROGRAMS, **urls)
        old, new = await asyncpg.connect(source.dsn), await asyncpg.connect(target.dsn)
        try:
            moved = await contents(old)
            assert all(moved.values())
            assert await contents(new) == moved
            assert tuple(await new.fetchrow(SEQUENCES)) == (8, 4)
            assert await altered_migrations(new) == []
            async with new.transaction():
                [event] = await enqueue(new, enqueueable())
            assert await new.fetchval("SELECT seq FROM outbox_events WHERE id = $1", event) == 9
            with pytest.raises(asyncpg.CheckViolationError, match="not in the lifecycle"):
                await new.execute("UPDATE outbox_events SET state = 'DEAD' WHERE id = $1", event)
        finally:
            await old.close()
            await new.close()

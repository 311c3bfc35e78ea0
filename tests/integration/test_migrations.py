"""Migrations: once each, whoever runs them, and the same schema as psql makes of sql/schema.sql."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.errors import ContractError
from sea_mq_worker.postgres import pool
from sea_mq_worker.postgres.migrations import (
    MigrationPlan,
    claim_schema,
    migrate,
    migrations,
    plan,
)
from sea_mq_worker.resources import resource_folder
from tests.support import servers
from tests.support.rows import add_event, add_message, opened
from tests.support.servers import Database, PostgresAddress
from tools.psql import script

NAMES = [script.name for script in migrations()]


PSQL = EmbeddedPostgres(Path()).programs / "psql"
"""Of the embedded server; a system's own may be older than the server."""


@pytest.fixture
async def empty(postgres_server: PostgresAddress) -> AsyncIterator[Database]:
    async with servers.scratch_database(postgres_server, prefix="empty_") as made:
        yield made


async def run_psql(dsn: str, *arguments: str, schema: str = "public") -> str:
    process = await asyncio.create_subprocess_exec(
        PSQL, "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments, dsn,
        env=os.environ | {"PGOPTIONS": f"-c search_path={schema}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def test_a_plan_names_what_is_missing_and_changes_nothing(empty: Database) -> None:
    first = MigrationPlan(version=0, missing=NAMES, serves_running=False)
    assert [await plan(empty.dsn), await plan(empty.dsn)] == [first, first]
    await migrate(empty.dsn)
    assert await plan(empty.dsn) == MigrationPlan(version=len(NAMES), missing=[], serves_running=True)


@pytest.mark.fault("D13")
async def test_many_at_once_apply_each_migration_once_whatever_the_databases_defaults(
    empty: Database,
) -> None:
    async with servers.database_connection(empty.dsn) as owner:
        for default in (
            "default_transaction_isolation = 'repeatable read'",
            "statement_timeout = '20 ms'",
            "lock_timeout = '20 ms'",
        ):
            await owner.execute(f"ALTER DATABASE {empty.name} SET {default}")
    applied = await asyncio.gather(*(migrate(empty.dsn, schema="orders") for _ in range(8)))
    assert sorted(name for names in applied for name in names) == NAMES
    assert list(await migrate(empty.dsn, schema="orders")) == []


async def test_a_migration_that_was_cut_off_leaves_nothing_behind(empty: Database) -> None:
    """The table is in the way, as if somebody had made it."""
    async with servers.database_connection(empty.dsn) as owner:
        await owner.execute("CREATE TABLE operator_actions ()")
        with pytest.raises(ContractError, match="operator_actions"):
            await migrate(empty.dsn)
        assert await owner.fetchval("SELECT to_regclass('outbox_events')") is None
        await owner.execute("DROP TABLE operator_actions")
    assert list(await migrate(empty.dsn)) == NAMES


async def dumped(dsn: str, schema: str) -> list[str]:
    """Describe a schema and the migrations that it has; a line with a backslash holds a number of one run."""
    program = PSQL.with_name("pg_dump")
    command = [str(program), "--schema-only", "--no-owner", "-n", schema, dsn]
    text = await asyncio.to_thread(subprocess.check_output, command, text=True)
    has = "SELECT version, name, sha256, serves_from FROM sea_mq_migrations"
    return [
        *(line for line in text.splitlines() if not line.startswith("\\")),
        await run_psql(dsn, "-At", "-c", has, schema=schema),
    ]


async def test_psql_makes_the_same_schema(empty: Database) -> None:
    await run_psql(empty.dsn, "-c", "CREATE SCHEMA by_psql")
    await run_psql(empty.dsn, "-1", "-f", str(resource_folder("sql") / "schema.sql"), schema="by_psql")
    by_psql = await dumped(empty.dsn, "by_psql")
    await run_psql(empty.dsn, "-c", "DROP SCHEMA by_psql CASCADE")
    await migrate(empty.dsn, schema="by_psql")
    assert await dumped(empty.dsn, "by_psql") == by_psql


@pytest.mark.clause("QRY-050", "QRY-051")
async def test_psql_runs_the_depth_queries_as_they_are(database: Database, plain: asyncpg.Connection) -> None:
    await add_event(plain)
    for _ in range(2):
        await add_message(plain, received_at=datetime(2025, 12, 28, 22, tzinfo=UTC))
    depth = await run_psql(database.dsn, "-At", "-f", str(resource_folder("sql") / "queries" / "depth.sql"))
    outbox, inbox = (line.split("|") for line in depth.splitlines())
    assert (outbox[0], bool(outbox[1])) == ("1", True)
    assert (inbox[0], inbox[1][:10]) == ("2", "2025-12-28")


@pytest.mark.parametrize("read_max", ["NULL", "20"])
async def test_psql_runs_a_list_with_the_named_filters_that_it_is_given(
    read_max: str, database: Database, plain: asyncpg.Connection, tmp_path: Path
) -> None:
    for event_type in ("order.created", "order.shipped"):
        await add_event(plain, event_type=event_type)
    file = tmp_path / "list.sql"
    file.write_text(script("operators", "list_outbox"))
    given = {"states": "'{PENDING}'", "finished": "false", "event_type": "'order.shipped'", "limit": "9"}
    variables = (f"-v{name}={value}" for name, value in {**given, "read_max": read_max}.items())
    listed = await run_psql(database.dsn, *variables, "-At", "-f", str(file))
    types = [line.split("|")[4] for line in listed.splitlines() if line.split("|")[-2] == "t"]
    assert types == ["order.shipped"]


# --- the version


async def test_a_newer_schema_is_not_migrated(database: Database, plain: asyncpg.Connection) -> None:
    await plain.execute("INSERT INTO sea_mq_migrations VALUES (99, '0099_later', '')")
    with pytest.raises(ContractError, match=f"version 99, this worker knows only {len(NAMES)}"):
        await migrate(database.dsn)


async def test_a_schema_belongs_to_the_first_context_and_refuses_others(database: Database) -> None:
    async with asyncpg.create_pool(database.dsn, min_size=2, max_size=8) as connections:
        taken = (claim_schema(connections, name) for name in ("sea", "vibespro") * 4)
        refused = [error for error in await asyncio.gather(*taken, return_exceptions=True) if error]
        [owner] = await connections.fetch("SELECT context FROM sea_mq_context")
        assert len(refused) == 4
        assert all(isinstance(error, ContractError) for error in refused)
        assert f"belong to the context {owner['context']}" in str(refused[0])
        assert "SEA_MQ_DATABASE_SCHEMA" in str(refused[0])
        await claim_schema(connections, owner["context"])


async def test_a_user_without_rights_finds_that_nothing_is_to_be_done(
    database: Database, plain: asyncpg.Connection
) -> None:
    await plain.execute("CREATE ROLE reader_of_versions LOGIN PASSWORD 'p'")
    try:
        await plain.execute("GRANT SELECT ON sea_mq_migrations TO reader_of_versions")
        dsn = with_user(database.dsn, "reader_of_versions", "p")
        assert list(await migrate(dsn)) == []
        with pytest.raises(ContractError, match=r"permission denied.*lacks a privilege"):
            await migrate(dsn, schema="orders")
    finally:
        await plain.execute("DROP OWNED BY reader_of_versions; DROP ROLE reader_of_versions")


# --- what is told when a connection fails


def with_user(dsn: str, user: str, password: str) -> str:
    url = urlsplit(dsn)
    return url._replace(netloc=f"{user}:{password}@{url.netloc.rpartition('@')[2]}").geturl()


async def test_a_server_that_is_too_old_is_named_with_the_oldest_that_will_do(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SERVER_MIN", 99)
    for attempt in (opened(database).__aenter__, partial(migrate, database.dsn)):
        with pytest.raises(ContractError, match=r"^PostgreSQL \d+\.\d+ is too old .* 99 or newer$"):
            await attempt()

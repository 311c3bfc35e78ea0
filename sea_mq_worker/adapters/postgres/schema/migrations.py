"""Migrate a schema to the version of this worker, and check its version.

Each function raises StoreUnavailableError if PostgreSQL cannot serve now, besides what it names.
"""

import functools
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import (
    check_files,
    check_server,
    check_settings,
    quoted_schema,
    session_settings,
)
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.opening import opening
from sea_mq_worker.domain.errors import ContractError, FinalError
from sea_mq_worker.domain.schema_records import MigrationPlan
from sea_mq_worker.resources import files_in, resource_folder

MIGRATE = "python -m sea_mq_worker migrate"
_CONNECT_SECONDS = 10.0
_UNLIMITED = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""Overrides the time limits of the role or the database."""
_LOCK = "SELECT pg_advisory_xact_lock(7183, hashtext($1::text))"
_HAS_VERSIONS = "SELECT to_regclass('sea_mq_migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM sea_mq_migrations"
_RECORD = "INSERT INTO sea_mq_migrations (version, name, sha256, serves_from) VALUES ($1, $2, $3, $4)"
_APPLIED = "SELECT version, sha256 FROM sea_mq_migrations WHERE version <= $1 ORDER BY version"
_SERVES = "SELECT bool_and(coalesce(serves_from, version) <= $1) FROM sea_mq_migrations WHERE version > $1"
_SDS047_TABLES = (
    "SELECT relname FROM pg_class WHERE oid IN (to_regclass('outbox_events'), to_regclass('inbox_messages'))"
)
_ROWS = {
    "outbox_events": "SELECT count(*) FROM outbox_events",
    "inbox_messages": "SELECT count(*) FROM inbox_messages",
}
_SERVES_FROM = re.compile(r"^-- Serves workers from version (\d+)\.$", re.MULTILINE)


class OutdatedSchemaError(ContractError):
    """The schema lacks a migration."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; run `{MIGRATE}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A script; ``serves_from``: oldest version of workers that may continue after it, None: its own."""

    version: int
    name: str
    sha256: str
    serves_from: int | None
    sql: str


async def plan(dsn: str, *, schema: str = "public") -> MigrationPlan:
    """Return what ``migrate`` would do, without changes.

    Raises:
        ContractError: the schema is newer than this worker, or the server is too old.
    """
    async with owner_session(dsn, schema) as connection:
        found = await _found(connection)
        missing = migrations()[found:]
        tables = [] if found else await _adoptable(connection)
        return MigrationPlan(
            version=found,
            missing=[script.name for script in missing],
            serves_running=all((script.serves_from or script.version) <= found for script in missing),
            adopted={table: await connection.fetchval(_ROWS[table]) for table in tables},
        )


async def migrate(dsn: str, *, schema: str = "public") -> Sequence[str]:
    """Apply the missing migrations in order and return their names.

    Each migration is one transaction under one lock: it may run twice, concurrently, and after a crash.
    The schema is created if it is missing, and SDS-047's own tables are taken over. After an error, applied
    migrations stay applied.

    Raises:
        ContractError: the user may not create what is needed, a table of the same name is not SDS-047's, the
            schema is newer than this worker, or the server is too old.
    """
    applied = []
    async with owner_session(dsn, schema) as connection:
        while name := await _apply_next(connection, schema):
            applied.append(name)
    return applied


@asynccontextmanager
async def owner_session(dsn: str, schema: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect directly for changes of the schema, without a time-out.

    Raises:
        ContractError: PostgreSQL refuses the connection or a statement in the block, or is too old.
    """
    settings = session_settings(schema, "sea_mq_worker migrate") | _UNLIMITED
    check_files(dsn)
    async with opening(dsn) as address:
        connection = await asyncpg.connect(
            **address, timeout=_CONNECT_SECONDS, server_settings=settings, target_session_attrs="read-write"
        )
    with translated():
        try:
            await check_server(connection)
            await check_settings(connection, settings)
            yield connection
        finally:
            await connection.close(timeout=_CONNECT_SECONDS)


async def check_version(database: Any) -> None:
    """Check that the schema of ``database``, a connection or pool, serves this worker.

    Raises:
        FinalError: the schema is newer and does not serve this worker; the text names both versions.
        OutdatedSchemaError: the schema is missing or older.
    """
    known = len(migrations())
    with translated():
        found = await _found(database)
        if not found:
            path = await database.fetchval("SELECT current_setting('search_path')")
            schema = path.removesuffix(", pg_temp")
            raise OutdatedSchemaError(f"the database has no schema of the worker in {schema}")
    if found < known:
        raise OutdatedSchemaError(f"the schema has version {found}, this worker needs {known}")


async def altered_migrations(database: Any) -> Sequence[Migration]:
    """Return the migrations that were applied to ``database`` from a file with other content.

    Raises:
        ContractError: the login may not read the table.
    """
    with translated():
        rows = await database.fetch(_APPLIED, len(migrations()))
    applied = {row["version"]: row["sha256"] for row in rows}
    return [script for script in migrations() if applied.get(script.version, script.sha256) != script.sha256]


@functools.cache
def migrations() -> Sequence[Migration]:
    """Return the scripts in order; the nth makes version n.

    They are read once: an upgrade of the files does not change a running worker's version.
    """
    return [
        _migration(version, file.stem, file.read_bytes())
        for version, file in enumerate(files_in(resource_folder("sql") / "migrations", ".sql"), 1)
    ]


def _migration(version: int, name: str, content: bytes) -> Migration:
    sql = content.decode("utf-8")
    serves = _SERVES_FROM.search(sql)
    return Migration(
        version=version,
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        serves_from=int(serves[1]) if serves else None,
        sql=sql,
    )


async def _apply_next(connection: asyncpg.Connection, schema: str) -> str:
    """Apply the first missing migration and return its name; return nothing if none is missing."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        await _create_schema(connection, schema)
        found = await _found(connection)
        if found >= len(migrations()):
            return ""
        script = migrations()[found]
        if not found and (tables := await _adoptable(connection)):
            await _adopt(connection, tables, script.sql)
        else:
            await connection.execute(script.sql)
        await connection.execute(_RECORD, script.version, script.name, script.sha256, script.serves_from)
        return script.name


async def _adoptable(connection: asyncpg.Connection) -> Sequence[str]:
    """Return SDS-047's own tables that the schema has.

    Raises:
        ContractError: a table of that name is another one, or something would be lost with it.
    """
    if problems := [row["problem"] for row in await connection.fetch(adoption_script("differences"))]:
        raise ContractError(f"the schema has tables that are not exactly SDS-047's: {'; '.join(problems)}")
    return [row["relname"] for row in await connection.fetch(_SDS047_TABLES)]


async def _adopt(connection: asyncpg.Connection, tables: Sequence[str], script: str) -> None:
    """Run the first migration, and fill its tables from SDS-047's, which it replaces.

    Indexes and triggers are created behind the rows: they would double the time for which the tables are
    locked, and the triggers refuse a row that begins as PUBLISHED.
    """
    await connection.execute(adoption_script("set_aside"))
    behind_tables = script.index("\nCREATE INDEX ")
    await connection.execute(script[:behind_tables])
    if "outbox_events" in tables:
        await connection.execute(adoption_script("take_events"))
    await connection.execute(script[behind_tables:])
    if "inbox_messages" in tables:
        await connection.execute(adoption_script("take_messages"))
    for table in tables:
        await connection.execute(
            f"SELECT outbox_copy_rights('sds047_{table}', '{table}'); DROP TABLE sds047_{table}"
        )


def adoption_script(name: str) -> str:
    """Return a script of ``sql/adoption``."""
    return (resource_folder("sql") / "adoption" / f"{name}.sql").read_text(encoding="utf-8")


async def _create_schema(connection: asyncpg.Connection, schema: str) -> None:
    """Check first, so that a login without rights to create can still find that nothing is to be done."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(f"CREATE SCHEMA {quoted_schema(schema)}")


async def _found(database: Any) -> int:
    """Return the version of the schema, 0 if there is none; refuse one that does not serve this worker."""
    if not await database.fetchval(_HAS_VERSIONS):
        return 0
    found: int = await database.fetchval(_VERSION)
    known = len(migrations())
    if found > known and not await database.fetchval(_SERVES, known):
        raise FinalError(
            f"the schema has version {found}, this worker knows only {known}; run a newer worker"
        )
    return found

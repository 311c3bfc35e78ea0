"""Migrate a schema to the version of this worker, and check its version."""

import functools
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import (
    check_server,
    check_settings,
    check_tls_files,
    quoted_schema,
    session_settings,
)
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.opening import opening
from sea_mq_worker.domain.errors import ContractError, FinalError
from sea_mq_worker.domain.schema_records import MigrationPlan
from sea_mq_worker.resources import files_in, resource_folder

_MIGRATE = "python -m sea_mq_worker migrate"
_CONNECT_SECONDS = 10.0
_LOCK = "SELECT pg_advisory_xact_lock(7183, hashtext($1::text))"
_HAS_VERSIONS = "SELECT to_regclass('sea_mq_migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM sea_mq_migrations"
_RECORD = "INSERT INTO sea_mq_migrations (version, name) VALUES ($1, $2)"
_RECORD_SERVING = "INSERT INTO sea_mq_migrations (version, name, serves_from) VALUES ($1, $2, $3)"
_SERVES = "SELECT bool_and(coalesce(serves_from, version) <= $1) FROM sea_mq_migrations WHERE version > $1"
_SERVES_FROM = re.compile(r"^-- Serves workers from version (\d+)\.$", re.MULTILINE)


async def plan(dsn: str, *, schema: str = "public") -> MigrationPlan:
    """Return what ``migrate`` would do, without changes.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now.
        ContractError: the schema is newer than this worker, or the server is too old.
    """
    async with owner_session(dsn, schema) as connection:
        found: int = await connection.fetchval(_VERSION) if await connection.fetchval(_HAS_VERSIONS) else 0
        if found > len(_migrations()):
            await _check_newer(connection, found, len(_migrations()))
        scripts = _migrations()[found:]
        serving = (_SERVES_FROM.search(script.read_text(encoding="utf-8")) for script in scripts)
        return MigrationPlan(
            version=found,
            missing=[script.stem for script in scripts],
            serves_running=all(serves and int(serves[1]) <= found for serves in serving),
        )


async def migrate(dsn: str, *, schema: str = "public") -> Sequence[str]:
    """Apply the missing migrations in order and return their names.

    Each migration is one transaction under one lock: it may run twice, concurrently, and after a crash.
    The schema is created if it is missing.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now; applied migrations stay applied.
        ContractError: the user may not create what is needed, the schema is newer than this worker, or the
            server is too old.
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
        StoreUnavailableError: PostgreSQL cannot serve now.
        ContractError: PostgreSQL refuses the connection or a statement in the block, or is too old.
    """
    settings = session_settings(schema, "sea_mq_worker migrate")
    check_tls_files(dsn)
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
        ContractError: the schema is missing or older; the text names the remedy.
        StoreUnavailableError: PostgreSQL cannot serve now.
    """
    known = len(_migrations())
    with translated():
        if not await database.fetchval(_HAS_VERSIONS):
            schema = await database.fetchval("SELECT current_setting('search_path')")
            raise ContractError(f"the database has no schema of the worker in {schema}; run `{_MIGRATE}`")
        found = await database.fetchval(_VERSION)
        if found > known:
            await _check_newer(database, found, known)
    if found < known:
        raise ContractError(f"the schema has version {found}, this worker needs {known}; run `{_MIGRATE}`")


async def _apply_next(connection: asyncpg.Connection, schema: str) -> str:
    """Apply the first missing migration and return its name; return nothing if none is missing."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        await _prepare(connection, schema)
        found: int = await connection.fetchval(_VERSION)
        migrations = _migrations()
        if found > len(migrations):
            await _check_newer(connection, found, len(migrations))
        if found >= len(migrations):
            return ""
        script = migrations[found]
        await _apply(connection, found + 1, script.stem, script.read_text(encoding="utf-8"))
        return script.stem


async def _apply(connection: asyncpg.Connection, version: int, name: str, text: str) -> None:
    await connection.execute(text)
    if serves := _SERVES_FROM.search(text):
        await connection.execute(_RECORD_SERVING, version, name, int(serves[1]))
    else:
        await connection.execute(_RECORD, version, name)


async def _prepare(connection: asyncpg.Connection, schema: str) -> None:
    """Check first, so that a login without rights to create can still find that nothing is to be done."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(f"CREATE SCHEMA {quoted_schema(schema)}")
    if not await connection.fetchval(_HAS_VERSIONS):
        await connection.execute(_folder().joinpath("0000_versions.sql").read_text(encoding="utf-8"))


async def _check_newer(database: Any, found: int, known: int) -> None:
    if not await database.fetchval(_SERVES, known):
        raise FinalError(
            f"the schema has version {found}, this worker knows only {known}; run a newer worker"
        )


@functools.cache
def _migrations() -> Sequence[Path]:
    """Return the scripts 0001 and following, in order; the nth makes version n.

    The list is read once: an upgrade of the files does not change a running worker's version.
    """
    return files_in(_folder(), ".sql")[1:]


def _folder() -> Path:
    return resource_folder("sql") / "migrations"

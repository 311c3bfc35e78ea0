"""Brings a schema to the version that this worker knows, and tells where it is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import (
    check_tls_files,
    quoted_schema,
    session_settings,
)
from sea_mq_worker.adapters.postgres.errors import connecting, translated
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.resources import resource_folder

_MIGRATE = "python -m sea_mq_worker migrate"
_CONNECT_SECONDS = 10.0
_LOCK = "SELECT pg_advisory_xact_lock(7179, hashtext($1::text))"
_HAS_VERSIONS = "SELECT to_regclass('sea_mq_migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM sea_mq_migrations"
_RECORD = "INSERT INTO sea_mq_migrations (version, name) VALUES ($1, $2)"


async def migrate(dsn: str, *, schema: str = "public") -> Sequence[str]:
    """Apply the missing migrations in order and return their names; none where all are there.

    Each is one transaction under one lock, so that it may be run twice, by many at once, and after a crash.
    The schema is created if it is missing.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now; what was applied stays applied.
        ContractError: the user may not create what is needed, or the schema is newer than this worker.
    """
    settings = session_settings(schema, "sea_mq_worker migrate")
    check_tls_files(dsn)
    applied = []
    with connecting():
        connection = await asyncpg.connect(
            dsn, timeout=_CONNECT_SECONDS, server_settings=settings, target_session_attrs="read-write"
        )
    with translated():
        try:
            while name := await _apply_next(connection, schema):
                applied.append(name)
        finally:
            await connection.close(timeout=_CONNECT_SECONDS)
    return applied


async def check_version(database: Any) -> None:
    """Make sure that the schema of ``database``, a connection or pool, is the one this worker knows.

    Raises:
        ContractError: it is missing, older or newer; the text names both versions and what to do.
        StoreUnavailableError: PostgreSQL cannot serve now.
    """
    known = len(_migrations())
    with translated():
        if not await database.fetchval(_HAS_VERSIONS):
            schema = await database.fetchval("SELECT current_setting('search_path')")
            raise ContractError(f"the database has no schema of the worker in {schema}; run `{_MIGRATE}`")
        found = await database.fetchval(_VERSION)
    if found < known:
        raise ContractError(f"the schema has version {found}, this worker needs {known}; run `{_MIGRATE}`")
    if found > known:
        raise _newer(found, known)


async def _apply_next(connection: asyncpg.Connection, schema: str) -> str:
    """Apply the first missing migration and return its name, or nothing where none is missing."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        await _prepare(connection, schema)
        found: int = await connection.fetchval(_VERSION)
        migrations = _migrations()
        if found > len(migrations):
            raise _newer(found, len(migrations))
        if found == len(migrations):
            return ""
        script = migrations[found]
        await connection.execute(script.read_text(encoding="utf-8"))
        await connection.execute(_RECORD, found + 1, script.stem)
        return script.stem


async def _prepare(connection: asyncpg.Connection, schema: str) -> None:
    """Asking first: whoever may not create schema or table can still find that nothing is to be done."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(f"CREATE SCHEMA {quoted_schema(schema)}")
    if not await connection.fetchval(_HAS_VERSIONS):
        await connection.execute(_folder().joinpath("0000_versions.sql").read_text(encoding="utf-8"))


def _newer(found: int, known: int) -> ContractError:
    return ContractError(
        f"the schema has version {found}, this worker knows only {known}; run a newer worker"
    )


def _migrations() -> Sequence[Path]:
    """Return the scripts 0001 and following, in order; the nth makes version n."""
    return sorted(_folder().glob("*.sql"))[1:]


def _folder() -> Path:
    return resource_folder("sql") / "migrations"

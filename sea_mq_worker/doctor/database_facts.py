"""Read the facts about PostgreSQL as far as possible; a locked table hides no other table.

A new fact goes into ``adapters/postgres/schema/diagnostics``; of a server's setting, only the name into its
``_SETTINGS``. The check of the fact goes into ``database``, and its text into ``database_catalog``.
"""

import asyncpg

from sea_mq_worker.adapters.postgres.errors import PoolerError
from sea_mq_worker.adapters.postgres.schema.diagnostics import (
    DatabaseFacts,
    RowFacts,
    database_facts,
    hears_itself,
    row_facts,
    table_locks,
)
from sea_mq_worker.adapters.postgres.schema.migrations import MIGRATE, OutdatedSchemaError, check_version
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.doctor.database import lock_findings, long_seconds, waits_for_nobody
from sea_mq_worker.doctor.database_catalog import DatabaseKind
from sea_mq_worker.doctor.finding import Finding
from sea_mq_worker.domain.errors import ContractError, UnavailableError, WorkerError
from sea_mq_worker.settings import Settings

_POSTGRES = "PostgreSQL"
_OF_ANY_AGE = -1.0
_QUEUE_FULL = 0.9
"""Usage of the queue of notifications from which on nothing is sent."""


async def read_database(s: Settings, found: list[Finding]) -> tuple[DatabaseFacts | None, RowFacts | None]:
    """Return the facts that could be read; append findings about the rest to ``found``."""
    facts = rows = None
    try:
        pool = await open_pool(s, purpose="doctor")
        try:
            if facts := await _server(s, pool, found):
                rows = await _rows(s, pool, found)
        finally:
            await pool.close()
    except UnavailableError as error:
        found.append(_unavailable(error).finding(_POSTGRES, _text(error)))
    except PoolerError as error:
        found.append(DatabaseKind.POOLER_UNDECLARED.finding(_POSTGRES, _text(error)))
    except ContractError as error:
        found.append(DatabaseKind.DATABASE_REFUSES.finding(_POSTGRES, _text(error)))
    return facts, rows


def _text(error: WorkerError) -> str:
    return str(error).removeprefix(f"{_POSTGRES}: ")


def _unavailable(error: UnavailableError) -> DatabaseKind:
    if isinstance(error.__cause__, asyncpg.TargetServerAttributeNotMatched):
        return DatabaseKind.DATABASE_READ_ONLY
    return DatabaseKind.DATABASE_UNREACHABLE


async def _server(s: Settings, pool: asyncpg.Pool, found: list[Finding]) -> DatabaseFacts | None:
    try:
        await check_version(pool)
    except ContractError as error:
        where = f"schema {s.database_schema}"
        command = MIGRATE if isinstance(error, OutdatedSchemaError) else ""
        found.append(DatabaseKind.SCHEMA_VERSION.finding(where, str(error), command=command))
        return None
    facts = await database_facts(
        pool, long_seconds=long_seconds(s), active_seconds=s.outbox_lease_seconds / 2
    )
    listens = s.outbox_enabled and s.outbox_notify and not s.database_pooler
    if listens and not waits_for_nobody(facts) and facts.notifications.usage < _QUEUE_FULL:
        dsn = s.database_url.get_secret_value()
        if not await hears_itself(dsn, pool, schema=s.database_schema):
            found.append(DatabaseKind.NOTIFY_LOST.finding(_POSTGRES, "LISTEN does not receive a NOTIFY"))
    return facts


async def _rows(s: Settings, pool: asyncpg.Pool, found: list[Finding]) -> RowFacts | None:
    """Read the rows, and the locks that block them; a worker waits for a lock half a statement's time."""
    rows = None
    try:
        rows = await row_facts(pool, s.stream)
        locks = await table_locks(pool, longer_than_seconds=s.database_timeout_seconds / 2)
    except UnavailableError:
        locks = await table_locks(pool, longer_than_seconds=_OF_ANY_AGE)
        if not locks:
            raise
    found.extend(lock_findings(locks))
    return rows

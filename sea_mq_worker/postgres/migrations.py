"""Migrate a schema to the version of this worker, and check its version, its owner and its rows.

The scripts of ``sql/migrations`` are the only source of the schema. The nth makes version n; each is recorded
in ``sea_mq_migrations`` with its SHA-256, and with the oldest version of workers that may continue after it.
Each function raises what ``translated`` raises, besides what it names.
"""

import functools
import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import asyncpg

from sea_mq_worker.errors import ContractError, FinalError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import connect, quoted_schema, session_settings
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.resources import files_in, resource_folder

MIGRATE = "python -m sea_mq_worker migrate"

TABLES = (
    "sea_mq_migrations",
    "sea_mq_context",
    "sea_mq_consumers",
    "sea_mq_standings",
    "sea_mq_sessions",
    "sea_mq_shares",
    "outbox_events",
    "inbox_messages",
    "handled_messages",
    "operator_actions",
)

_SERVES_FROM = re.compile(r"^-- Serves workers from version (\d+)\.$", re.MULTILINE)
_STATEMENT = re.compile(
    r"^ *(CREATE|DROP) (?:OR REPLACE |UNIQUE )?(INDEX|TRIGGER) (?:IF NOT EXISTS )?(\w+)[^;]*;", re.MULTILINE
)
_RELATION = re.compile(r"\bON (\w+)")


class Migration(NamedTuple):
    """A script; ``serves_from``: oldest version of workers that may continue after it, None: its own."""

    version: int
    name: str
    sha256: str
    serves_from: int | None
    sql: str


@functools.cache
def migrations() -> Sequence[Migration]:
    """Return the scripts in order.

    They are read once: an upgrade of the files does not change a running worker's version.
    """
    scripts = []
    for version, file in enumerate(files_in(resource_folder("sql") / "migrations", ".sql"), 1):
        content = file.read_bytes()
        sql = content.decode("utf-8")
        serves = _SERVES_FROM.search(sql)
        sha256, serves_from = hashlib.sha256(content).hexdigest(), int(serves[1]) if serves else None
        scripts.append(Migration(version, file.stem, sha256, serves_from, sql))
    return scripts


class ExpectedObject(NamedTuple):
    """An index or trigger: its table, and the statement that creates it."""

    relation: str
    sql: str


@functools.cache
def expected_objects(kind: str) -> Mapping[str, ExpectedObject]:
    """Return each ``INDEX`` or ``TRIGGER`` by name, as the last script leaves it."""
    found: dict[str, ExpectedObject] = {}
    for script in migrations():
        for statement in _STATEMENT.finditer(script.sql):
            verb, what, name = statement.groups()
            if what != kind:
                continue
            found.pop(name, None)
            relation = _RELATION.search(statement[0])
            if verb == "CREATE" and relation:
                found[name] = ExpectedObject(relation[1], statement[0].lstrip())
    return found


# --- What a worker requires of a schema; ``database`` is a connection or a pool.

_HAS_VERSIONS = "SELECT to_regclass('sea_mq_migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM sea_mq_migrations"
_SERVES = "SELECT bool_and(coalesce(serves_from, version) <= $1) FROM sea_mq_migrations WHERE version > $1"
_APPLIED = "SELECT version, sha256 FROM sea_mq_migrations WHERE version <= $1 ORDER BY version"


class OutdatedSchemaError(ContractError):
    """The schema lacks a migration."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; run `{MIGRATE}`")


async def check_version(database: Any) -> None:
    """Require that the schema serves this worker.

    FinalError: it is newer and does not; the text names both versions. OutdatedSchemaError: it is missing or
    older.
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


async def altered_migrations(database: Any) -> Sequence[Migration]:
    """Return the migrations that were applied to ``database`` from a file with other content."""
    with translated():
        rows = await database.fetch(_APPLIED, len(migrations()))
    applied = {row["version"]: row["sha256"] for row in rows}
    return [script for script in migrations() if applied.get(script.version, script.sha256) != script.sha256]


async def claim_schema(database: Any, context: str) -> None:
    """Claim the schema for the context, unless it has an owner: two would process each other's rows."""
    if not await check_owner(database, context):
        with translated():
            await database.fetch(load_queries("sessions")["take_ownership"], context)
        await check_owner(database, context)


async def check_owner(database: Any, context: str) -> bool:
    """Require that the schema is no other context's; False: it is nobody's, before any worker."""
    with translated():
        found = await database.fetchrow(load_queries("sessions")["owner"])
    if found:
        require_owner(found, context)
    return found is not None


def require_owner(found: Mapping[str, Any], context: str) -> None:
    """Require that the owner of a schema, a row of the statement `owner`, is this context."""
    if found["context"] != context:
        schema = found["schema"]
        raise ContractError(
            f"the tables in schema {schema} belong to the context {found['context']}, not to {context}: "
            "correct SEA_MQ_CONTEXT, or give each context a schema of its own (SEA_MQ_DATABASE_SCHEMA); "
            f"if the context was renamed, write its new name into {schema}.sea_mq_context"
        )


async def check_rows_visible(database: Any) -> None:
    """Require that row security hides no rows: hidden rows would never be processed."""
    with translated():
        hidden = [row["name"] for row in await database.fetch(load_queries("sessions")["hidden"])]
    if hidden:
        raise ContractError(
            f"row security hides rows of {' and '.join(hidden)} from the worker: run `ALTER TABLE {hidden[0]}"
            " DISABLE ROW LEVEL SECURITY`, or give the worker's role BYPASSRLS"
        )


# --- Migrate.

_UNLIMITED = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""Overrides the time limits of the role or the database."""
_LOCK = "SELECT pg_advisory_xact_lock(7183, hashtext($1::text))"
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
_RECORD = "INSERT INTO sea_mq_migrations (version, name, sha256, serves_from) VALUES ($1, $2, $3, $4)"
_SDS047_TABLES = (
    "SELECT relname FROM pg_class WHERE oid IN (to_regclass('outbox_events'), to_regclass('inbox_messages'))"
)
_ROWS = {
    "outbox_events": "SELECT count(*) FROM outbox_events",
    "inbox_messages": "SELECT count(*) FROM inbox_messages",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """Changes that ``migrate`` would make.

    Attributes:
        version: version of the schema; 0: there is no schema.
        missing: names of the migrations that would be applied, in order.
        serves_running: workers that know ``version`` may continue afterwards.
        adopted: SDS-047's own tables that it would take over, each with its number of rows.
    """

    version: int
    missing: Sequence[str]
    serves_running: bool
    adopted: Mapping[str, int] = field(default_factory=dict)


async def plan(dsn: str, *, schema: str = "public") -> MigrationPlan:
    """Return what ``migrate`` would do, without changes."""
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
    migrations stay applied. ContractError: the user may not create what is needed, a table of the same name
    is not SDS-047's, the schema is newer than this worker, or the server is too old.
    """
    applied: list[str] = []
    async with owner_session(dsn, schema) as connection:
        while True:
            async with connection.transaction():
                await connection.execute(_LOCK, schema)
                # A login without rights to create can still find that nothing is to be done.
                if not await connection.fetchval(_HAS_SCHEMA, schema):
                    await connection.execute(f"CREATE SCHEMA {quoted_schema(schema)}")
                found = await _found(connection)
                if found >= len(migrations()):
                    return applied
                script = migrations()[found]
                if not found and (tables := await _adoptable(connection)):
                    await _adopt(connection, tables, script.sql)
                else:
                    await connection.execute(script.sql)
                await connection.execute(
                    _RECORD, script.version, script.name, script.sha256, script.serves_from
                )
            applied.append(script.name)


@asynccontextmanager
async def owner_session(dsn: str, schema: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect directly for changes of the schema, without a time-out; errors in the block are translated."""
    connection = await connect(dsn, session_settings(schema, "sea_mq_worker migrate") | _UNLIMITED)
    with translated():
        try:
            yield connection
        finally:
            await connection.close(timeout=10.0)


# --- Take over SDS-047's tables, and let its worker run beside this one
# (docs/how-to/from-the-rust-worker.md).

_WHEN = """WHEN (
        NOT (OLD.state IN ('PENDING', 'DEAD') AND NEW.state = 'PUBLISHED'
             AND NEW.publish_attempts >= OLD.publish_attempts) AND """


async def _adoptable(connection: asyncpg.Connection) -> Sequence[str]:
    """Return SDS-047's own tables that the schema has; refuse other ones, and what would be lost with one."""
    if problems := [row["problem"] for row in await connection.fetch(_adoption_script("differences"))]:
        raise ContractError(f"the schema has tables that are not exactly SDS-047's: {'; '.join(problems)}")
    return [row["relname"] for row in await connection.fetch(_SDS047_TABLES)]


async def _adopt(connection: asyncpg.Connection, tables: Sequence[str], script: str) -> None:
    """Run the first migration, and fill its tables from SDS-047's, which it replaces.

    Indexes and triggers are created behind the rows: they would double the time for which the tables are
    locked, and the triggers refuse a row that begins as PUBLISHED.
    """
    await connection.execute(_adoption_script("set_aside"))
    behind_tables = script.index("\nCREATE INDEX ")
    await connection.execute(script[:behind_tables])
    if "outbox_events" in tables:
        await connection.execute(_adoption_script("take_events"))
    await connection.execute(script[behind_tables:])
    if "inbox_messages" in tables:
        await connection.execute(_adoption_script("take_messages"))
    for table in tables:
        await connection.execute(
            f"SELECT outbox_copy_rights('sds047_{table}', '{table}'); DROP TABLE sds047_{table}"
        )


async def set_old_worker(dsn: str, *, schema: str, beside: bool) -> None:
    """Accept the statements of SDS-047's worker, or accept them no longer; may be repeated.

    The trigger that guards the lifecycle is replaced, not dropped: meanwhile it still refuses all else. After
    an error, as where others keep the table busy, nothing has changed.
    """
    made = expected_objects("TRIGGER")["outbox_transition"].sql
    transition = f"CREATE OR REPLACE TRIGGER {made.partition(' TRIGGER ')[2]}"
    if beside:
        transition = transition.replace("WHEN (", _WHEN, 1)
    async with owner_session(dsn, schema) as connection:
        await check_version(connection)
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            await connection.execute(transition)
            await connection.execute(_adoption_script("end_old_worker"))
            if beside:
                await connection.execute(_adoption_script("beside_old_worker"))


def _adoption_script(name: str) -> str:
    return (resource_folder("sql") / "adoption" / f"{name}.sql").read_text(encoding="utf-8")

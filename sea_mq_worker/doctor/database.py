"""Findings about PostgreSQL by itself: judges the facts that ``database_facts`` reads.

A new check goes here, its text into ``database_catalog``, and a new fact into
``adapters/postgres/schema/diagnostics``; of a server's setting, only the name into its ``_SETTINGS``.
"""

from collections.abc import Iterator, Sequence

import asyncpg

from sea_mq_worker.connections import open_pool
from sea_mq_worker.doctor.findings import REFUSES, Finding, Kind, error, format_duration, note, warning
from sea_mq_worker.doctor.postgres_facts import (
    DatabaseFacts,
    Lack,
    RowFacts,
    TableLock,
    database_facts,
    hears_itself,
    row_facts,
    table_locks,
)
from sea_mq_worker.errors import ContractError, UnavailableError, WorkerError
from sea_mq_worker.postgres.errors import PoolerError
from sea_mq_worker.postgres.migrations import (
    MIGRATE,
    SCHEMA,
    ExpectedObject,
    Migration,
    OutdatedSchemaError,
    canonical,
    check_version,
    expected_constraints,
    expected_functions,
    expected_objects,
)
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.settings import Settings

# --- Catalog of PostgreSQL's findings.


class DatabaseKind(Kind):
    """Findings from PostgreSQL alone."""

    # connection
    DATABASE_UNREACHABLE = error(
        "PostgreSQL does not answer, or not in time",
        "nothing is published or received",
        "start PostgreSQL, check its load, or correct SEA_MQ_DATABASE_URL",
    )
    DATABASE_READ_ONLY = error(
        "PostgreSQL is read-only: a standby, or default_transaction_read_only is on",
        "nothing is published or received",
        "name the primary in SEA_MQ_DATABASE_URL, or set default_transaction_read_only off",
    )
    DATABASE_REFUSES = error(
        "PostgreSQL refuses the login, TLS or a statement",
        REFUSES,
        "correct SEA_MQ_DATABASE_URL, or the setting that the message names",
    )
    SCHEMA_VERSION = error(
        "the schema is missing, too old, or too new for this worker",
        REFUSES,
        "run `migrate`, or run the worker version of that schema",
    )
    SCHEMA_OWNER = error(
        "the tables belong to another context",
        f"{REFUSES}: it would publish under the wrong subjects",
        "correct SEA_MQ_CONTEXT, or set SEA_MQ_DATABASE_SCHEMA to a schema of its own",
    )
    POOLER_UNDECLARED = error(
        "a pooler in transaction mode, and SEA_MQ_DATABASE_POOLER is not set",
        "prepared statements and session settings are lost between transactions",
        "set SEA_MQ_DATABASE_POOLER=true, or connect directly",
    )
    NOTIFY_LOST = warning(
        "a connection to the URL does not receive its own notification",
        "the worker finds events by polling, up to SEA_MQ_OUTBOX_POLL_SECONDS late",
        "connect directly, or set SEA_MQ_OUTBOX_NOTIFY=false",
    )
    DATABASE_CLOCK = warning(
        "the clocks of PostgreSQL and this machine differ by more than a minute",
        "events of this machine's producers fail as FUTURE_EVENT or are late; log times mislead",
        "synchronize both machines with the same time server",
    )
    # privileges and settings
    RIGHTS_MISSING = error(
        "the login lacks a privilege that the worker needs",
        "the worker does not start, or pauses a side",
        "grant the privilege, preferably with sql/roles.sql",
    )
    RIGHTS_OF_A_READER = warning(
        "the login is read-only, like the reader of sql/roles.sql",
        "the worker cannot run with this login",
        "also run doctor with the worker's login",
    )
    FSYNC_OFF = error(
        "PostgreSQL does not flush writes to disk: fsync is off",
        "a crash of its machine loses commits and may corrupt the database",
        "switch fsync on; restore a backup if the machine crashed meanwhile",
    )
    SYNCHRONOUS_COMMIT_OFF = warning(
        "PostgreSQL confirms commits before they are on disk: synchronous_commit is off",
        (
            "a crash of the server loses the latest commits: the worker repeats their work, perhaps "
            "outside the deduplication window"
        ),
        "switch synchronous_commit on, also for the service",
    )
    STANDBY_MISSING = error(
        "commits wait for a standby, and none is connected",
        "every write hangs, including the service's",
        "start the standby, or remove it from synchronous_standby_names",
    )
    DATABASE_ENCODING = warning(
        "the encoding of the database is not UTF8",
        "PostgreSQL refuses events and errors with other characters",
        "restore a dump into a database WITH ENCODING 'UTF8'",
    )
    TRIGGERS_OFF = error(
        "triggers do not run: session_replication_role is replica",
        "no rule of the lifecycle is enforced, and no insert wakes the worker",
        "set session_replication_role to origin",
    )
    TWO_PHASE_COMMIT = note(
        "max_prepared_transactions is above 0",
        "PREPARE TRANSACTION fails after an insert into the outbox",
        "in such producers, run SET LOCAL sea_mq.notify = off before the insert",
    )
    SESSION_TIMEOUTS = warning(
        "transaction_timeout is shorter than SEA_MQ_DATABASE_TIMEOUT_SECONDS",
        "connections break without a fault",
        "reset it for the worker's role",
    )
    CONNECTIONS_TOO_FEW = error(
        "fewer connections are allowed than a worker needs",
        "a worker does not start",
        "raise the limit of the role, the database or the server",
    )
    CONNECTIONS_SHORT = warning(
        "fewer connections are free than a worker may open",
        "under load statements fail",
        "raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX",
    )
    # tables
    TABLE_LOCKED = error(
        "a session blocks a table longer than the statement time-out",
        "nothing is published or received",
        "end the transaction in its program, or terminate its session",
    )
    ROW_SECURITY = error(
        "row-level security limits which rows the login sees",
        "the worker never publishes or handles hidden rows",
        "disable row-level security, or give the login BYPASSRLS",
    )
    TABLE_UNLOGGED = error(
        "a table is unlogged", "PostgreSQL empties it after a crash", "set the table LOGGED"
    )
    INDEX_MISSING = error(
        "an index is missing",
        "statements that need the index read the whole table",
        "create the index again",
    )
    INDEX_INVALID = error(
        "an index is invalid, as after a failed CREATE INDEX CONCURRENTLY",
        "the index slows writes and speeds up nothing",
        "rebuild the index",
    )
    TRIGGER_MISSING = error(
        "a trigger is missing",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "create the trigger again",
    )
    TRIGGER_DISABLED = error(
        "a trigger is disabled",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "enable the trigger",
    )
    BESIDE_OLD_WORKER = warning(
        "SDS-047's own statements may settle events beside this worker",
        "events may be published out of order, before they are due, or without a place in the stream",
        "end the old worker, then run `migrate --end-old-worker`",
    )
    TRIGGER_FOREIGN = warning(
        "a trigger of somebody else runs before each change of a row",
        "it can change an event behind the rules, and each claim reads the whole payload to measure it again",
        "let it run AFTER, or at the insert alone",
    )
    PUBLICATION_BLOCKS = error(
        "a publication and the replica identity of a table do not fit",
        "PostgreSQL refuses each change of a row: nothing is published or received",
        (
            "set REPLICA IDENTITY USING INDEX of the primary key, or publish generated columns "
            "(publish_generated_columns = stored); with a column list or a filter: have the ID in the list, "
            "filter by it alone, or publish inserts only"
        ),
    )
    NOTIFICATIONS_FULL = warning(
        "the server's queue of notifications is more than half full",
        "from 90 % on no event wakes the worker; when it is full, a COMMIT with another NOTIFY fails",
        "end the transaction of the session that listens and does not read",
    )
    MIGRATION_ALTERED = error(
        "an applied migration differs from this version's file",
        "the schema may not be the one that this worker knows",
        "fix the schema's other findings, then record the file's SHA-256",
    )
    FUNCTION_DIFFERS = error(
        "a function is missing, or its body or search path differs",
        "a rule of the lifecycle is not enforced, or differs",
        "create it again; if it was missing, also run sql/roles.sql again",
    )
    CONSTRAINT_DIFFERS = error(
        "a constraint is missing or differs",
        "producers can write rows that no worker can finish",
        "fix the rows that violate it, and create it again",
    )
    AUTOVACUUM_OFF = warning(
        "autovacuum or track_counts is off", "dead rows stay, and each claim scans them", "switch it on"
    )
    DEAD_ROWS = warning(
        "a table has five times the dead rows that start an autovacuum",
        "claims slow down and the table grows",
        "vacuum the table, and look for old transactions",
    )
    TRANSACTION_OPEN_LONG = warning(
        "a transaction has been open for more than five leases",
        "vacuum removes no row that died since: claims slow down",
        "end the transaction in its program, or terminate its session",
    )
    TRANSACTION_PREPARED_LONG = warning(
        "a prepared transaction has been open for more than five leases",
        "vacuum removes no row that died since, and the locks survive a restart",
        "commit the transaction or roll it back in its database",
    )
    LANE_HELD = warning(
        "a session that is no worker's holds the lock of the lane with ordering keys",
        "all workers claim events with ordering keys, and in turns: publishing is slower",
        "give that program's advisory lock another number, or terminate its session",
    )
    SLOT_INACTIVE = warning(
        "an inactive replication slot retains WAL",
        "the disk fills up, and PostgreSQL stops",
        "start its consumer, or drop the slot",
    )
    # rows
    OUTBOX_UNATTENDED = error(
        "an event has been due for a minute, and no worker is connected",
        "nothing is published",
        "start the worker",
    )
    OUTBOX_UNCLAIMED = warning(
        "an event has been due for 0.75 leases, and no connected worker has claimed for half a lease",
        "nothing is published",
        "read the worker's /readyz for the reason; restart a worker that does not answer",
    )
    OUTBOX_BEHIND = warning(
        "an event has been due for more than five leases",
        "events come late",
        "read the worker's /readyz for the reason",
    )
    OUTBOX_AHEAD = warning(
        "open events have times in the future: PostgreSQL's clock was set back",
        "ages and times mislead",
        "run a worker: it sends them within 20 s; synchronize the server's clock",
    )
    OUTBOX_FAILING = warning(
        "waiting events have an error",
        "they and later events of their keys are late",
        "fix the cause in the error",
    )
    OUTBOX_DEAD = warning(
        "events are DEAD",
        "the worker does not publish them",
        "fix the causes, then run `outbox replay`, or `outbox discard` for unsendable ones",
    )
    OUTBOX_UNPRUNED = warning(
        "events were published more than 30 days ago",
        "the table grows without limit",
        "run `prune` or `pipeline archive` regularly",
    )
    SEQUENCE_BEHIND = error(
        "a sequence is behind its table, as after a copy of rows",
        "new events overtake older ones of their key; operators' commands fail",
        "set it to the table's highest number; check events written meanwhile",
    )
    SEQUENCE_DIFFERS = error(
        "a sequence has other parameters",
        "sessions get numbers in blocks: new events overtake older ones of their key",
        "set the parameters again",
    )
    PARTITIONS_SHORT = warning(
        "partitions exist for less than half of SEA_MQ_OUTBOX_PARTITION_DAYS ahead",
        "a day's events go to the default partition and block that day's",
        "start a worker, or search its log for `partitions_not_made`",
    )
    DEFAULT_PARTITION_USED = warning(
        "the default partition holds events, or has held some",
        "PostgreSQL reads it for each new partition; above 1 GB the worker creates none",
        "let producers use UUIDv7; after a `prune`, free its disk space",
    )
    INBOX_ORPHANS = warning(
        "messages wait whose consumer is not in SEA_MQ_CONSUMERS",
        "this worker does not handle them",
        "add the consumer until none of its messages waits",
    )
    INBOX_FAILING = warning(
        "waiting messages have an error",
        "after the last attempt they are dead-lettered",
        "fix the cause in the error, usually in the handler",
    )
    INBOX_STUCK = warning(
        "a message waits longer than all its attempts can take",
        "its effect is missing",
        "check its error, and whether a worker is running",
    )


CLOCK_SECONDS = 60.0
"""Tolerated difference of two clocks, in seconds (POL-047-002)."""

_LEASES = 5
_DEAD_TIMES = 5
_ENCODING = "UTF8"
_ALONGSIDE = "INDEX CONCURRENTLY"
"""Creates an index without blocking writes; PostgreSQL refuses it for a partitioned table."""
_BESIDE_OLD_WORKER = "_by_old_worker"
"""End of the names of the triggers by which SDS-047's own worker runs beside this one."""
_QUEUE_USAGE = 0.5
_READS = "SELECT"
_WRITES = 11
"""Number of required privileges other than SELECT."""


def long_seconds(s: Settings) -> float:
    """Return the age at which a transaction is too old or an event late, in seconds."""
    return _LEASES * s.outbox_lease_seconds


def database_findings(facts: DatabaseFacts, s: Settings) -> Iterator[Finding]:
    """Judge the server, the login and the tables."""
    if facts.context not in {None, s.context}:
        yield DatabaseKind.SCHEMA_OWNER.finding(
            f"schema {facts.schema}", f"it belongs to {facts.context}, not to {s.context}"
        )
    if abs(facts.clock_offset_seconds) > CLOCK_SECONDS:
        offset = f"{facts.clock_offset_seconds:+.0f} s against this machine's"
        yield DatabaseKind.DATABASE_CLOCK.finding("PostgreSQL's clock", offset)
    if facts.encoding != _ENCODING:
        where = f"database {facts.database}"
        yield DatabaseKind.DATABASE_ENCODING.finding(where, f"its encoding is {facts.encoding}")
    yield from _rights(facts)
    yield from _server(facts, s)
    yield from _connections(facts, s)
    yield from _tables(facts)
    yield from (_altered(facts, script) for script in facts.altered)
    yield from _indexes(facts)
    yield from _triggers(facts)
    yield from _foreign_triggers(facts)
    yield from _notifications(facts)
    yield from _functions(facts)
    yield from _holding_back(facts)


def waits_for_nobody(facts: DatabaseFacts) -> bool:
    """Return whether commits wait for a standby that is not connected."""
    waits = facts.settings["synchronous_commit"].setting not in {"off", "local"}
    return waits and bool(facts.settings["synchronous_standby_names"].setting) and not facts.standbys


def lock_findings(locks: Sequence[TableLock]) -> Iterator[Finding]:
    """Name the sessions that block the worker from a table."""
    for lock in locks:
        does = "holds" if lock.granted else "waits for"
        since = f", for {format_duration(lock.seconds)}" if lock.seconds else ""
        what = f"session {lock.pid} {does} {lock.mode}{since}, of {lock.name or 'an unnamed program'}"
        where, sql = f"table {lock.relation}", f"SELECT pg_terminate_backend({lock.pid})"
        yield DatabaseKind.TABLE_LOCKED.finding(where, what, sql=sql)


def constraint_findings(facts: DatabaseFacts, rows: RowFacts) -> Iterator[Finding]:
    """Compare the tables' constraints with those of the migrations."""
    for (relation, name), constraint in expected_constraints().items():
        found = rows.constraints.get((relation, name))
        if found is not None and canonical(found) == constraint.definition:
            continue
        where, table = f"table {relation}", _table(facts, relation)
        what = f"constraint {name} is {f'{found!r}' if found else 'missing'}"
        drop = f"ALTER TABLE {table} DROP CONSTRAINT {_quoted(name)};\n" if found else ""
        sql = f"{drop}ALTER TABLE {table} {constraint.sql}"
        yield DatabaseKind.CONSTRAINT_DIFFERS.finding(where, what, sql=sql)


def _rights(facts: DatabaseFacts) -> Iterator[Finding]:
    where = f"role {facts.role}"
    lacks = {lack.privilege for lack in facts.lacks}
    writes = [lack for lack in facts.lacks if lack.privilege != _READS]
    if _READS not in lacks and len(writes) == _WRITES:
        yield DatabaseKind.RIGHTS_OF_A_READER.finding(where, "it may read all tables and write none")
        return
    for lack in facts.lacks:
        yield DatabaseKind.RIGHTS_MISSING.finding(
            where, f"no {_privilege(lack)} on {lack.relation}", sql=_grant(lack, facts)
        )


def _privilege(lack: Lack) -> str:
    return f"{lack.privilege} ({', '.join(lack.columns)})" if lack.columns else lack.privilege


def _grant(lack: Lack, facts: DatabaseFacts) -> str:
    return f"GRANT {_privilege(lack)} ON {_table(facts, lack.relation)} TO {_quoted(facts.role)}"


def _server(facts: DatabaseFacts, s: Settings) -> Iterator[Finding]:
    for kind, name, wrong, right in (
        (DatabaseKind.FSYNC_OFF, "fsync", "off", "on"),
        (DatabaseKind.SYNCHRONOUS_COMMIT_OFF, "synchronous_commit", "off", "on"),
        (DatabaseKind.TRIGGERS_OFF, "session_replication_role", "replica", "origin"),
        (DatabaseKind.AUTOVACUUM_OFF, "autovacuum", "off", "on"),
        (DatabaseKind.AUTOVACUUM_OFF, "track_counts", "off", "on"),
    ):
        if facts.settings[name].setting == wrong:
            yield _setting(kind, facts, name, right)
    if int(facts.settings["max_prepared_transactions"].setting):
        yield DatabaseKind.TWO_PHASE_COMMIT.finding(
            "PostgreSQL's settings",
            f"max_prepared_transactions is {facts.settings['max_prepared_transactions'].setting}",
        )
    if waits_for_nobody(facts):
        yield _setting(DatabaseKind.STANDBY_MISSING, facts, "synchronous_standby_names", "''")
    limit = facts.settings.get("transaction_timeout")  # of PostgreSQL 17 or newer
    if limit is not None and 0 < int(limit.setting) < s.database_timeout_seconds * 1000:
        yield _setting(DatabaseKind.SESSION_TIMEOUTS, facts, "transaction_timeout", "0")


def _setting(kind: DatabaseKind, facts: DatabaseFacts, name: str, right: str) -> Finding:
    """Reset a setting at its source; SQL cannot reset one of the command line."""
    found = facts.settings[name]
    role, database = _quoted(facts.role), _quoted(facts.database)
    sql = {
        "database": f"ALTER DATABASE {database} RESET {name}",
        "user": f"ALTER ROLE {role} RESET {name}",
        "database user": f"ALTER ROLE {role} IN DATABASE {database} RESET {name}",
        "configuration file": f"ALTER SYSTEM SET {name} = {right};\nSELECT pg_reload_conf()",
    }.get(found.source, "")
    return kind.finding("PostgreSQL's settings", f"{name} is {found.setting}, by {found.source}", sql=sql)


def _connections(facts: DatabaseFacts, s: Settings) -> Iterator[Finding]:
    needed = s.connections_max
    c = facts.connections
    reserved = ("superuser_reserved_connections", "reserved_connections")
    kept = sum(int(facts.settings[name].setting) for name in reserved if name in facts.settings)
    role, database = _quoted(facts.role), _quoted(facts.database)
    ceilings = (
        ("the server", int(facts.settings["max_connections"].setting) - kept, c.used, ""),
        (f"database {facts.database}", c.database_max, c.database_used, f"DATABASE {database}"),
        (f"role {facts.role}", c.role_max, c.role_used, f"ROLE {role}"),
    )
    for where, most, used, limited in ceilings:
        free = most - used + c.own
        if 0 <= most < s.connections_min:
            what = f"{most} are allowed, a worker needs {s.connections_min}"
            sql = f"ALTER {limited} CONNECTION LIMIT -1" if limited else ""
            yield DatabaseKind.CONNECTIONS_TOO_FEW.finding(where, what, sql=sql)
        elif most >= 0 and free < needed:
            what = f"{free} of {most} are free, a worker may open {needed}"
            yield DatabaseKind.CONNECTIONS_SHORT.finding(where, what)


def _tables(facts: DatabaseFacts) -> Iterator[Finding]:
    for table in facts.tables:
        where, name = f"table {table.name}", _table(facts, table.name)
        if table.unlogged:
            yield DatabaseKind.TABLE_UNLOGGED.finding(
                where, "the table is unlogged", sql=f"ALTER TABLE {name} SET LOGGED"
            )
        if table.filtered:
            sql = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"
            yield DatabaseKind.ROW_SECURITY.finding(
                where, f"row-level security applies to role {facts.role}", sql=sql
            )
        if not table.vacuumed:
            sql = f"ALTER TABLE {name} RESET (autovacuum_enabled)"
            yield DatabaseKind.AUTOVACUUM_OFF.finding(where, "autovacuum_enabled is false", sql=sql)
        if table.dead > _DEAD_TIMES * table.vacuum_from:
            what = f"{table.dead} dead rows; autovacuum starts at {table.vacuum_from:.0f}"
            yield DatabaseKind.DEAD_ROWS.finding(where, what, sql=f"VACUUM {name}")


def _altered(facts: DatabaseFacts, script: Migration) -> Finding:
    sql = (
        f"UPDATE {_table(facts, 'sea_mq_migrations')} SET sha256 = {_literal(script.sha256)}"  # noqa: S608
        f" WHERE version = {script.version}"
    )
    what = f"{script.name} was applied with other content"
    return DatabaseKind.MIGRATION_ALTERED.finding("table sea_mq_migrations", what, sql=sql)


def _indexes(facts: DatabaseFacts) -> Iterator[Finding]:
    parts = {table.name for table in facts.tables if table.partitioned}
    for name, index in expected_objects("INDEX").items():
        where = f"table {index.relation}"
        if name not in facts.indexes:
            what = f"index {name} is missing"
            how = "INDEX" if index.relation in parts else _ALONGSIDE
            sql = _made(facts, index).replace("INDEX", how, 1)
            yield DatabaseKind.INDEX_MISSING.finding(where, what, sql=sql)
        elif not facts.indexes[name]:
            sql = f"REINDEX {_ALONGSIDE} {_table(facts, name)}"
            yield DatabaseKind.INDEX_INVALID.finding(where, f"index {name} is invalid", sql=sql)


def _triggers(facts: DatabaseFacts) -> Iterator[Finding]:
    for name, trigger in expected_objects("TRIGGER").items():
        where = f"table {trigger.relation}"
        if name not in facts.triggers:
            what = f"trigger {name} is missing"
            yield DatabaseKind.TRIGGER_MISSING.finding(where, what, sql=_made(facts, trigger))
        elif not facts.triggers[name].enabled:
            sql = f"ALTER TABLE {_table(facts, trigger.relation)} ENABLE TRIGGER {name}"
            yield DatabaseKind.TRIGGER_DISABLED.finding(where, f"trigger {name} is disabled", sql=sql)
    if "outbox_published_by_old_worker" in facts.triggers:
        yield DatabaseKind.BESIDE_OLD_WORKER.finding(
            "table outbox_events",
            "the window for an old worker is open",
            command=f"{MIGRATE} --end-old-worker",
        )


def _foreign_triggers(facts: DatabaseFacts) -> Iterator[Finding]:
    for trigger in facts.foreign_triggers:
        if trigger.name.endswith(_BESIDE_OLD_WORKER):
            continue
        what = f"trigger {trigger.name} calls {trigger.function}"
        sql = f"ALTER TABLE {_table(facts, trigger.relation)} DISABLE TRIGGER {_quoted(trigger.name)}"
        yield DatabaseKind.TRIGGER_FOREIGN.finding(f"table {trigger.relation}", what, sql=sql)


def _notifications(facts: DatabaseFacts) -> Iterator[Finding]:
    queue = facts.notifications
    if queue.usage <= _QUEUE_USAGE:
        return
    what, sql = f"{queue.usage:.0%} of it are used", ""
    if queue.pid:
        since = format_duration(queue.seconds)
        what += f"; the oldest transaction is {since} old, of {queue.name or 'an unnamed program'}"
        sql = f"SELECT pg_terminate_backend({queue.pid})"
    where = f"session {queue.pid}" if queue.pid else "PostgreSQL"
    yield DatabaseKind.NOTIFICATIONS_FULL.finding(where, what, sql=sql)


def publication_findings(facts: DatabaseFacts, rows: RowFacts) -> Iterator[Finding]:
    """Name the publications that let no row change."""
    for one in rows.publications:
        table = _table(facts, one.relation)
        sql = f"ALTER PUBLICATION {_quoted(one.name)} SET (publish = 'insert')"
        if not one.by_index:
            sql = f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {_quoted(one.primary_key)}"
        what = f"publication {one.name}: {one.problem}"
        yield DatabaseKind.PUBLICATION_BLOCKS.finding(f"table {one.relation}", what, sql=sql)


def _functions(facts: DatabaseFacts) -> Iterator[Finding]:
    for name, function in expected_functions().items():
        found = facts.functions.get(name)
        if found is None:
            what = "it is missing"
        elif found.body != function.body:
            what = "its body differs from the migrations"
        elif found.search_path != function.search_path:
            what = f"its search_path is {found.search_path or 'not set'}"
        else:
            continue
        sql = _in_schema(facts, function.sql.replace(SCHEMA, quoted_schema(facts.schema)))
        yield DatabaseKind.FUNCTION_DIFFERS.finding(f"function {name}", what, sql=sql)


def _holding_back(facts: DatabaseFacts) -> Iterator[Finding]:
    for one in facts.transactions:
        what = f"{format_duration(one.seconds)} old, {one.state}, of {one.name or 'an unnamed program'}"
        yield DatabaseKind.TRANSACTION_OPEN_LONG.finding(
            f"session {one.pid}", what, sql=f"SELECT pg_terminate_backend({one.pid})"
        )
    for waiting in facts.prepared:
        yield DatabaseKind.TRANSACTION_PREPARED_LONG.finding(
            f"prepared transaction {waiting.name}",
            f"{format_duration(waiting.seconds)} old",
            sql=f"ROLLBACK PREPARED {_literal(waiting.name)}",
        )
    for holder in facts.lane_holders:
        yield DatabaseKind.LANE_HELD.finding(
            f"session {holder.pid}",
            f"it holds advisory lock (7182, hashtext({_literal(facts.schema)})), "
            f"of {holder.name or 'an unnamed program'}",
            sql=f"SELECT pg_terminate_backend({holder.pid})",
        )
    for slot in facts.slots:
        yield DatabaseKind.SLOT_INACTIVE.finding(
            f"replication slot {slot.name}",
            f"it retains {slot.bytes / 2**20:.0f} MiB of WAL",
            sql=f"SELECT pg_drop_replication_slot({_literal(slot.name)})",
        )


def _made(facts: DatabaseFacts, lacking: ExpectedObject) -> str:
    return _in_schema(facts, lacking.sql.rstrip(";"))


def _in_schema(facts: DatabaseFacts, sql: str) -> str:
    return f"SET search_path = {quoted_schema(facts.schema)}, pg_temp;\n{sql}"


def _table(facts: DatabaseFacts, name: str) -> str:
    return f"{quoted_schema(facts.schema)}.{name}"


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


# --- Read the facts about PostgreSQL as far as possible; a locked table hides no other table.
#
# A new fact goes into ``adapters/postgres/schema/diagnostics``; of a server's setting, only the name into
# its ``_SETTINGS``. The check of the fact goes into ``database``, and its text into ``database_catalog``.

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
            if facts := await _server_facts(s, pool, found):
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


async def _server_facts(s: Settings, pool: asyncpg.Pool, found: list[Finding]) -> DatabaseFacts | None:
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

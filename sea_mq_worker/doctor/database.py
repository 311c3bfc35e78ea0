"""Findings about PostgreSQL by itself: judges the facts that ``database_facts`` reads.

A new check goes here, its text into ``database_catalog``, and a new fact into
``adapters/postgres/schema/diagnostics``; of a server's setting, only the name into its ``_SETTINGS``.
"""

from collections.abc import Iterator, Sequence

from sea_mq_worker.adapters.postgres.connection import quoted_schema
from sea_mq_worker.adapters.postgres.schema.diagnostics import DatabaseFacts, Lack, RowFacts, TableLock
from sea_mq_worker.adapters.postgres.schema.expected_schema import (
    SCHEMA,
    ExpectedObject,
    canonical,
    expected_constraints,
    expected_functions,
    expected_objects,
)
from sea_mq_worker.adapters.postgres.schema.migrations import MIGRATE, Migration
from sea_mq_worker.doctor.database_catalog import DatabaseKind
from sea_mq_worker.doctor.finding import Finding, format_duration
from sea_mq_worker.settings import Settings

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

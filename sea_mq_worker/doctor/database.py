"""PostgreSQL as doctor sees it: facts as rows of the statements in doctor.sql, and what is wrong.

A locked table hides no other table: what no lock can delay is read first.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import asyncpg

from sea_mq_worker.connections import open_pool
from sea_mq_worker.doctor.findings import Finding, error, format_duration, warning
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.inbox.undelivered import recorded_missed
from sea_mq_worker.operators.records import MARKED, NUMBERS
from sea_mq_worker.outbox.maintenance import published_rows
from sea_mq_worker.postgres.errors import ReplicaIdentityError
from sea_mq_worker.postgres.migrations import (
    MIGRATE,
    TABLES,
    OutdatedSchemaError,
    altered_migrations,
    check_owner,
    check_version,
    expected_objects,
)
from sea_mq_worker.postgres.partitions import PARTITIONS_AHEAD_DAYS
from sea_mq_worker.postgres.pool import fetch, quoted_schema
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

Facts = Mapping[str, Any]
"""Answers by the names of their statements, each a list of rows, and what other modules read."""

_SQL = load_queries("doctor")
_SETTINGS = (
    *("fsync", "synchronous_commit", "synchronous_standby_names", "autovacuum", "track_counts"),
    "session_replication_role",
    *("max_connections", "superuser_reserved_connections", "reserved_connections", "server_version"),
)
_UPDATED = {"outbox_events": "publish_error", "inbox_messages": "last_error"}
"""Tables whose rows a worker changes, and a column that it may change."""
_WRITES = 14
"""Number of required privileges other than SELECT."""
_BESIDE_OLD_WORKER = "_by_old_worker"
"""End of the names of the triggers by which SDS-047's own worker runs beside this one."""
_LEASES = 5
_UNATTENDED_SECONDS = 60.0
_QUEUE_USAGE = 0.5
_DAY_SECONDS = 86_400.0
_ERROR_CHARS = 300


async def read_database(s: Settings, found: list[Finding]) -> Facts:
    """Return the facts that could be read, all or none of the tables' rows; append findings to ``found``."""
    facts: dict[str, Any] = {}
    try:
        pool = await open_pool(s, purpose="doctor")
        try:
            if await _serves(s, pool, found):
                await _read_server(s, pool, facts)
                await _read_rows(s, pool, facts)
        finally:
            await pool.close()
    except UnavailableError as failed:
        found.append(
            error(
                "database_unreachable", "PostgreSQL", _text(failed),
                why="nothing is published or received",
                fix="start PostgreSQL, check its load, or name the primary in SEA_MQ_DATABASE_URL",
            )
        )  # fmt: skip
    except ContractError as refused:
        found.append(
            error(
                "database_refuses", "PostgreSQL", _text(refused),
                why="the worker refuses to start",
                fix="correct SEA_MQ_DATABASE_URL, or the setting that the message names",
            )
        )  # fmt: skip
    found.extend(_locks(facts.get("locks", ())))
    return facts


async def _serves(s: Settings, pool: asyncpg.Pool, found: list[Finding]) -> bool:
    """Check that the schema is of this worker's version and context; facts of another one would mislead."""
    try:
        await check_version(pool)
        await check_owner(pool, s.context)
    except ContractError as refused:
        found.append(
            error(
                "schema_version", f"schema {s.database_schema}", str(refused),
                why="the worker refuses to start",
                fix="run `migrate` or another version of the worker, or correct what the message names",
                command=MIGRATE if isinstance(refused, OutdatedSchemaError) else "",
            )
        )  # fmt: skip
        return False
    return True


async def _read_server(s: Settings, pool: asyncpg.Pool, facts: dict[str, Any]) -> None:
    """Read all that no lock can delay, or nothing."""
    began = time.time()
    server: dict[str, Any] = {}
    [server["identity"]] = await _ask(pool, "identity")
    server["clock_offset_seconds"] = server["identity"]["epoch"] - (began + time.time()) / 2
    server["settings"] = {row["name"]: row for row in await _ask(pool, "settings", list(_SETTINGS))}
    [server["connections"]] = await _ask(pool, "connections", s.outbox_lease_seconds / 2)
    server["transactions"] = await _ask(pool, "transactions", _LEASES * s.outbox_lease_seconds)
    for name in ("notifications", "rights"):
        server[name] = await _ask(pool, name)
    for name in ("tables", "indexes", "triggers"):
        server[name] = await _ask(pool, name, list(TABLES))
    own = list(expected_objects("TRIGGER"))
    server["foreign_triggers"] = await _ask(pool, "foreign_triggers", list(_UPDATED), own)
    server["altered"] = await altered_migrations(pool)
    facts |= server


async def _read_rows(s: Settings, pool: asyncpg.Pool, facts: dict[str, Any]) -> None:
    """Read the rows, and the locks that block them; a worker waits for a lock half a statement's time."""
    try:
        facts |= await row_facts(pool, s.stream)
        facts["locks"] = await _ask(pool, "locks", list(TABLES), s.database_timeout_seconds / 2)
    except UnavailableError:
        facts.pop("outbox", None)
        facts["locks"] = await _ask(pool, "locks", list(TABLES), -1.0)
        if not facts["locks"]:
            raise


async def row_facts(pool: asyncpg.Pool, stream: str) -> Facts:
    """Query the backlog of the tables; a lock on a table delays the answer."""
    facts: dict[str, Any] = {name: await _ask(pool, name) for name in ("sequence", "partitions", "inbox")}
    facts["failing"] = await _ask(pool, "failing", NUMBERS, MARKED)
    facts["missed"] = await recorded_missed(pool)
    facts["acknowledged"] = await published_rows(pool, stream)
    facts["publications"] = []
    for table, column in _UPDATED.items():  # planning a change checks the publications, and changes nothing
        try:
            await fetch(pool, f"EXPLAIN UPDATE {table} SET {column} = NULL")  # noqa: S608
        except ReplicaIdentityError as refused:
            facts["publications"] += [
                (row, refused.problem) for row in await _ask(pool, "publications", table)
            ]
        except ContractError:  # a right is missing, which is another finding
            continue
    [facts["outbox"]] = await _ask(pool, "outbox")
    return facts


async def _ask(pool: asyncpg.Pool, name: str, *args: object) -> Sequence[Mapping[str, Any]]:
    """Return what a statement of doctor.sql answers."""
    return [dict(row) for row in await fetch(pool, _SQL[name], *args)]


def _locks(locks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for lock in locks:
        does = "holds" if lock["granted"] else "waits for"
        since = f", for {format_duration(lock['seconds'])}" if lock["seconds"] else ""
        yield error(
            "table_locked", f"table {lock['relation']}",
            f"session {lock['pid']} {does} {lock['mode']}{since}, of {lock['name'] or 'an unnamed program'}",
            why="it blocks the table longer than the statement time-out: nothing is published or received",
            fix="end the transaction in its program, or terminate its session",
            sql=_terminate(lock["pid"]),
        )  # fmt: skip


def database_findings(facts: Facts, s: Settings) -> Iterator[Finding]:
    """Judge what was read."""
    yield from _server_findings(facts, s)
    yield from _session_findings(facts)
    yield from _table_findings(facts)
    yield from _object_findings(facts)
    if "outbox" in facts:
        yield from _row_findings(facts, s)
        if s.outbox_enabled:
            yield from _outbox_findings(facts, s)


def only_reads(facts: Facts) -> bool:
    """Whether the login may read all tables and write none, so that it is no worker's."""
    lacks = facts["rights"]
    return len(lacks) == _WRITES and all(lack["privilege"] != "SELECT" for lack in lacks)


def _server_findings(facts: Facts, s: Settings) -> Iterator[Finding]:
    """Judge the login, the server's settings and its connections."""
    identity, settings = facts["identity"], facts["settings"]
    role, schema = identity["role"], quoted_schema(identity["schema"])
    for lack in () if only_reads(facts) else facts["rights"]:
        columns = f" ({', '.join(lack['columns'])})" if lack["columns"] else ""
        yield error(
            "rights_missing", f"role {role}", f"no {lack['privilege']}{columns} on {lack['relation']}",
            why="the worker does not start, or pauses a side",
            fix="grant the privilege, preferably with sql/roles.sql",
            sql=f"GRANT {lack['privilege']}{columns} ON {schema}.{lack['relation']} TO {_quoted(role)};",
        )  # fmt: skip

    unsafe = [
        (f"table {table['name']}", "it is unlogged", f"ALTER TABLE {schema}.{table['name']} SET LOGGED;")
        for table in facts["tables"]
        if table["unlogged"]
    ]
    if settings["fsync"]["setting"] == "off":
        unsafe.append(("PostgreSQL's settings", _set(settings["fsync"]), _reset(facts, "fsync", "on")))
    for where, what, sql in unsafe:
        yield error(
            "commits_not_durable", where, what,
            why="a crash loses events and messages that were committed, of an unlogged table all",
            fix="switch fsync on, or set the table LOGGED; after a crash restore a backup",
            sql=sql,
        )  # fmt: skip
    if settings["synchronous_commit"]["setting"] == "off":
        yield warning(
            "synchronous_commit_off", "PostgreSQL's settings", _set(settings["synchronous_commit"]),
            why="a crash loses the latest commits: the worker repeats their work, perhaps twice",
            fix="switch it on, also for the service",
            sql=_reset(facts, "synchronous_commit", "on"),
        )  # fmt: skip
    waits = settings["synchronous_commit"]["setting"] not in {"off", "local"}
    if waits and settings["synchronous_standby_names"]["setting"] and not identity["standbys"]:
        yield error(
            "standby_missing", "PostgreSQL's settings", _set(settings["synchronous_standby_names"]),
            why="commits wait for a standby, and none is connected: every write hangs",
            fix="start the standby, or remove it from synchronous_standby_names",
            sql=_reset(facts, "synchronous_standby_names", "''"),
        )  # fmt: skip

    used, reserved = facts["connections"], ("superuser_reserved_connections", "reserved_connections")
    kept = sum(int(settings[name]["setting"]) for name in reserved if name in settings)
    for at, most, taken in (
        ("the server", int(settings["max_connections"]["setting"]) - kept, used["used"]),
        (f"database {identity['database']}", used["database_max"], used["database_used"]),
        (f"role {role}", used["role_max"], used["role_used"]),
    ):
        free = most - taken + used["own"]
        if most >= 0 and free < s.connections_max:
            yield warning(
                "connections_short", at, f"{free} of {most} are free, a worker may open {s.connections_max}",
                why="under load statements fail, or the worker does not start",
                fix="raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX",
            )  # fmt: skip


def _session_findings(facts: Facts) -> Iterator[Finding]:
    """Judge what others hold: notifications and transactions."""
    [queue] = facts["notifications"]
    if queue["usage"] > _QUEUE_USAGE:
        since = f"; the oldest transaction is {format_duration(queue['seconds'])} old"
        by = f"{since}, of {queue['name'] or 'an unnamed program'}" if queue["pid"] else ""
        yield warning(
            "notifications_full", f"session {queue['pid']}" if queue["pid"] else "PostgreSQL",
            f"{queue['usage']:.0%} of the queue of notifications are used{by}",
            why="from 90 % on no event wakes the worker; when it is full, a COMMIT with another NOTIFY fails",
            fix="end the transaction of the session that listens and does not read",
            sql=_terminate(queue["pid"]) if queue["pid"] else "",
        )  # fmt: skip
    for one in facts["transactions"]:
        prepared = one["pid"] is None
        yield warning(
            "transaction_open_long",
            f"prepared transaction {one['name']}" if prepared else f"session {one['pid']}",
            f"{format_duration(one['seconds'])} old" + ("" if prepared else f", {one['name']}"),
            why="vacuum removes no row that died since: claims slow down",
            fix="end the transaction in its program, or by the statement",
            sql=f"ROLLBACK PREPARED {_literal(one['name'])};" if prepared else _terminate(one["pid"]),
        )  # fmt: skip


def _table_findings(facts: Facts) -> Iterator[Finding]:
    """Judge the tables."""
    identity, settings = facts["identity"], facts["settings"]
    schema = quoted_schema(identity["schema"])
    unvacuumed = [
        ("PostgreSQL's settings", _set(settings[name]), _reset(facts, name, "on"))
        for name in ("autovacuum", "track_counts")
        if settings[name]["setting"] == "off"
    ]
    for table in facts["tables"]:
        where, name = f"table {table['name']}", f"{schema}.{table['name']}"
        if not table["vacuumed"]:
            reset = f"ALTER TABLE {name} RESET (autovacuum_enabled);"
            unvacuumed.append((where, "autovacuum_enabled is false", reset))
        if table["filtered"]:
            yield error(
                "row_security", where, f"row-level security applies to role {identity['role']}",
                why="the worker never publishes or handles hidden rows",
                fix="disable row-level security, or give the login BYPASSRLS",
                sql=f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY;",
            )  # fmt: skip
    for where, what, sql in unvacuumed:
        yield warning(
            "autovacuum_off", where, what,
            why="dead rows stay, and each claim scans them",
            fix="switch it on",
            sql=sql,
        )  # fmt: skip


def _object_findings(facts: Facts) -> Iterator[Finding]:
    """Judge migrations, indexes and triggers."""
    schema = quoted_schema(facts["identity"]["schema"])
    in_schema = f"SET search_path = {schema}, pg_temp;\n"
    for script in facts["altered"]:
        yield error(
            "migration_altered", "table sea_mq_migrations", f"{script.name} was applied with other content",
            why="the schema may not be the one that this worker knows",
            fix="compare the schema with a fresh one, then record the file's SHA-256",
            sql=f"UPDATE {schema}.sea_mq_migrations SET sha256 = {_literal(script.sha256)}"  # noqa: S608
            f" WHERE version = {script.version};",
        )  # fmt: skip
    valid = {row["name"]: row["valid"] for row in facts["indexes"]}
    parts = {table["name"] for table in facts["tables"] if table["partitioned"]}
    for name, index in expected_objects("INDEX").items():
        if valid.get(name):
            continue
        how = "INDEX" if index.relation in parts else "INDEX CONCURRENTLY"  # refused for a partitioned table
        make = f"{in_schema}{index.sql.rstrip(';').replace('INDEX', how, 1)};"
        yield error(
            "index_missing", f"table {index.relation}",
            f"index {name} is {'invalid' if name in valid else 'missing'}",
            why="statements that need the index read the whole table",
            fix="create the index again",
            sql=f"REINDEX INDEX CONCURRENTLY {schema}.{name};" if name in valid else make,
        )  # fmt: skip
    enabled = {row["name"]: row["enabled"] for row in facts["triggers"]}
    off = []
    role = facts["settings"]["session_replication_role"]
    if role["setting"] == "replica":
        off.append(("PostgreSQL's settings", _set(role), _reset(facts, role["name"], "origin")))
    for name, trigger in expected_objects("TRIGGER").items():
        where = f"table {trigger.relation}"
        if name not in enabled:
            make = f"{in_schema}{trigger.sql.rstrip(';')};"
            off.append((where, f"trigger {name} is missing", make))
        elif not enabled[name]:
            enable = f"ALTER TABLE {schema}.{trigger.relation} ENABLE TRIGGER {name};"
            off.append((where, f"trigger {name} is disabled", enable))
    for where, what, sql in off:
        yield error(
            "trigger_disabled", where, what,
            why="a rule of the lifecycle is not enforced, or no insert wakes the worker",
            fix="enable the trigger, create it again, or let triggers run",
            sql=sql,
        )  # fmt: skip
    if "outbox_published_by_old_worker" in enabled:
        yield warning(
            "beside_old_worker", "table outbox_events", "the window for an old worker is open",
            why="its statements may publish out of order, before the time, or without a place in the stream",
            fix="end the old worker, then run `migrate --end-old-worker`",
            command=f"{MIGRATE} --end-old-worker",
        )  # fmt: skip
    for row in facts["foreign_triggers"]:
        if not row["name"].endswith(_BESIDE_OLD_WORKER):
            yield warning(
                "trigger_foreign", f"table {row['relation']}",
                f"trigger {row['name']} calls {row['function']} before each change of a row",
                why="it can change an event behind the rules, and each claim reads the whole payload",
                fix="let it run AFTER, or at the insert alone",
                sql=f"ALTER TABLE {schema}.{row['relation']} DISABLE TRIGGER {_quoted(row['name'])};",
            )  # fmt: skip


def _row_findings(facts: Facts, s: Settings) -> Iterator[Finding]:
    """Judge the rows: what waits too long, fails or stays for ever."""
    schema = quoted_schema(facts["identity"]["schema"])
    for one, problem in facts["publications"]:
        index = _quoted(one["primary_key"])
        identify = f"ALTER TABLE {schema}.{one['relation']} REPLICA IDENTITY USING INDEX {index};"
        inserts = f"ALTER PUBLICATION {_quoted(one['name'])} SET (publish = 'insert');"
        yield error(
            "publication_blocks", f"table {one['relation']}", f"publication {one['name']}: {problem}",
            why="PostgreSQL refuses each change of a row: nothing is published or received",
            fix="set REPLICA IDENTITY USING INDEX of the primary key, or publish generated columns "
            "(publish_generated_columns = stored); with a column list or a filter: have the ID in the list, "
            "filter by it alone, or publish inserts only",
            sql=inserts if one["by_index"] else identify,
        )  # fmt: skip
    for group in facts["failing"]:
        oldest = format_duration(group["seconds"])
        yield warning(
            "rows_failing", group["side"],
            f"{group['count']} wait, the oldest for {oldest}: {group['error'][:_ERROR_CHARS]}",
            why="they and later events of their keys are late; the last attempt dead-letters a message",
            fix="fix the cause in the error, of messages usually in the handler",
            command=f"python -m sea_mq_worker where {group['example']}",
        )  # fmt: skip
    for row in facts["sequence"]:
        if row["last"] is not None and row["highest"] is not None and row["last"] < row["highest"]:
            table = f"{schema}.outbox_events"
            yield error(
                "sequence_behind", "column seq of outbox_events",
                f"the last assigned number is {row['last']}, a row has {row['highest']}",
                why="as after a copy of rows: new events overtake older ones of their key",
                fix="set it to the table's highest number; check events written meanwhile",
                sql=f"SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence('{table}', 'seq'), "  # noqa: S608
                f"pg_catalog.max(seq)) FROM {table};",
            )  # fmt: skip
    configured = {(consumer.stream, consumer.durable) for consumer in s.consumers}
    for waiting in facts["inbox"]:
        where = f"inbox, by consumer {waiting['consumer']} of stream {waiting['stream']}"
        what = f"{waiting['count']} waiting, the oldest for {format_duration(waiting['seconds'])}"
        if (waiting["stream"], waiting["consumer"]) not in configured:
            yield warning(
                "inbox_orphans", where, what,
                why="this worker does not handle them: the consumer is not in SEA_MQ_CONSUMERS",
                fix="add the consumer until none of its messages waits",
                command="python -m sea_mq_worker inbox list",
            )  # fmt: skip
        elif waiting["seconds"] > s.inbox_attempts_max * (
            s.inbox_backoff_max_seconds + s.handler_timeout_seconds
        ):
            yield warning(
                "inbox_stuck", where, what,
                why="its effect is missing, longer than all its attempts can take",
                fix="check its error, and whether a worker is running",
                command="python -m sea_mq_worker inbox list",
            )  # fmt: skip


def _outbox_findings(facts: Facts, s: Settings) -> Iterator[Finding]:
    outbox, connected = facts["outbox"], facts["connections"]
    due = f"the oldest event has been due for {format_duration(outbox['due_seconds'])}"
    due += f"; workers connected: {connected['workers']}"
    if connected["workers"] and not connected["relays"]:
        due += ", none of them publishes"
    elif connected["workers"] and not connected["active"]:
        due += f"; no statement of theirs for {format_duration(s.outbox_lease_seconds / 2)}"
    late = (
        min(_UNATTENDED_SECONDS, 0.75 * s.outbox_lease_seconds)
        if connected["relays"]
        else _UNATTENDED_SECONDS
    )
    if not connected["active"] and outbox["due_seconds"] > late:
        yield error(
            "outbox_unattended", "outbox", due,
            why="nothing is published: no worker is connected, or none claims",
            fix="start the worker; read its /readyz, and restart one that does not answer",
            command="python -m sea_mq_worker run",
        )  # fmt: skip
    elif outbox["due_seconds"] > _LEASES * s.outbox_lease_seconds:
        yield warning(
            "outbox_behind", "outbox", due,
            why="events come late",
            fix="read the worker's /readyz for the reason",
        )  # fmt: skip
    if outbox["dead"]:
        held = "; later events of their keys wait" if s.outbox_dead_key == "hold" else ""
        yield warning(
            "outbox_dead", "outbox", f"DEAD events: {outbox['dead']}{held}",
            why="the worker does not publish them",
            fix="fix the causes, then run `outbox replay`, or `outbox discard` for unsendable ones",
            command="python -m sea_mq_worker outbox list --state DEAD",
        )  # fmt: skip
    if outbox["published_seconds"] > 30 * _DAY_SECONDS:
        yield warning(
            "outbox_unpruned", "outbox",
            f"the oldest was published {outbox['published_seconds'] / _DAY_SECONDS:.0f} days ago",
            why="the table grows without limit",
            fix="run `prune` or `pipeline archive` regularly",
            command="python -m sea_mq_worker prune --before 30d --reason 'doctor' --side outbox",
        )  # fmt: skip
    for row in facts["partitions"]:
        days = row["ahead_seconds"] / _DAY_SECONDS
        if days < PARTITIONS_AHEAD_DAYS / 2:
            yield warning(
                "partitions_short", "outbox", f"partitions exist for {days:.1f} days ahead",
                why="a day's events go to the default partition and block that day's",
                fix="start a worker, or search its log for `partitions_not_made`",
                command="python -m sea_mq_worker run",
            )  # fmt: skip


def _text(refused: Exception) -> str:
    return str(refused).removeprefix("PostgreSQL: ")


def _set(row: Mapping[str, Any]) -> str:
    return f"{row['name']} is {row['setting']}, by {row['source']}"


def _reset(facts: Facts, name: str, right: str) -> str:
    """Reset a setting at its source; SQL cannot reset one of the command line."""
    role, database = _quoted(facts["identity"]["role"]), _quoted(facts["identity"]["database"])
    return {
        "database": f"ALTER DATABASE {database} RESET {name};",
        "user": f"ALTER ROLE {role} RESET {name};",
        "database user": f"ALTER ROLE {role} IN DATABASE {database} RESET {name};",
        "configuration file": f"ALTER SYSTEM SET {name} = {right};\nSELECT pg_reload_conf();",
    }.get(facts["settings"][name]["source"], "")


def _terminate(pid: int) -> str:
    return f"SELECT pg_terminate_backend({pid});"


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))

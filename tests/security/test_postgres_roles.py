"""sql/roles.sql: worker and operators run with exactly these rights, and what they lack is refused."""

import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import DateTime, func
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sea_mq_worker.operators.changes import mark_dead
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import audit
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.migrations import check_version, claim_schema
from sea_mq_worker.producer import enqueue
from sea_mq_worker.resources import resource_folder
from tests.integration.test_migrations import run_psql
from tests.security.test_sql import STATEMENTS, parse_trees
from tests.support.builders import enqueueable
from tests.support.partitions import partition_outbox
from tests.support.servers import Database, PostgresAddress, database_connection, unique
from tests.support.site import Site

KINDS = ("producer", "relay", "operator", "janitor", "reader")
PASSWORD = "only-for-this-test"
EVENT = (
    "(id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'a', 'b', 'c', '{}')"
)
ABANDON = """
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = now() - interval '1 h', claimed_by = 'gone#1', publish_attempts = 1,
       first_attempt_at = now()
 WHERE ordering_key IS NULL
"""
FILE = resource_folder("sql") / "roles.sql"


@dataclass(frozen=True, slots=True)
class Roles:
    """Logins, one for each role, in a database of their own."""

    database: Database
    prefix: str

    def dsn(self, kind: str) -> str:
        """Return the DSN of the login with this role alone."""
        parts = urlsplit(self.database.dsn)
        place = f"{parts.hostname}:{parts.port}"
        return parts._replace(netloc=f"{self.prefix}_{kind}_login:{PASSWORD}@{place}").geturl()

    def session(self, kind: str) -> AbstractAsyncContextManager[asyncpg.Connection]:
        return database_connection(self.dsn(kind))

    def pool(self, kind: str) -> AbstractAsyncContextManager[asyncpg.Pool]:
        return asyncpg.create_pool(self.dsn(kind), min_size=1, max_size=1)

    async def apply(self) -> None:
        await run_psql(self.database.dsn, "-v", f"prefix={self.prefix}", "-f", str(FILE))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prefix(postgres_server: PostgresAddress) -> AsyncIterator[str]:
    """A prefix of role names; roles belong to the server, and go when no database knows them."""
    own = unique("r")
    yield own
    async with database_connection(postgres_server.dsn) as server:
        for kind in KINDS:
            await server.execute(f"DROP ROLE IF EXISTS {own}_{kind}_login, {own}_{kind}")


@pytest.fixture
async def owner(database: Database) -> AsyncIterator[asyncpg.Connection]:
    async with database_connection(database.dsn) as connection:
        yield connection


@pytest.fixture
async def roles(database: Database, owner: asyncpg.Connection, prefix: str) -> Roles:
    """The file applied twice, as after a migration, and a login for each role."""
    made = Roles(database, prefix)
    for _ in range(2):
        await made.apply()
    for kind in KINDS:
        if not await owner.fetchval("SELECT to_regrole($1)", f"{prefix}_{kind}_login"):
            login = f"{prefix}_{kind}_login LOGIN PASSWORD '{PASSWORD}' IN ROLE {prefix}_{kind}"
            await owner.execute(f"CREATE ROLE {login}")
    return made


@pytest.mark.clause("terms-04", "POL-047-005", "CMD-050", "CMD-051", "handler-200")
@pytest.mark.parametrize("mode", ["auto", "atomic"])
async def test_a_relay_can_run_the_whole_worker(mode: str, roles: Roles, shared: Site) -> None:
    """Both lanes, a failed lease's end, effects, retries and dead letters; nothing is denied on the way."""
    await shared.commit(5)
    await shared.commit(5, ordering_key="k")
    await shared.database.execute(ABANDON)
    await shared.send(3)
    dead_lettered = frozenset(await shared.send(1, body=b"no json"))
    async with shared.worker(database_url=roles.dsn("relay"), outbox_publish_mode=mode) as worker:
        await shared.quiet()
        await worker.ready()
        denied = [line for line in worker.written.splitlines() if "permission" in line]
    assert denied == []
    await shared.audit(dead_lettered=dead_lettered)


async def test_an_operator_can_mark_dead_and_replay(roles: Roles, shared: Site) -> None:
    dead, waiting = [uuid.UUID(event_id) for event_id in await shared.commit(2)]
    who: dict[str, Any] = {"actor": "alice", "reason": "a test"}
    async with roles.pool("operator") as pool:
        await check_version(pool)
        await claim_schema(pool, shared.target.context)
        assert await mark_dead(pool, [dead, waiting], **who) == {dead, waiting}
        chosen = OutboxFilter(states=(EventState.DEAD,), ids=(dead,))
        done = await replay_matching(pool, chosen, **who, cap=10, dry_run=False)
        assert done.replayed == 1
        recorded = [(action.action, action.outcome) for action in await audit(pool, limit=9)]
        assert recorded == [("replay", "done"), ("mark_dead", "done")]


OPENED = (
    "INSERT INTO operator_actions (actor, action, reason, selection, affected) VALUES"
    " ('ann', 'replay', 'x', '{\"ids\": [1], \"progress\": {\"through\": 5}}', 3) RETURNING id"
)
REWRITTEN = (
    "SET affected = affected - 1",
    "SET selection = '{\"ids\": []}'",
    "SET selection = jsonb_set(selection, '{progress,through}', '4')",
    "SET selection = selection - 'progress'",
)


@pytest.mark.fault("S18")
@pytest.mark.parametrize("kind", ["operator", "janitor"])
async def test_the_audit_only_grows_and_stays_as_it_is_once_it_has_its_outcome(
    kind: str, roles: Roles, owner: asyncpg.Connection
) -> None:
    async with roles.session(kind) as login:
        action = await login.fetchval(OPENED)
        before = await owner.fetchrow("SELECT * FROM operator_actions WHERE id = $1", action)
        for change in REWRITTEN:
            with pytest.raises(asyncpg.CheckViolationError, match="only grows"):
                await login.execute(f"UPDATE operator_actions {change} WHERE id = $1", action)
        assert await owner.fetchrow("SELECT * FROM operator_actions WHERE id = $1", action) == before
        await login.execute(
            "UPDATE operator_actions SET affected = 4, outcome = 'done' WHERE id = $1", action
        )
        for change in ("affected = 5", "outcome = NULL", "outcome = 'failed'"):
            with pytest.raises(asyncpg.CheckViolationError, match="stays as it is"):
                await login.execute(f"UPDATE operator_actions SET {change} WHERE id = $1", action)


@pytest.mark.fault("S18")
async def test_a_record_of_the_audit_names_its_login_which_alone_may_finish_it(
    roles: Roles, owner: asyncpg.Connection
) -> None:
    change = "UPDATE operator_actions SET {} WHERE id = $1"
    only = pytest.raises(asyncpg.CheckViolationError, match=f"only the login {roles.prefix}_operator_login")
    denied = pytest.raises(asyncpg.InsufficientPrivilegeError)
    async with roles.session("operator") as operator, roles.session("janitor") as janitor:
        action = await operator.fetchval(OPENED)
        dropped = "selection = jsonb_set(selection, '{dropped}', '[1]')"
        for made in ("affected = 4", "outcome = 'failed'", dropped):
            with only:
                await janitor.execute(change.format(made), action)
        for made in ("login = NULL", "login = 'somebody'"):
            with denied:
                await operator.execute(change.format(made), action)
            with pytest.raises(asyncpg.CheckViolationError, match="only grows"):
                await owner.execute(change.format(made), action)
        with denied:
            await janitor.execute(OPENED.replace("(actor", "(login, actor").replace("('ann'", "('x', 'ann'"))
        await operator.execute(change.format("affected = 4"), action)
        async with roles.pool("reader") as pool:
            [recorded] = await audit(pool, limit=9)
        assert (recorded.actor, recorded.login) == ("ann", f"{roles.prefix}_operator_login")
        await owner.execute(change.format("outcome = 'failed'"), action)


UNFINISHED = {
    "waiting": "attempts = 0",
    "leased": "locked_until = now() + interval '1 minute', locked_by = 'w'",
    "dead-lettering": "dead_letter_reason = 'REJECTED', dead_letter_begun_at = now()",
}
FINISHED = {
    "processed": "processed_at = now()",
    "dead-lettered": "dead_letter_reason = 'X', dead_letter_begun_at = now(), dead_lettered_at = now()",
}
NEW_MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject) VALUES (gen_random_uuid(), 's') RETURNING message_id"
)


@pytest.mark.parametrize("state", [*UNFINISHED, *FINISHED])
async def test_a_janitor_cannot_delete_a_message_that_a_worker_may_still_handle(
    state: str, roles: Roles, owner: asyncpg.Connection
) -> None:
    delete = "DELETE FROM inbox_messages WHERE message_id = $1"
    message = await owner.fetchval(NEW_MESSAGE)
    columns = (UNFINISHED | FINISHED)[state]
    await owner.execute(f"UPDATE inbox_messages SET {columns} WHERE message_id = $1", message)
    async with roles.session("janitor") as janitor:
        if state in FINISHED:
            assert await janitor.execute(delete, message) == "DELETE 1"
            return
        with pytest.raises(asyncpg.CheckViolationError, match="neither processed nor dead-lettered"):
            await janitor.execute(delete, message)
    assert await owner.execute(delete, message) == "DELETE 1"


async def test_a_janitor_deletes_what_is_finished_and_nothing_else(roles: Roles, shared: Site) -> None:
    await shared.commit(1)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    async with roles.pool("janitor") as pool:
        await check_version(pool)
        assert (await prune(pool, "outbox", soon, actor="alice", reason="a test")).deleted == 0
        assert (await prune(pool, "inbox", soon, actor="alice", reason="a test")).deleted == 0
        assert {action.outcome for action in await audit(pool, limit=9)} == {"done"}
        with pytest.raises(asyncpg.CheckViolationError, match="not published or dead"):
            await pool.execute("DELETE FROM outbox_events")


async def test_in_partitions_each_role_has_the_rights_that_it_had(roles: Roles) -> None:
    """Those of the table move along; new partitions get them, and the file gives them again."""
    await partition_outbox(roles.database.dsn)
    async with roles.session("relay") as relay:
        [made] = await relay.fetchrow("SELECT outbox_make_partitions(8)")
    await roles.apply()
    async with roles.session("producer") as producer, producer.transaction():
        await enqueue(producer, enqueueable())
    async with roles.session("janitor") as janitor:
        assert await janitor.fetchval("SELECT count(*) FROM outbox_events") == 1
        await janitor.execute(f"DELETE FROM {made}")
        dropped = await janitor.fetchrow("SELECT * FROM outbox_drop_partition($1, 'infinity')", made)
    assert dropped["dropped"]


async def test_a_producers_model_of_the_specifications_columns_is_inserted_and_read(roles: Roles) -> None:
    """With all twelve columns, as an ORM writes them; only the values of a new event are accepted."""

    class Base(DeclarativeBase):
        pass

    class OutboxEvent(Base):
        __tablename__ = "outbox_events"
        id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
        aggregate_type: Mapped[str]
        aggregate_id: Mapped[str]
        event_type: Mapped[str]
        event_version: Mapped[int] = mapped_column(default=1)
        payload: Mapped[dict[str, Any]] = mapped_column(JSONB)
        occurred_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
        correlation_id: Mapped[uuid.UUID | None]
        causation_id: Mapped[uuid.UUID | None]
        published_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
        publish_attempts: Mapped[int] = mapped_column(default=0)
        publish_error: Mapped[str | None]

    engine = create_async_engine(roles.dsn("producer").replace("postgresql:", "postgresql+asyncpg:"))
    new = {"aggregate_type": "a", "aggregate_id": "b", "event_type": "c", "payload": {"total": 1}}
    async with AsyncSession(engine) as session:
        event = OutboxEvent(id=uuid.uuid4(), **new)
        session.add(event)
        await session.commit()
        await session.refresh(event)
        assert (event.payload, event.published_at) == ({"total": 1}, None)
        again = postgresql.insert(OutboxEvent).values(id=event.id, **new)
        added = await session.execute(again.on_conflict_do_nothing(index_elements=["id"]))
        assert added.rowcount == 0
        for refused in ({"published_at": datetime.now(UTC)}, {"publish_attempts": 1}):
            session.add(OutboxEvent(id=uuid.uuid4(), **new, **refused))
            with pytest.raises(IntegrityError):
                await session.commit()
            await session.rollback()
    await engine.dispose()


LOOKS = (
    *("operators.outbox_", "operators.inbox_", "operators.read_ahead", "operators.discarded"),
    *("operators.session_is", "operators.ids_between", "operators.earlier_of", "operators.conflicts"),
    *("operators.list_", "operators.unfinished_of_key", "operators.show_outbox", "operators.highest_ids"),
)
"""Statements that only read the tables."""
NEEDS = {
    "producer": ("producer.", "handled."),
    "relay": (
        *("outbox.", "inbox.", "backlog.", "checks."),
        *("operators.outbox_depth_capped", "operators.overview", "operators.dead_events"),
        *("partitions.exist", "partitions.make", "sessions."),
    ),
    "operator": (
        *LOOKS,
        *("operators.audit", "operators.choose", "operators.begin", "operators.load_replay"),
        *("operators.put_back", "operators.not_taken", "operators.finish", "operators.redriven"),
        *("operators.make_due", "operators.claim_as_operator", "operators.mark_dead"),
        *("operators.close", "operators.record_purge"),
        *("pipeline_replay.", "inbox.", "sessions.owner", "partitions.record"),
    ),
    "janitor": (
        *("operators.begin_action", "operators.finish_action", "operators.discard", "operators.prune_"),
        *("operators.count_", "partitions.leaves", "partitions.references", "partitions.drop_leaf"),
        *("pipeline_archive.", "pipeline_erase.", "sessions.owner"),
    ),
    "reader": (
        *LOOKS,
        *("depth.", "testing.", "doctor.", "pipeline_reconcile.", "backlog.counts", "partitions.leaves"),
        *("sessions.owner", "partitions.list", "checks.acknowledged", "pipeline_report."),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_role_may_run_the_statements_that_it_is_for(kind: str, roles: Roles) -> None:
    """PostgreSQL checks rights before it explains; no row has to be there for it."""
    wanted = [name for name in STATEMENTS if name.startswith(NEEDS[kind])]
    denied = {}
    async with roles.session(kind) as login:
        for name in wanted:
            parameters = (await login.prepare(STATEMENTS[name])).get_parameters()
            given = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
            try:
                await login.execute(f"PREPARE one AS {STATEMENTS[name]}; EXPLAIN EXECUTE one{given}")
            except asyncpg.InsufficientPrivilegeError as error:
                denied[name] = error.args[0]
            await login.execute("DEALLOCATE one")
    assert denied == {}
    assert {name.partition(".")[0] for name in wanted} >= {prefix.partition(".")[0] for prefix in NEEDS[kind]}


GRANTED = """
SELECT c.oid::int, a.privilege_type, 0 FROM pg_class c, aclexplode(c.relacl) a
 WHERE a.grantee IN ($1::text::regrole, 0) AND c.relkind = 'r' AND a.privilege_type <> 'SELECT'
 UNION ALL
SELECT c.attrelid::int, a.privilege_type, c.attnum::int FROM pg_attribute c, aclexplode(c.attacl) a
 WHERE a.grantee = $1::text::regrole
"""
"""What a role or everybody may do with a table, and a role with a column; it may read whole tables."""
PERMISSIONS = re.compile(
    r":relid (\d+)(?:(?!:relid ).)*? :requiredPerms (\d+) :checkAsUser \d+"
    r" :selectedCols \(b([ \d]*)\) :insertedCols \(b([ \d]*)\) :updatedCols \(b([ \d]*)\)"
)
NAMED = """
SELECT $1::int::oid::regclass
       || coalesce('.' || (SELECT attname FROM pg_attribute WHERE attrelid::int = $1 AND attnum = $2), '')
"""
SDS047 = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "published_at", "publish_attempts", "publish_error"),
)
NEEDED_BY_OTHERS = {
    "janitor": {"DELETE handled_messages", "SELECT handled_messages.message_id"},  # a trigger
    "producer": {f"SELECT outbox_events.{column}" for column in SDS047}
    | {f"INSERT outbox_events.{column}" for column in SDS047[-3:]},  # models of the service
}
DELETE, ATTRIBUTES_BEGIN = 8, 7
"""In a parse tree: the bit of the privilege, and what is added to the numbers of columns."""


def needed(tree: str) -> Iterator[tuple[int, str, int]]:
    """Yield relation, privilege and column, 0 for any, of what PostgreSQL checks for a statement."""
    for relation, bits, *columns in PERMISSIONS.findall(tree):
        if int(bits) & DELETE:
            yield int(relation), "DELETE", 0
        for privilege, numbers in zip(("SELECT", "INSERT", "UPDATE"), columns, strict=True):
            for number in numbers.split():
                yield int(relation), privilege, 0
                yield int(relation), privilege, int(number) - ATTRIBUTES_BEGIN


@pytest.mark.fault("S05")
async def test_a_role_has_no_right_to_write_that_none_of_its_statements_needs(
    roles: Roles, owner: asyncpg.Connection
) -> None:
    trees = await parse_trees(owner)
    unneeded = {}
    for kind in KINDS:
        own = [tree for name, tree in trees.items() if name.startswith(NEEDS[kind])]
        wanted = {right for tree in own for right in needed(tree)}
        granted = {tuple(row) for row in await owner.fetch(GRANTED, f"{roles.prefix}_{kind}")}
        unneeded[kind] = {
            f"{privilege} {await owner.fetchval(NAMED, relation, column)}"
            for relation, privilege, column in granted - wanted
        }
        assert granted & wanted or kind == "reader"
    assert unneeded == {kind: NEEDED_BY_OTHERS.get(kind, set()) for kind in KINDS}


@pytest.mark.fault("S05")
async def test_rights_of_an_earlier_version_of_the_file_are_revoked_on_the_workers_tables_alone(
    roles: Roles, owner: asyncpg.Connection
) -> None:
    relay, reader = f"{roles.prefix}_relay", f"{roles.prefix}_reader"
    await owner.execute(
        "CREATE TABLE currencies (); GRANT SELECT ON currencies TO PUBLIC;"
        f"GRANT TRUNCATE ON outbox_events TO {relay}, PUBLIC;"
        f"GRANT EXECUTE ON FUNCTION outbox_drop_partition TO {reader}"
    )
    await roles.apply()
    drop = "'outbox_drop_partition(text, timestamptz)', 'EXECUTE'"
    kept = await owner.fetchrow(
        "SELECT has_table_privilege($1, 'outbox_events', 'TRUNCATE'),"
        f" has_table_privilege($2, 'outbox_events', 'TRUNCATE'), has_function_privilege($2, {drop}),"
        " has_table_privilege($2, 'currencies', 'SELECT')",
        relay,
        reader,
    )
    assert tuple(kept) == (False, False, False, True)


def test_every_statement_is_for_a_role() -> None:
    """Those of modules ask about the session or the catalogue, or are the owner's."""
    prefixes = tuple(prefix for needs in NEEDS.values() for prefix in needs)
    assert [name for name in STATEMENTS if ".py:" not in name and not name.startswith(prefixes)] == []


DENIED_TO_ALL = (
    "CREATE TABLE other ()",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SELECT outbox_add_partition('p', 'DEFAULT', 'outbox_events')",
    "SELECT outbox_copy_rights('outbox_events', 'inbox_messages')",
)
MAKE_PARTITIONS = "SELECT outbox_make_partitions(1)"
DROP_PARTITION = "SELECT outbox_drop_partition('outbox_events_default', now())"
DENIED = {
    "producer": (
        "SELECT headers FROM outbox_events",
        "SELECT claimed_by FROM outbox_events",
        "UPDATE outbox_events SET published_at = now()",
        "DELETE FROM outbox_events",
        "SELECT FROM inbox_messages",
        "SELECT FROM handled_messages",
        "SELECT FROM sea_mq_migrations",
        f"INSERT INTO outbox_events {EVENT} RETURNING state",
        MAKE_PARTITIONS,
        DROP_PARTITION,
    ),
    "relay": ("SELECT actor FROM operator_actions", DROP_PARTITION),
    "operator": ("UPDATE operator_actions SET actor = 'somebody else'", DROP_PARTITION),
    "janitor": (f"INSERT INTO outbox_events {EVENT}", MAKE_PARTITIONS),
    "reader": ("SELECT FROM outbox_events FOR UPDATE", MAKE_PARTITIONS, DROP_PARTITION),
}
"""What is denied besides the rights to write that `GRANTED` lists."""


@pytest.mark.fault("S05")
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_role_does_not_need_is_denied(kind: str, roles: Roles) -> None:
    async with roles.session(kind) as login:
        for statement in (*DENIED_TO_ALL, *DENIED[kind]):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await login.execute(statement)

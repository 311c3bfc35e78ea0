"""The outbox in daily partitions: the change to them, what one is, how days come and go, and workers beside.

Partitions are pruned whole where all of their events may go, and row by row elsewhere.
"""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.changes import enable_partitions
from sea_mq_worker.operators.prune import PruneResult, count_prunable, prune
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import audit
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.partitions import DroppedPartition, KeptPartition
from sea_mq_worker.postgres.pool import OPERATOR_HINTS, WORKER_HINTS
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.settings import Settings
from tests.integration.test_migrations import run_psql
from tests.security.test_sql import STATEMENTS
from tests.support.documents import commands
from tests.support.operators import WHY, world_of
from tests.support.partitions import (
    DAY,
    SCRIPT,
    VERSION_MIN,
    id_at,
    id_of_day,
    ids_of_all_partitions,
    midnight,
    partition_outbox,
    past_partition,
    skip_without_partitions,
)
from tests.support.rows import add_event, opened
from tests.support.servers import Database, database_connection
from tests.support.site import Site
from tests.support.waiting import eventually

INSERT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES ($1, 'order', 'o-1', 'order.created', '{}')"
)
PUBLISH = """
UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = 1
 WHERE state = 'PENDING';
UPDATE outbox_events SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = now()
 WHERE state = 'CLAIMED';
"""
SHAPE = """
SELECT 'column ' || attnum || attname || format_type(atttypid, atttypmod) || attnotnull
       || attidentity::text || attgenerated::text || coalesce(pg_get_expr(adbin, adrelid), '')
  FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
 WHERE attrelid = $1::regclass AND attnum > 0
UNION ALL SELECT 'index ' || replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') FROM pg_index
 WHERE indrelid = $1::regclass
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger
 WHERE tgrelid = $1::regclass AND NOT tgisinternal
UNION ALL SELECT 'constraint ' || conname || pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conrelid = $1::regclass
UNION ALL SELECT 'comment ' || objsubid || description FROM pg_description
 WHERE classoid = 'pg_class'::regclass AND objoid = $1::regclass
UNION ALL SELECT 'comment ' || tgname || obj_description(oid, 'pg_trigger') FROM pg_trigger
 WHERE tgrelid = $1::regclass AND NOT tgisinternal AND obj_description(oid, 'pg_trigger') IS NOT NULL
UNION ALL SELECT 'comment ' || indexrelid::regclass || obj_description(indexrelid, 'pg_class') FROM pg_index
 WHERE indrelid = $1::regclass AND obj_description(indexrelid, 'pg_class') IS NOT NULL
UNION ALL SELECT 'right ' || x::text FROM pg_class, aclexplode(relacl) x WHERE oid = $1::regclass
UNION ALL SELECT 'right ' || attname || x::text FROM pg_attribute, aclexplode(attacl) x
 WHERE attrelid = $1::regclass
 ORDER BY 1"""
WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted)"
WHO: dict[str, Any] = {"actor": "ann", "reason": "monthly"}
NO_RANGE = (False, "it is no partition of a range of ids")


async def add(connection: asyncpg.Connection, at: datetime) -> str:
    """Add an event with an id of that time; return the table that holds it."""
    await connection.execute(INSERT, id_at(at))
    held = "SELECT tableoid::regclass FROM outbox_events WHERE id = $1"
    return str(await connection.fetchval(held, id_at(at)))


async def partitions(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("SELECT partition FROM outbox_partitions()")]


async def shape(connection: asyncpg.Connection, table: str) -> list[str]:
    """Describe a table without parentheses, which the server sets in its own way."""
    rows = await connection.fetch(SHAPE, table)
    return sorted(row[0].replace(table, "").replace("(", "").replace(")", "") for row in rows)


async def drop(connection: asyncpg.Connection, partition: str, before: datetime) -> tuple[bool, str | None]:
    row = await connection.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", partition, before)
    return row["dropped"], row["reason"]


async def make(connection: asyncpg.Connection, *given: int) -> list[str]:
    """Make partitions of so many days ahead, unless the default one has more bytes than given."""
    places = ", ".join(f"${n}" for n in range(1, len(given) + 1))
    return [row[0] for row in await connection.fetch(f"SELECT outbox_make_partitions({places})", *given)]


# --- how the outbox comes to partitions


async def test_a_plain_table_is_all_there_is_and_stays_as_it_is(plain: asyncpg.Connection) -> None:
    listed = [tuple(row) for row in await plain.fetch("SELECT * FROM outbox_partitions()")]
    assert listed == [("outbox_events", None, None, True)]
    assert await make(plain, 7) == []
    assert await drop(plain, "outbox_events", midnight() + 9 * DAY) == NO_RANGE


async def test_the_new_table_has_all_that_the_old_one_had(
    plain: asyncpg.Connection, database: Database
) -> None:
    await plain.execute("GRANT SELECT, UPDATE (state) ON outbox_events TO pg_monitor")
    await plain.execute("CREATE INDEX own ON outbox_events (event_type)")
    before = await shape(plain, "outbox_events")
    await partition_outbox(database.dsn)
    assert await shape(plain, "outbox_events") == before


async def test_events_keep_their_place_and_numbering_continues(
    plain: asyncpg.Connection, database: Database
) -> None:
    await add(plain, midnight())
    await partition_outbox(database.dsn)
    assert await add(plain, midnight() + timedelta(seconds=1)) == "outbox_events_before"
    assert [row[0] for row in await plain.fetch("SELECT seq FROM outbox_events ORDER BY id")] == [1, 2]


async def test_of_several_at_once_one_divides_the_outbox(
    plain: asyncpg.Connection, database: Database
) -> None:
    await asyncio.gather(*(partition_outbox(database.dsn) for _ in range(3)))
    leaves = await plain.fetch("SELECT relid::text FROM pg_partition_tree('outbox_events') WHERE isleaf")
    assert sorted(row["relid"] for row in leaves) == sorted(await partitions(plain))


async def test_an_event_whose_id_has_no_day_is_in_the_way(
    plain: asyncpg.Connection, database: Database
) -> None:
    skip_without_partitions(plain)
    stranger = UUID("f0000000-0000-4000-8000-000000000000")
    await plain.execute(INSERT, stranger)
    obstacle = f"^the outbox cannot be divided: event {stranger} has an id of a time to come, or no UUIDv7"
    with pytest.raises(ContractError, match=obstacle):
        await enable_partitions(Settings(database_url=database.dsn), actor="ada", reason="days")
    assert await partitions(plain) == ["outbox_events"]


@pytest.mark.parametrize(
    "bound",
    [
        "CREATE VIEW theirs AS SELECT id FROM outbox_events",
        "CREATE TABLE theirs (id UUID REFERENCES outbox_events)",
        "CREATE PUBLICATION theirs FOR TABLE outbox_events",
        "CREATE POLICY theirs ON outbox_events",
        "ALTER TABLE outbox_events ADD previous UUID CONSTRAINT theirs REFERENCES handled_messages",
    ],
)
async def test_what_would_stay_with_the_old_table_is_named(
    bound: str, plain: asyncpg.Connection, database: Database
) -> None:
    await plain.execute(bound)
    with pytest.raises(asyncpg.RaiseError, match=r"bound to the table.*theirs"):
        await partition_outbox(database.dsn)


async def test_a_publication_of_all_tables_must_publish_partitions_as_the_table(
    plain: asyncpg.Connection, database: Database
) -> None:
    await plain.execute("CREATE PUBLICATION theirs FOR ALL TABLES")
    with pytest.raises(asyncpg.RaiseError, match="theirs; set publish_via_partition_root"):
        await partition_outbox(database.dsn)
    await plain.execute("ALTER PUBLICATION theirs SET (publish_via_partition_root = true)")
    await partition_outbox(database.dsn)


async def test_psql_runs_the_script_as_it_is_and_in_any_schema(database: Database) -> None:
    await migrate(database.dsn, schema="Orders")
    await partition_outbox(database.dsn)
    await run_psql(database.dsn, "-1", "-f", str(SCRIPT), schema='"Orders"')
    listed = "SELECT count(*) FROM \"Orders\".outbox_partitions() WHERE partition LIKE 'outbox_events_2%'"
    assert (await run_psql(database.dsn, "-At", "-c", listed)).strip() in {"6", "7"}


async def test_the_commands_of_the_document_divide_the_outbox_once_and_leave_a_record(
    plain: asyncpg.Connection, database: Database, nats_url: str, names: str
) -> None:
    async with world_of(database, nats_url, names) as world:
        prune_, dry_run, enable, list_ = (
            shlex.split(command.text)[3:] for command in commands("docs/how-to/partitions.md")
        )
        assert (await world.run(*prune_)).code == 0
        assert (await world.run(*dry_run)).out == f"{SCRIPT.read_text()}\n"
        [table] = (await world.run(*list_, "--json")).json
        assert (table["partition"], table["is_default"]) == ("outbox_events", True)
        if plain.get_server_version().major < VERSION_MIN:
            refused = await world.run(*enable)
            assert (refused.code, "needs PostgreSQL 17" in refused.err) == (ExitCode.CONTRACT, True)
            return
        async with plain.transaction():
            await add(plain, midnight())
            answer = await world.run("partitions", "enable", *WHY)
        assert (answer.code, "lock timeout" in answer.err) == (ExitCode.FAILED, True)
        assert await partitions(plain) == ["outbox_events"], "nothing changes while the table is busy"
        assert "in partitions now" in (await world.run(*enable, "--actor", "ann")).out
        assert "in partitions already" in (await world.run(*enable)).out
        listed = (await world.run(*list_, "--json")).json
        assert [one["partition"] for one in listed] == await partitions(plain)
        assert listed[0]["from_at"] is None
        assert listed[0]["until_at"] == listed[1]["from_at"]
        done = (await world.run("audit", "--action", "partition_outbox", "--json")).json
        assert [(one["actor"], one["reason"]) for one in done] == [("ann", "days are dropped")]


# --- what a partition is


async def test_an_event_is_in_the_partition_of_its_day_and_any_other_in_the_default_one(
    owner: asyncpg.Connection,
) -> None:
    day = midnight() + 3 * DAY
    name = f"outbox_events_{day:%Y%m%d}"
    assert [await add(owner, at) for at in (day, day + DAY - timedelta(milliseconds=1))] == [name, name]
    assert await add(owner, day + 99 * DAY) == "outbox_events_default"
    with pytest.raises(asyncpg.UniqueViolationError):
        await add(owner, day)


async def test_every_partition_is_like_every_other_and_gets_what_is_done_to_the_table(
    owner: asyncpg.Connection,
) -> None:
    await make(owner, 8)
    names = await partitions(owner)
    options = "SELECT DISTINCT reloptions::text FROM pg_class WHERE relname = ANY ($1)"
    assert len(await owner.fetch(options, names)) == 1
    assert await shape(owner, names[1]) == await shape(owner, "outbox_events_default")
    await owner.execute("""
        ALTER TABLE outbox_events ADD COLUMN later INT DEFAULT 7, ADD CONSTRAINT chk_later CHECK (later > 0);
        CREATE INDEX idx_later ON outbox_events (later) WHERE is_open;
        CREATE TRIGGER later AFTER DELETE ON outbox_events FOR EACH ROW
            WHEN (OLD.later = 8) EXECUTE FUNCTION outbox_reject('later');
        DROP INDEX idx_outbox_correlation;
    """)
    [made] = await make(owner, 9)
    described = await shape(owner, made)
    assert described == await shape(owner, "outbox_events_default")
    reported = "\n".join(described)
    assert [part for part in ("chk_later", "btree later", "TRIGGER later") if part not in reported] == []
    assert "btree correlation_id" not in reported
    await owner.execute("GRANT SELECT, UPDATE (state) ON outbox_events TO pg_monitor")
    [made] = await make(owner, 10)
    rights = "SELECT has_column_privilege('pg_monitor', $1::text, 'state', 'UPDATE')"
    assert await owner.fetchval(rights, made)


async def test_a_partition_guards_its_events_by_itself(owner: asyncpg.Connection) -> None:
    name = await add(owner, midnight() + 3 * DAY)
    for statement in (
        f"TRUNCATE {name}",
        f"DELETE FROM {name}",
        f"UPDATE {name} SET event_type = 'x'",
        f"UPDATE {name} SET state = 'DEAD'",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(statement)


async def test_no_update_moves_an_event_to_another_day_and_changes_it_on_the_way(
    owner: asyncpg.Connection,
) -> None:
    await add(owner, midnight() + 3 * DAY)
    await owner.execute(PUBLISH)
    before = await owner.fetchrow("SELECT * FROM outbox_events")
    for replayed in ("", ", state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0"):
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(
                f"UPDATE outbox_events SET payload = '[1]', id = $1{replayed}", id_at(midnight() + 5 * DAY)
            )
    assert await owner.fetchrow("SELECT * FROM outbox_events") == before


# --- days ahead


async def test_a_day_that_the_default_partition_has_events_of_stays_there(owner: asyncpg.Connection) -> None:
    await add(owner, midnight() + 8 * DAY)
    assert await make(owner, 9) == [f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}"]


async def test_a_day_waits_for_no_producer_and_is_put_off_while_the_default_partition_is_busy(
    owner: asyncpg.Connection, database: Database
) -> None:
    async with database_connection(database.dsn) as producer:
        async with producer.transaction():
            await add(producer, midnight() + 3 * DAY)
            assert len(await make(owner, 8)) == 1
        async with producer.transaction():
            await producer.execute("DELETE FROM outbox_events_default")
            assert await make(owner, 9) == []
    assert len(await make(owner, 9)) == 1


async def test_none_is_made_for_which_too_large_a_default_partition_would_be_read(
    owner: asyncpg.Connection,
) -> None:
    await add(owner, midnight() + 99 * DAY)
    assert await make(owner, 9, 8000) == []
    assert len(await make(owner, 9, 9000)) == 2


# --- when a partition goes


async def test_a_partition_whose_events_are_published_and_old_is_dropped_and_no_other(
    owner: asyncpg.Connection, database: Database
) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    assert await drop(owner, name, day + DAY) == (False, "1 of its events are not published")
    await owner.execute(PUBLISH)
    assert await drop(owner, name, day + DAY / 2) == (False, "its range of ids is not over by then")
    assert await drop(owner, "outbox_events_default", day + DAY) == NO_RANGE
    assert await drop(owner, "operator_actions", day + DAY) == NO_RANGE
    assert await owner.fetchval("SELECT outbox_drop_partition($1, NULL)", name) is None
    async with database_connection(database.dsn) as other, other.transaction():
        await other.fetch("SELECT id FROM outbox_events FOR UPDATE")
        busy = (False, "other sessions are at work on the outbox; try again")
        assert await drop(owner, name, day + DAY) == busy
    await owner.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await owner.execute("UPDATE outbox_events SET published_at = $1", day + DAY)
    assert await drop(owner, name, day + DAY) == (False, "some of its events were published since")
    assert name in await partitions(owner)
    await owner.execute("UPDATE outbox_events SET published_at = now()")
    row = await owner.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", name, day + DAY)
    assert (row["dropped"], row["reason"], row["events"], row["bytes"] > 0) == (True, None, 1, True)
    assert name not in await partitions(owner)
    assert await owner.fetchval("SELECT count(*) FROM outbox_events") == 0


async def test_a_partition_stays_where_an_event_is_published_again_between_the_look_at_it_and_its_lock(
    owner: asyncpg.Connection, database: Database
) -> None:
    name = await past_partition(owner, days_ago=2)
    await owner.execute(INSERT, id_of_day(2))
    await owner.execute(PUBLISH)
    await owner.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await owner.execute("UPDATE outbox_events SET published_at = $1", midnight() - 1.5 * DAY)
    async with (
        database_connection(database.dsn) as other,
        asyncpg.create_pool(database.dsn, min_size=1) as pool,
        other.transaction(),
    ):
        await other.execute(f"LOCK TABLE {name} IN SHARE UPDATE EXCLUSIVE MODE")
        dropping = asyncio.create_task(drop(owner, name, midnight() - DAY))
        await eventually(lambda: other.fetchval(WAITING, name))
        await replay_matching(pool, OutboxFilter(), actor="ada", reason="again", cap=1)
        await other.execute(PUBLISH)
    assert await dropping == (False, "events have been put back meanwhile")
    assert await owner.fetchval("SELECT count(*) FROM outbox_events") == 1


# --- pruning


@pytest.fixture
async def divided(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """An operator's pool to an outbox in partitions, whose rows may have a past."""
    await partition_outbox(database.dsn)
    async with opened(database, hints=OPERATOR_HINTS) as made:
        yield made


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


async def published(pool: asyncpg.Pool, *, days_ago: int, of_day: int | None = None) -> UUID:
    """Add an event published some days ago, with an id of that day unless another is given."""
    event = id_of_day(days_ago if of_day is None else of_day)
    await add_event(pool, "PUBLISHED", id=event)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "UPDATE outbox_events SET published_at = $2 WHERE id = $1", event, ago(days_ago)
        )
    return event


async def held(pool: asyncpg.Pool) -> set[UUID]:
    return {row["id"] for row in await pool.fetch("SELECT id FROM outbox_events")}


@pytest.mark.clause("lifecycle-29")
async def test_a_partition_all_of_whose_events_may_go_is_dropped_and_the_others_lose_theirs(
    divided: asyncpg.Pool,
) -> None:
    whole, part, empty = [await past_partition(divided, days_ago=days) for days in (40, 39, 38)]
    for _ in range(3):
        await published(divided, days_ago=40)
    await published(divided, days_ago=39)
    published_late = await published(divided, days_ago=2, of_day=39)
    dead, elsewhere = id_of_day(39), UUID("ffffffff-0000-4000-8000-000000000000")
    await add_event(divided, "DEAD", id=dead)
    await add_event(divided, "PUBLISHED", id=elsewhere)
    kept = {published_late, dead, await add_event(divided, "PENDING")}
    reported: list[Any] = []
    steps: list[tuple[int, int, int]] = []

    counted = await count_prunable(divided, "outbox", ago(30), should_continue=lambda: True)
    pruned = await prune(
        divided, "outbox", ago(30), **WHO,
        on_progress=lambda *step: steps.append(step), on_partition=reported.append,
    )  # fmt: skip

    assert (counted.count, counted.partitions) == (4, [whole, empty])
    dropped = [DroppedPartition(name=whole, events=3), DroppedPartition(name=empty, events=0)]
    assert pruned == PruneResult(deleted=4, dropped=dropped)
    stays = KeptPartition(name=part, reason="1 of its events are not published")
    assert reported == [dropped[0], stays, dropped[1]]
    assert steps[-1] == (counted.pages_of, counted.pages_of, 4)
    assert await held(divided) == kept | {elsewhere}
    [action] = await audit(divided, limit=9)
    assert action.affected == 4
    assert json.loads(action.selection)["dropped"] == [whole, empty]
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert (await prune(divided, "outbox", soon, **WHO)).deleted == 2
    assert await held(divided) == kept - {published_late}


async def test_a_cap_drops_no_partition_that_holds_more(divided: asyncpg.Pool) -> None:
    small, large = [await past_partition(divided, days_ago=days) for days in (40, 39)]
    for days in (40, 39, 39, 39):
        await published(divided, days_ago=days)

    pruned = await prune(divided, "outbox", ago(30), **WHO, cap=3)

    assert pruned.dropped == [DroppedPartition(name=small, events=1)]
    assert pruned.deleted == 4, "a range of pages is deleted whole"
    assert await divided.fetchval(f"SELECT count(*) FROM {large}") == 0


async def test_what_another_session_drops_meanwhile_is_passed_over(
    divided: asyncpg.Pool, database: Database
) -> None:
    for days in (40, 39):
        other = await past_partition(divided, days_ago=days)
        await published(divided, days_ago=days)

    async def drop_other() -> None:
        async with database_connection(database.dsn) as connection:
            await connection.execute(f"DROP TABLE IF EXISTS {other}")

    def on_partition(_told: object) -> None:
        with ThreadPoolExecutor() as elsewhere:
            elsewhere.submit(asyncio.run, drop_other()).result()

    pruned = await prune(divided, "outbox", ago(30), **WHO, on_partition=on_partition)

    assert pruned.deleted == 1


async def test_a_partition_goes_only_where_its_lock_shows_what_changed_before(
    divided: asyncpg.Pool, database: Database
) -> None:
    part = await past_partition(divided, days_ago=40)
    await published(divided, days_ago=40)
    await divided.execute(
        f"ALTER DATABASE {database.name} SET default_transaction_isolation = 'repeatable read'"
    )
    async with divided.acquire() as connection, connection.transaction(isolation="repeatable_read"):
        dropped, reason = await drop(connection, part, ago(30))
        assert (dropped, "must be read committed" in (reason or "")) == (False, True)
    await divided.expire_connections()

    pruned = await prune(divided, "outbox", ago(30), **WHO)

    assert pruned.dropped == [DroppedPartition(name=part, events=1)]


# --- workers


async def generic_plan(database: Database, name: str) -> list[str]:
    """Return the lines of the plan that a worker's connection makes once for all arguments."""
    statement = STATEMENTS[name]
    async with opened(database, hints=WORKER_HINTS) as pool, pool.acquire() as connection:
        parameters = (await connection.prepare(statement)).get_parameters()
        await connection.execute(f"PREPARE p AS {statement}")
        arguments = ", ".join(["NULL"] * len(parameters))
        return [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE p({arguments})")]


async def test_a_worker_continues_when_the_outbox_is_divided(database: Database, place: Site) -> None:
    """What it has in hand it settles; by its old claims it would lease events that it has not looked at.

    The later events stand in several partitions, each at the places of the other ones.
    """
    async with place.worker() as worker:
        await place.commit(1)
        await place.published()
        await place.commit(500)
        await partition_outbox(database.dsn)
        new_id = ids_of_all_partitions()
        for n in range(60):
            await place.commit(id=new_id(), ordering_key=None if n % 2 else f"k{n % 5}")
        await place.quiet()
        assert "loop_died" not in worker.written
    claimed = await place.database.fetch("SELECT DISTINCT tableoid FROM outbox_events")
    assert len(claimed) == 3
    await place.audit()


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize(
    "name", ["claim", "claim_ordered", "mark_published", "settle", "reap", "reap_ordered"]
)
async def test_no_table_is_read_whole_even_by_a_plan_from_when_it_was_empty(
    name: str, is_divided: bool, plain: asyncpg.Connection, database: Database
) -> None:
    """A vacuumed table is known to be empty: reading all of it seems to cost nothing."""
    if is_divided:
        await partition_outbox(database.dsn)
    await plain.execute("VACUUM")
    lines = await generic_plan(database, f"outbox.{name}")
    joins = [n for n, line in enumerate(lines) if "_pkey" in line or "Tid Scan" in line]
    assert len(joins) >= len(await partitions(plain))
    looked_up = ("Index Cond: (id = ANY", "TID Cond:")
    assert [lines[n] for n in joins if not lines[n + 1].lstrip().startswith(looked_up)] == []
    assert [line for line in lines if "Seq Scan on outbox" in line or "Bitmap" in line] == []

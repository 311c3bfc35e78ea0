"""The outbox in partitions of a day each: how it comes to them, what a partition is, and when one goes."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS, connect_pool
from sea_mq_worker.adapters.postgres.cursor import START
from sea_mq_worker.adapters.postgres.migrations import migrate
from sea_mq_worker.adapters.postgres.queries import joined_by_id
from sea_mq_worker.application.supervisor import ExitCode
from tests.integration.test_migrations import run_psql
from tests.security.test_sql import STATEMENTS
from tests.support.operators import WHY, world_of
from tests.support.outboxes import PostgresWorld
from tests.support.partitions import SCRIPT, VERSION_MIN, ids_of_all_partitions, partition_outbox
from tests.support.servers import Database
from tests.support.site import site
from tests.support.waiting import eventually

DAY = timedelta(days=1)
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
UNION ALL SELECT 'right ' || x::text FROM pg_class, aclexplode(relacl) x WHERE oid = $1::regclass
UNION ALL SELECT 'right ' || attname || x::text FROM pg_attribute, aclexplode(attacl) x
 WHERE attrelid = $1::regclass
 ORDER BY 1"""
OF_PARTITIONS_ONLY = "outbox_claimed_by_place"


@pytest.fixture
async def plain(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """The owner's session, and the outbox as `migrate` makes it."""
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def owner(database: Database, plain: asyncpg.Connection) -> asyncpg.Connection:
    """The owner's session, and the outbox in partitions."""
    await partition_outbox(database.dsn)
    return plain


def midnight() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


async def id_at(connection: asyncpg.Connection, at: datetime) -> uuid.UUID:
    found: uuid.UUID = await connection.fetchval("SELECT outbox_id_from($1)", at)
    return found


async def add(connection: asyncpg.Connection, at: datetime) -> str:
    """Add an event with an id of that time; return the table that holds it."""
    event_id = await id_at(connection, at)
    await connection.execute(INSERT, event_id)
    return str(
        await connection.fetchval("SELECT tableoid::regclass FROM outbox_events WHERE id = $1", event_id)
    )


async def publish(connection: asyncpg.Connection) -> None:
    await connection.execute(PUBLISH)


async def partitions(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("SELECT partition FROM outbox_partitions()")]


async def shape(connection: asyncpg.Connection, table: str) -> list[str]:
    """Tell what a table is; the server sets parentheses in its own way when it repeats a condition."""
    rows = await connection.fetch(SHAPE, table)
    return sorted(row[0].replace(table, "").replace("(", "").replace(")", "") for row in rows)


async def drop(connection: asyncpg.Connection, partition: str, before: datetime) -> tuple[bool, str | None]:
    row = await connection.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", partition, before)
    return row["dropped"], row["reason"]


# --- how the outbox comes to partitions


async def test_a_plain_table_is_all_there_is_and_stays_as_it_is(plain: asyncpg.Connection) -> None:
    assert [tuple(row) for row in await plain.fetch("SELECT * FROM outbox_partitions()")] == [
        ("outbox_events", None, None, True)
    ]
    assert await plain.fetch("SELECT outbox_make_partitions(7)") == []
    dropped, reason = await drop(plain, "outbox_events", midnight() + 9 * DAY)
    assert (dropped, reason) == (False, "it is no partition of a range of ids")


async def test_the_new_table_has_all_that_the_old_one_had(
    plain: asyncpg.Connection, database: Database
) -> None:
    await plain.execute("GRANT SELECT, UPDATE (state) ON outbox_events TO pg_monitor")
    await plain.execute("CREATE INDEX own ON outbox_events (event_type)")
    before = await shape(plain, "outbox_events")
    await partition_outbox(database.dsn)
    after = await shape(plain, "outbox_events")
    assert [line for line in after if OF_PARTITIONS_ONLY not in line] == before


async def test_events_keep_their_place_and_numbers_go_on(
    plain: asyncpg.Connection, database: Database
) -> None:
    await add(plain, midnight())
    await partition_outbox(database.dsn)
    assert await add(plain, midnight() + timedelta(seconds=1)) == "outbox_events_before"
    assert [row[0] for row in await plain.fetch("SELECT seq FROM outbox_events ORDER BY id")] == [1, 2]


async def test_done_again_it_changes_nothing(owner: asyncpg.Connection, database: Database) -> None:
    made = await partitions(owner)
    await partition_outbox(database.dsn)
    assert await partitions(owner) == made


async def test_an_event_whose_id_has_no_day_is_in_the_way(
    plain: asyncpg.Connection, database: Database
) -> None:
    stranger = uuid.UUID("f0000000-0000-4000-8000-000000000000")
    await plain.execute(INSERT, stranger)
    with pytest.raises(asyncpg.RaiseError, match=f"{stranger} has an id of a time to come, or no UUIDv7"):
        await partition_outbox(database.dsn)
    assert await partitions(plain) == ["outbox_events"]


@pytest.mark.parametrize(
    "bound",
    [
        "CREATE VIEW theirs AS SELECT id FROM outbox_events",
        "CREATE TABLE theirs (id UUID REFERENCES outbox_events)",
        "CREATE PUBLICATION theirs FOR TABLE outbox_events",
    ],
)
async def test_what_would_stay_with_the_old_table_is_named(
    bound: str, plain: asyncpg.Connection, database: Database
) -> None:
    await plain.execute(bound)
    with pytest.raises(asyncpg.RaiseError, match=r"bound to the table.*theirs"):
        await partition_outbox(database.dsn)


async def test_an_older_server_is_refused(plain: asyncpg.Connection) -> None:
    if plain.get_server_version().major >= VERSION_MIN:
        pytest.skip("this server has what it needs")
    with pytest.raises(asyncpg.RaiseError, match="needs PostgreSQL 17"):
        async with plain.transaction():
            await plain.execute(SCRIPT.read_text())


async def test_psql_runs_the_script_as_it_is_and_in_any_schema(database: Database) -> None:
    await migrate(database.dsn, schema="Orders")
    await partition_outbox(database.dsn)
    await run_psql(database.dsn, "-1", "-f", str(SCRIPT), schema='"Orders"')
    listed = "SELECT count(*) FROM \"Orders\".outbox_partitions() WHERE partition LIKE 'outbox_events_2%'"
    assert (await run_psql(database.dsn, "-At", "-c", listed)).strip() in {"6", "7"}


async def test_the_command_divides_the_outbox_once_and_leaves_a_record(
    plain: asyncpg.Connection, database: Database, nats_url: str, names: str
) -> None:
    async with world_of(database, nats_url, names) as world:
        assert (await world.run("partitions", "enable", *WHY, "--dry-run")).out == f"{SCRIPT.read_text()}\n"
        [table] = (await world.run("partitions", "list", "--json")).json
        assert (table["partition"], table["is_default"]) == ("outbox_events", True)
        if plain.get_server_version().major < VERSION_MIN:
            assert (await world.run("partitions", "enable", *WHY)).code == ExitCode.CONTRACT
            return
        assert "in partitions now" in (await world.run("partitions", "enable", *WHY)).out
        assert "in partitions already" in (await world.run("partitions", "enable", *WHY)).out
        listed = (await world.run("partitions", "list", "--json")).json
        assert [one["partition"] for one in listed] == await partitions(plain)
        assert listed[0]["from_at"] is None
        assert listed[0]["until_at"] == listed[1]["from_at"]
        done = (await world.run("audit", "--json")).json
        assert [(one["actor"], one["action"]) for one in done] == [("ann", "partition_outbox")]


async def test_the_command_changes_nothing_while_the_table_is_busy(
    plain: asyncpg.Connection, database: Database, nats_url: str, names: str
) -> None:
    async with world_of(database, nats_url, names) as world, plain.transaction():
        await add(plain, midnight())
        answer = await world.run("partitions", "enable", *WHY)
        assert (answer.code, "lock timeout" in answer.err) == (ExitCode.FAILED, True)
    assert await partitions(plain) == ["outbox_events"]


# --- what a partition is


async def test_an_event_is_in_the_partition_of_its_day_and_any_other_in_the_default_one(
    owner: asyncpg.Connection,
) -> None:
    day = midnight() + 3 * DAY
    name = f"outbox_events_{day:%Y%m%d}"
    assert [await add(owner, at) for at in (day, day + DAY - timedelta(milliseconds=1))] == [name, name]
    assert await add(owner, day + 99 * DAY) == "outbox_events_default"
    for _ in range(2):
        with pytest.raises(asyncpg.UniqueViolationError):
            await add(owner, day)


async def test_every_partition_is_like_every_other(owner: asyncpg.Connection) -> None:
    await owner.execute("GRANT SELECT, UPDATE (state) ON outbox_events TO pg_monitor")
    await owner.execute("SELECT outbox_make_partitions(9)")
    names = await partitions(owner)
    options = {
        row[0]
        for row in await owner.fetch("SELECT reloptions::text FROM pg_class WHERE relname = ANY ($1)", names)
    }
    assert len(options) == 1
    assert await shape(owner, names[1]) == await shape(owner, "outbox_events_default")
    rights = "SELECT has_column_privilege('pg_monitor', $1::text, 'state', 'UPDATE')"
    assert await owner.fetchval(rights, f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}")


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


# --- workers


async def test_a_worker_goes_on_when_the_outbox_gets_partitions_under_it(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    """What it has in hand it settles; by its old claims it would lease events that it has not looked at.

    The later events stand in several partitions, each at the places of the other ones.
    """
    async with site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as place:
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


async def test_a_claim_by_place_in_partitions_is_refused_by_the_database(
    owner: asyncpg.Connection, database: Database
) -> None:
    """As a worker makes it that knows nothing of partitions; one that does takes as many as it may."""
    new_id = ids_of_all_partitions()
    for _ in range(9):
        await owner.execute(INSERT, new_id())
    pool = await connect_pool(
        database.dsn, schema="public", size_max=1, application_name="test",
        statement_timeout_seconds=10, connect_timeout_seconds=10,
    )  # fmt: skip
    by_place = STATEMENTS["outbox.claim"]
    with pytest.raises(asyncpg.CheckViolationError, match="has partitions"):
        await pool.fetch(by_place, 2, "w#0123abcd", *START, *START, 0)
    relay = PostgresWorld(pool).relay()
    assert len((await relay.find_unpublished(batch_max=2)).events) == 2
    assert await owner.fetchval("SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED'") == 2
    await pool.close()


@pytest.mark.parametrize(
    "name", ["claim", "claim_ordered", "mark_published", "settle", "reap", "reap_ordered"]
)
async def test_no_partition_is_read_whole_even_by_a_plan_from_when_it_was_empty(
    name: str, owner: asyncpg.Connection
) -> None:
    """A vacuumed partition is known to be empty: reading all of it seems to cost nothing."""
    await owner.execute("VACUUM")
    for setting, value in WORKER_HINTS.items():
        await owner.execute(f"SET {setting} = {value}")
    statement = joined_by_id(STATEMENTS[f"outbox.{name}"])
    count = len((await owner.prepare(statement)).get_parameters())
    await owner.execute(f"PREPARE p AS {statement}")
    arguments = ", ".join(["NULL"] * count)
    lines = [row[0] for row in await owner.fetch(f"EXPLAIN EXECUTE p({arguments})")]
    by_id = [n for n, line in enumerate(lines) if "_pkey" in line]
    assert len(by_id) >= len(await partitions(owner))
    assert [lines[n] for n in by_id if "Index Cond: (id = ANY" not in lines[n + 1]] == []
    assert [line for line in lines if "Seq Scan on outbox" in line or "Bitmap" in line] == []


# --- days ahead


async def test_days_are_made_once_whoever_asks(owner: asyncpg.Connection, database: Database) -> None:
    async with asyncpg.create_pool(database.dsn, min_size=4, max_size=4) as pool:
        made = await asyncio.gather(*(pool.fetch("SELECT outbox_make_partitions(9)") for _ in range(4)))
    days = [f"outbox_events_{midnight() + n * DAY:%Y%m%d}" for n in (8, 9)]
    assert sorted(row[0] for rows in made for row in rows) == days


async def test_a_day_that_the_default_partition_has_events_of_stays_there(owner: asyncpg.Connection) -> None:
    await add(owner, midnight() + 8 * DAY)
    made = await owner.fetch("SELECT outbox_make_partitions(9)")
    assert [row[0] for row in made] == [f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}"]


async def test_a_day_waits_for_no_producer_and_is_put_off_while_the_default_partition_is_busy(
    owner: asyncpg.Connection, database: Database
) -> None:
    producer = await asyncpg.connect(database.dsn)
    async with producer.transaction():
        await add(producer, midnight() + 3 * DAY)
        assert len(await owner.fetch("SELECT outbox_make_partitions(8)")) == 1
    async with producer.transaction():
        await producer.execute("DELETE FROM outbox_events_default")
        assert await owner.fetch("SELECT outbox_make_partitions(9)") == []
    assert len(await owner.fetch("SELECT outbox_make_partitions(9)")) == 1
    await producer.close()


async def test_none_is_made_that_would_have_to_wait_for_a_full_default_partition(
    owner: asyncpg.Connection,
) -> None:
    """One event a page makes it large without writing much."""
    await owner.execute("ALTER TABLE outbox_events_default SET (fillfactor = 10)")
    await owner.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
        " SELECT ('ffffffff' || substr(gen_random_uuid()::text, 9))::uuid, repeat('a', 400), 'o-1', 'x', '{}'"
        " FROM generate_series(1, 13000)"
    )
    assert await owner.fetch("SELECT outbox_make_partitions(9)") == []


async def test_a_worker_makes_days_ahead(
    owner: asyncpg.Connection, database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    last = f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}"
    async with (
        site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as place,
        place.worker(outbox_partition_days=9) as worker,
    ):

        async def is_made() -> bool:
            return last in await partitions(owner)

        await eventually(is_made, within=30)
        await eventually(lambda: "partitions_made" in worker.written)


# --- when a partition goes


async def test_a_partition_whose_events_are_published_and_old_is_dropped(owner: asyncpg.Connection) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    await publish(owner)
    row = await owner.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", name, day + DAY)
    assert (row["dropped"], row["reason"], row["events"]) == (True, None, 1)
    assert row["bytes"] > 0
    assert name not in await partitions(owner)
    assert await owner.fetchval("SELECT count(*) FROM outbox_events") == 0


async def test_a_partition_stays_while_anything_in_it_is_needed(owner: asyncpg.Connection) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    assert await drop(owner, name, day + DAY) == (False, "1 of its events are not published")
    await publish(owner)
    assert await drop(owner, name, day + DAY / 2) == (False, "its range of ids is not over by then")
    assert await drop(owner, "outbox_events_default", day + DAY) == (
        False,
        "it is no partition of a range of ids",
    )
    assert await drop(owner, "operator_actions", day + DAY) == (False, "it is no partition of a range of ids")
    await owner.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await owner.execute("UPDATE outbox_events SET published_at = $1", day + DAY)
    assert await drop(owner, name, day + DAY) == (False, "some of its events were published since")
    assert await owner.fetchval("SELECT outbox_drop_partition($1, NULL)", name) is None
    assert name in await partitions(owner)


async def test_a_partition_is_not_dropped_while_others_are_at_work(
    owner: asyncpg.Connection, database: Database
) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    await publish(owner)
    other = await asyncpg.connect(database.dsn)
    async with other.transaction():
        await other.fetch("SELECT id FROM outbox_events FOR UPDATE")
        dropped, reason = await drop(owner, name, day + DAY)
    await other.close()
    assert (dropped, reason) == (False, "other sessions are at work on the outbox; try again")

"""The change of the outbox to daily partitions, and workers beside it."""

import asyncio
import shlex
import uuid
from datetime import timedelta

import asyncpg
import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.changes import enable_partitions
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.pool import WORKER_HINTS
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.settings import Settings
from tests.integration.test_migrations import run_psql
from tests.security.test_sql import STATEMENTS
from tests.support.documents import commands
from tests.support.operators import WHY, world_of
from tests.support.outboxes import PostgresWorld
from tests.support.partitions import (
    DAY,
    INSERT,
    SCRIPT,
    VERSION_MIN,
    add,
    drop,
    ids_of_all_partitions,
    midnight,
    partition_outbox,
    partitions,
    shape,
)
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.site import Site

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
    assert after == before


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
    if plain.get_server_version().major < VERSION_MIN:
        pytest.skip("this server has no partitions")
    stranger = uuid.UUID("f0000000-0000-4000-8000-000000000000")
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


async def test_the_commands_of_the_document_divide_the_outbox_once_and_leave_a_record(
    plain: asyncpg.Connection, database: Database, nats_url: str, names: str
) -> None:
    async with world_of(database, nats_url, names) as world:
        prune, dry_run, enable, list_ = (
            shlex.split(command.text)[3:] for command in commands("docs/how-to/partitions.md")
        )
        assert (await world.run(*prune)).code == 0
        assert (await world.run(*dry_run)).out == f"{SCRIPT.read_text()}\n"
        [table] = (await world.run(*list_, "--json")).json
        assert (table["partition"], table["is_default"]) == ("outbox_events", True)
        if plain.get_server_version().major < VERSION_MIN:
            assert (await world.run(*enable)).code == ExitCode.CONTRACT
            return
        assert "in partitions now" in (await world.run(*enable, "--actor", "ann")).out
        assert "in partitions already" in (await world.run(*enable)).out
        listed = (await world.run(*list_, "--json")).json
        assert [one["partition"] for one in listed] == await partitions(plain)
        assert listed[0]["from_at"] is None
        assert listed[0]["until_at"] == listed[1]["from_at"]
        done = (await world.run("audit", "--action", "partition_outbox", "--json")).json
        assert [(one["actor"], one["reason"]) for one in done] == [("ann", "days are dropped")]


async def test_the_command_changes_nothing_while_the_table_is_busy(
    plain: asyncpg.Connection, database: Database, nats_url: str, names: str
) -> None:
    if plain.get_server_version().major < VERSION_MIN:
        pytest.skip(f"an outbox in partitions needs PostgreSQL {VERSION_MIN}")
    async with world_of(database, nats_url, names) as world, plain.transaction():
        await add(plain, midnight())
        answer = await world.run("partitions", "enable", *WHY)
        assert (answer.code, "lock timeout" in answer.err) == (ExitCode.FAILED, True)
    assert await partitions(plain) == ["outbox_events"]


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


async def test_a_claim_takes_no_event_at_the_same_place_in_another_partition(
    owner: asyncpg.Connection, database: Database
) -> None:
    new_id = ids_of_all_partitions()
    for _ in range(9):
        await owner.execute(INSERT, new_id())
    async with opened(database) as pool:
        assert len((await PostgresWorld(pool).relay().find_unpublished(batch_max=2)).events) == 2
    assert await owner.fetchval("SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED'") == 2


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

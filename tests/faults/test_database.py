"""A database that crashes, freezes, locks, fails or moves costs time, and no event's or message's life."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedPostgres
from tests.support.processes import frozen
from tests.support.servers import database_connection
from tests.support.site import Site, SiteWith
from tests.support.standby import either_of, standby_of
from tests.support.waiting import eventually

RESTARTS = 20
SESSIONS = "SELECT pid, state FROM pg_stat_activity WHERE application_name LIKE 'sea_mq_worker%'"


@asynccontextmanager
async def reconnected(made: Site) -> AsyncIterator[Site]:
    """Give the site a database connection that no restart has ended."""
    async with database_connection(made.dsn) as connection:
        yield dataclasses.replace(made, database=connection)


@pytest.mark.clause("store-20")
@pytest.mark.fault("D01")
@pytest.mark.crash
@pytest.mark.slow
async def test_a_server_that_crashes_again_and_again_loses_nothing(
    own_postgres: EmbeddedPostgres, site_with: SiteWith
) -> None:
    async with site_with(dsn=own_postgres.dsn) as made, made.worker() as worker:
        for number in range(RESTARTS):
            async with reconnected(made) as here:
                if number % 4 == 0:
                    await worker.ready()
                await here.both_ways()
            await (own_postgres.stop() if number % 5 == 4 else own_postgres.kill())
            await own_postgres.start()
        await worker.ready()
        async with reconnected(made) as here:
            await here.quiet()
            await here.audit()


@pytest.mark.fault("D02")
@pytest.mark.parametrize("frozen_part", ["session", "server"])
async def test_a_frozen_database_is_given_up_and_taken_up_again(
    own_postgres: EmbeddedPostgres, site_with: SiteWith, frozen_part: str
) -> None:
    impatient = site_with(dsn=own_postgres.dsn, database_timeout_seconds=0.3)
    async with impatient as made, made.worker() as worker:
        await worker.ready()
        await made.both_ways()
        await made.quiet()
        sessions = [session["pid"] for session in await made.database.fetch(SESSIONS)]
        await made.both_ways()
        with frozen(*(sessions if frozen_part == "session" else [own_postgres.pid])):
            await worker.answers(503, "database")
        await worker.ready()
        await made.quiet()
        await made.audit()


@pytest.mark.fault("D05")
async def test_locks_of_another_session_are_outlasted(shared: Site) -> None:
    async with shared.worker(database_timeout_seconds=0.6) as worker:
        await worker.ready()
        await shared.both_ways()
        async with shared.database.transaction():
            await shared.database.execute("LOCK TABLE outbox_events, inbox_messages")
            await worker.answers(503, "lock timeout")
        await worker.ready()
        await shared.quiet()
    await shared.audit()


# What a trigger raises stands for what happens to a statement: each is told by its SQLSTATE alone.
PASSING = (
    "40001",  # serialisation failure
    "40P01",  # deadlock
    "53100",  # disk full
    "53200",  # out of memory
    "55P03",  # lock not available
    "57014",  # cancelled
    "58030",  # input or output error
    "XX000",  # what nobody has foreseen
)


@pytest.mark.fault("D06")
async def test_statements_that_fail_one_time_in_five_are_repeated(shared: Site) -> None:
    await shared.database.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF random() < 0.2 THEN RAISE 'as asked'"
        f" USING ERRCODE = (ARRAY{list(PASSING)})[1 + floor(random() * {len(PASSING)})]; END IF;"
        " RETURN NULL; END $$;"
        " CREATE TRIGGER fail BEFORE UPDATE ON outbox_events FOR EACH STATEMENT EXECUTE FUNCTION fail();"
        " CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON inbox_messages"
        " FOR EACH STATEMENT EXECUTE FUNCTION fail()"
    )
    async with shared.worker(outbox_batch_max=10, inbox_attempts_max=19) as worker:
        await worker.ready()
        for _ in range(10):
            await shared.both_ways()
        await shared.quiet()
    assert "circuit_opened" in worker.events()
    await shared.audit()


REFUSALS = {
    "event claimed": ("UPDATE ON outbox_events", "id", "NEW.state = 'CLAIMED'"),
    "event published": ("UPDATE ON outbox_events", "id", "NEW.state = 'PUBLISHED'"),
    "message recorded": ("INSERT ON inbox_messages", "message_id", "true"),
    "message processed": ("UPDATE ON inbox_messages", "message_id", "NEW.processed_at IS NOT NULL"),
}


async def refuse(shared: Site, what: str, row: str) -> None:
    """Let a trigger of the service's own fail for one row."""
    change, key, condition = REFUSALS[what]
    await shared.database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.{key} = '{row}' AND {condition} THEN RAISE 'not this one'; END IF;"
        " RETURN NEW; END $$;"
        f" CREATE TRIGGER refuse BEFORE {change} FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


@pytest.mark.fault("D16")
@pytest.mark.parametrize("what", REFUSALS)
async def test_a_row_that_a_trigger_refuses_is_named_and_keeps_no_other_waiting(
    shared: Site, what: str
) -> None:
    ids = await (shared.commit(21) if what.startswith("event") else shared.send(21))
    await refuse(shared, what, ids[7])
    async with shared.worker() as worker:
        await worker.ready()
        await eventually(lambda: others_are_done(shared, what, ids[7]), what="the others have their ending")
        await worker.tells(f"{ids[7]}: PostgreSQL refuses a row: not this one (SQLSTATE P0001)")
        await worker.ready()
        assert "leases_lost" not in worker.events()
        await worker.stopped()
    await shared.database.execute("DROP FUNCTION refuse CASCADE")
    async with shared.worker(name="heir"):
        await shared.quiet()
    await shared.audit()


async def others_are_done(shared: Site, what: str, refused: str) -> bool:
    if what.startswith("event"):
        done = "SELECT count(*) FROM outbox_events WHERE state = 'PUBLISHED' AND id::text <> $1"
    else:
        done = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL AND message_id::text <> $1"
    return bool(await shared.database.fetchval(done, refused) == 20)


@pytest.mark.fault("D16")
async def test_a_statement_that_is_refused_for_every_row_pauses_its_side(shared: Site) -> None:
    await shared.database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'none'; END $$;"
        " CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    await shared.send(40)
    async with shared.worker() as worker:
        await worker.answers(503, "PostgreSQL refuses a row: none (SQLSTATE P0001)")
        assert "row_refused" not in worker.events()
        await shared.commit()
        await shared.published()
        await shared.database.execute("DROP FUNCTION refuse CASCADE")
        await worker.ready()
        await shared.quiet()
    await shared.audit()


async def caught_up(primary: asyncpg.Connection) -> bool:
    lag = "SELECT pg_current_wal_lsn() - replay_lsn FROM pg_stat_replication"
    return bool(await primary.fetchval(lag) == 0)


@pytest.mark.fault("D08")
async def test_the_worker_leaves_a_primary_that_turns_read_only(
    own_postgres: EmbeddedPostgres, site_with: SiteWith
) -> None:
    async with (
        standby_of(own_postgres, own_postgres.folder / "standby") as standby,
        site_with(dsn=own_postgres.dsn) as made,
        made.worker(database_url=either_of(own_postgres, standby)) as worker,
    ):
        await worker.ready()
        await made.both_ways()
        await made.quiet()
        await eventually(lambda: caught_up(made.database))
        await made.database.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await made.database.execute("SELECT pg_reload_conf()")
        await worker.answers(503, "database")
        async with reconnected(dataclasses.replace(made, dsn=standby.dsn)) as there:
            await there.database.execute("SELECT pg_promote()")
            await there.both_ways()
            await worker.ready()
            await there.quiet()
            await there.audit()

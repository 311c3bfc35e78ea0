"""Sessions that are ended, refused or timed out are replaced, and none idles in a transaction."""

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.errors import ContractError
from sea_mq_worker.postgres.migrations import claim_schema, migrate
from sea_mq_worker.postgres.pool import fetch
from tests.support.pooler import transaction_pooler
from tests.support.processes import frozen
from tests.support.rows import opened
from tests.support.servers import PostgresAddress, database_connection
from tests.support.site import Site, SiteWith

SESSIONS = (
    "FROM pg_stat_activity WHERE application_name LIKE 'sea_mq_worker%' AND datname = current_database()"
)
END = f"SELECT pg_terminate_backend(pid) {SESSIONS}"
IN_TRANSACTION = (
    f"SELECT max(clock_timestamp() - state_change) > '1 s' {SESSIONS} AND state LIKE 'idle in tr%'"
)


@pytest.mark.fault("D10")
async def test_no_session_waits_in_a_transaction_for_the_broker(
    own_nats: EmbeddedNats, site_with: SiteWith
) -> None:
    async with site_with(nats_url=own_nats.url) as made, made.worker() as worker:
        await worker.ready()
        await made.both_ways()
        with frozen(own_nats.pid):
            await made.commit(10)
            ends_at = time.monotonic() + 3
            while time.monotonic() < ends_at:
                assert not await made.database.fetchval(IN_TRANSACTION)
                await asyncio.sleep(0.05)
        await made.quiet()
        await made.audit()


@pytest.fixture
async def member(shared: Site, names: str) -> AsyncIterator[str]:
    """A role that is no superuser and may do everything with the tables; it bears the site's name."""
    await shared.database.execute(
        f"CREATE ROLE {names} LOGIN PASSWORD 'p'; GRANT ALL ON ALL TABLES IN SCHEMA public TO {names}"
    )
    yield names
    await shared.database.execute(END)
    await shared.database.execute(f"DROP OWNED BY {names}; DROP ROLE {names}")


def as_member(shared: Site, member: str) -> str:
    url = urlsplit(shared.target.environment["SEA_MQ_DATABASE_URL"])
    return url._replace(netloc=f"{member}:p@{url.netloc.rpartition('@')[2]}").geturl()


@pytest.mark.fault("D15")
@pytest.mark.parametrize(
    ("paused", "works"), [("outbox_events", "inbox_messages"), ("inbox_messages", "outbox_events")]
)
async def test_a_privilege_that_is_taken_away_pauses_its_side_alone(
    shared: Site, member: str, paused: str, works: str
) -> None:
    async with shared.worker(database_url=as_member(shared, member)) as worker:
        await worker.ready()
        await shared.database.execute(f"REVOKE UPDATE ON {paused} FROM {member}")
        await shared.both_ways()
        await worker.answers(503, f"permission denied for table {paused} (SQLSTATE 42501)")
        await (shared.published() if works == "outbox_events" else shared.answered())
        await shared.database.execute(f"GRANT UPDATE ON {paused} TO {member}")
        await worker.ready()
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("D20")
@pytest.mark.parametrize("table", ["outbox_events", "inbox_messages"])
async def test_a_table_whose_rows_are_hidden_is_refused_at_the_start(
    shared: Site, member: str, table: str
) -> None:
    await shared.database.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    async with shared.worker(database_url=as_member(shared, member)) as worker:
        assert await worker.ended() == 3
    assert f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY" in worker.written


@pytest.mark.fault("D15")
async def test_a_database_that_takes_no_connections_for_a_while_is_waited_for(
    shared: Site, member: str, postgres_server: PostgresAddress
) -> None:
    admin = await asyncpg.connect(postgres_server.dsn)
    name = await shared.database.fetchval("SELECT current_database()")
    async with shared.worker(database_url=as_member(shared, member)) as worker:
        await worker.ready()
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await shared.database.execute(END)
        await worker.answers(503, "not currently accepting connections")
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await admin.close()
        await worker.ready()
        await shared.both_ways()
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("D11")
async def test_it_works_through_a_transaction_pooler(
    own_postgres: EmbeddedPostgres, site_with: SiteWith
) -> None:
    async with (
        transaction_pooler(own_postgres) as pooled,
        site_with(dsn=own_postgres.dsn) as made,
        made.worker(database_url=pooled, database_pooler=True, name="one") as one,
        made.worker(database_url=pooled, database_pooler=True, name="two") as two,
    ):
        await one.ready()
        await two.ready()
        for _ in range(10):
            await made.both_ways()
        await made.quiet()
        await made.audit()
        assert [line for each in (one, two) for line in each.written.splitlines() if "WARNING" in line] == []


@pytest.mark.fault("D11")
async def test_a_pooler_hides_neither_schema_nor_isolation_from_the_first_worker(
    own_postgres: EmbeddedPostgres,
) -> None:
    await migrate(own_postgres.dsn, schema="Orders")
    async with database_connection(own_postgres.dsn) as owner:
        await owner.execute("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
    async with (
        transaction_pooler(own_postgres) as pooled,
        opened(pooled, schema="Orders", pooler=True) as pool,
    ):
        await claim_schema(pool, "sea")
        with pytest.raises(ContractError, match="in schema Orders belong to the context sea"):
            await claim_schema(pool, "lake")
        [row] = await fetch(pool, "SELECT current_setting('transaction_isolation') AS isolation")
    assert row["isolation"] == "read committed"


@pytest.mark.fault("D11")
@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "drops"])
async def test_a_pooler_that_is_not_configured_is_named(
    own_postgres: EmbeddedPostgres, site_with: SiteWith, refuses: bool
) -> None:
    """It refuses what sessions are to start with, or drops it."""
    async with (
        transaction_pooler(own_postgres, refuses=refuses) as pooled,
        site_with(dsn=own_postgres.dsn) as made,
        made.worker(database_url=pooled) as worker,
    ):
        assert await worker.ended() == 3
    assert "SEA_MQ_DATABASE_POOLER=true" in worker.written


@pytest.mark.fault("D26")
async def test_a_pooler_that_takes_no_transactions_is_refused_by_name(
    own_postgres: EmbeddedPostgres, site_with: SiteWith
) -> None:
    await migrate(own_postgres.dsn, schema="public")
    async with (
        transaction_pooler(own_postgres, statements=True) as pooled,
        site_with(dsn=own_postgres.dsn) as made,
        made.worker(database_url=pooled, database_pooler=True) as worker,
    ):
        assert await worker.ended() == 3
    assert "set the pooler's mode to transaction or session" in worker.written


@pytest.mark.fault("D27")
async def test_a_role_with_too_few_connections_is_refused_at_the_start(shared: Site, member: str) -> None:
    await shared.database.execute(f"ALTER ROLE {member} CONNECTION LIMIT 4")
    async with shared.worker(database_url=as_member(shared, member)) as worker:
        assert await worker.ended() == 3
    assert f"role {member} allows 4 connections; a worker needs 5" in worker.written


@pytest.mark.fault("D27")
async def test_a_role_with_few_connections_is_reported_with_what_the_worker_may_open(
    shared: Site, member: str
) -> None:
    await shared.database.execute(f"ALTER ROLE {member} CONNECTION LIMIT 6")
    async with shared.worker(database_url=as_member(shared, member), database_pool_max=1) as worker:
        await worker.ready()
        await shared.both_ways()
        await shared.published()
        await shared.answered()
        assert "connections_short" not in worker.events()
        await worker.stopped()
    async with shared.worker(database_url=as_member(shared, member)) as worker:
        await worker.tells(f"role {member} allows 6 connections, and a worker may open 15")

"""SDS-047's own tables are taken over with their rows, and its own worker runs beside this one."""

import asyncio
import os
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.postgres.migrations import migrate, plan, set_old_worker
from tests.acceptance.test_documents import typed
from tests.integration.test_migrations import NAMES, dumped, run_psql
from tests.support import servers
from tests.support.documents import commands
from tests.support.jetstream import SECOND
from tests.support.sds047 import DDL, HISTORY, INSERT, MARK, old_worker
from tests.support.servers import Database, PostgresAddress
from tests.support.site import Site, SiteWith, site
from tests.support.waiting import eventually

FIELDS = ("state", "publish_attempts", "failures", "publish_error", "published_at", "first_attempt_at")
FUTURE = "FUTURE_EVENT: occurred_at is in the future (POL-047-002)"
OUT_OF_CALENDAR = "INVALID_OUTBOX: a time is not within the years 1 to 9999"


@pytest.fixture
async def old(postgres_server: PostgresAddress) -> AsyncIterator[Database]:
    """A database with SDS-047's own tables."""
    async with servers.scratch_database(postgres_server, prefix="sds047_") as made:
        async with servers.database_connection(made.dsn) as owner:
            await owner.execute(DDL)
        yield made


@pytest.fixture
async def owner(old: Database) -> AsyncIterator[asyncpg.Connection]:
    async with servers.database_connection(old.dsn) as connection:
        yield connection


@pytest.fixture
def site_of_old(old: Database, nats_url: str, names: str, tmp_path: Path) -> SiteWith:
    return partial(site, dsn=old.dsn, nats_url=nats_url, name=names, folder=tmp_path)


async def add(owner: asyncpg.Connection, **given: Any) -> uuid.UUID:
    """Insert an event as a service that knows only SDS-047 does."""
    event_id = uuid.uuid4()
    columns = {"id": event_id, "aggregate_type": "a", "aggregate_id": "b", "event_type": "order.created"}
    columns |= {"payload": '{"total": 1.00}'} | given
    places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    await owner.execute(
        f"INSERT INTO outbox_events ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )
    return event_id


async def row(owner: asyncpg.Connection, event_id: uuid.UUID) -> asyncpg.Record:
    return await owner.fetchrow("SELECT * FROM outbox_events WHERE id = $1", event_id)


# --- the tables


async def test_adopted_tables_are_those_of_a_new_schema(
    old: Database, owner: asyncpg.Connection, database: Database
) -> None:
    await owner.execute(HISTORY.format(rows=3))
    await add(owner)
    adopted = await plan(old.dsn)
    assert (adopted.missing, dict(adopted.adopted)) == (NAMES, {"outbox_events": 4, "inbox_messages": 3})
    assert list(await migrate(old.dsn)) == NAMES
    assert await dumped(old.dsn, "public") == await dumped(database.dsn, "public")


@pytest.mark.parametrize("table", ["outbox_events", "inbox_messages"])
async def test_one_of_the_two_tables_suffices(table: str, old: Database, owner: asyncpg.Connection) -> None:
    await owner.execute(HISTORY.format(rows=2))
    await owner.execute(f"DROP TABLE {table}")
    await migrate(old.dsn)
    [outbox], [inbox] = (
        await owner.fetch("SELECT count(*) FROM outbox_events"),
        await owner.fetch("SELECT count(*) FROM inbox_messages"),
    )
    assert sorted([outbox["count"], inbox["count"]]) == [0, 2]


async def test_events_get_their_state_from_published_at(old: Database, owner: asyncpg.Connection) -> None:
    """An unpublished event may be in the stream: it was possibly tried since it was created."""
    new = await add(owner)
    failed = await add(owner, publish_attempts=3, publish_error="no answer")
    published = await add(owner, publish_attempts=2, publish_error="no answer")
    at = await owner.fetchval(
        "UPDATE outbox_events SET published_at = now() WHERE id = $1 RETURNING published_at", published
    )
    before = {r["id"]: r for r in await owner.fetch("SELECT * FROM outbox_events")}
    await migrate(old.dsn)
    after = {r["id"]: r for r in await owner.fetch("SELECT * FROM outbox_events")}
    assert [tuple(after[one][name] for name in FIELDS) for one in (new, failed, published)] == [
        ("PENDING", 1, 0, None, None, before[new]["occurred_at"]),
        ("PENDING", 3, 0, "no answer", None, before[failed]["occurred_at"]),
        ("PUBLISHED", 2, 0, "no answer", at, None),
    ]
    kept = ("aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at")
    for event_id, old_row in before.items():
        assert [after[event_id][name] for name in kept] == [old_row[name] for name in kept]
        assert after[event_id]["created_at"] == old_row["occurred_at"]
    assert after[published]["seq"] < after[new]["seq"] < after[failed]["seq"]


async def test_messages_keep_their_ids_and_outcomes(old: Database, owner: asyncpg.Connection) -> None:
    insert = "INSERT INTO inbox_messages VALUES ($1, 's', now(), {processed_at}, $2, $3)"
    received, processed, early = (uuid.uuid4() for _ in range(3))
    await owner.execute(insert.format(processed_at="NULL"), received, -1, "500")
    await owner.execute(insert.format(processed_at="now()"), processed, 1, None)
    await owner.execute(insert.format(processed_at="now() - interval '1 s'"), early, 1, None)
    await migrate(old.dsn)
    found = {r["message_id"]: r for r in await owner.fetch("SELECT * FROM inbox_messages")}
    assert (found[received]["processed_at"], found[received]["attempts"]) == (None, 0)
    assert found[received]["last_error"] == "500"
    assert found[processed]["processed_at"] == found[processed]["received_at"]
    assert found[early]["processed_at"] == found[early]["received_at"]


async def test_an_event_that_breaks_a_policy_ends_dead_with_its_reason(
    old: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute("ALTER TABLE outbox_events DROP CONSTRAINT chk_occurred_not_future")
    future = await add(owner)
    await owner.execute("UPDATE outbox_events SET occurred_at = now() + interval '1 h' WHERE id = $1", future)
    ancient = await add(owner)
    await owner.execute("UPDATE outbox_events SET occurred_at = '-infinity' WHERE id = $1", ancient)
    negative = await add(owner, publish_attempts=-5)
    await migrate(old.dsn)
    assert [await owner.fetchval("SELECT publish_error FROM outbox_events WHERE id = $1", one)
            for one in (future, ancient, negative)] == [FUTURE, OUT_OF_CALENDAR, None]  # fmt: skip
    states = await owner.fetch("SELECT state, publish_attempts FROM outbox_events ORDER BY state")
    assert [tuple(r) for r in states] == [("DEAD", 1), ("DEAD", 1), ("PENDING", 1)]


async def test_rights_on_the_old_tables_stay(old: Database, owner: asyncpg.Connection) -> None:
    role = servers.unique("r")
    await owner.execute(
        f"CREATE ROLE {role}; GRANT INSERT, SELECT ON outbox_events TO {role};"
        f" GRANT UPDATE (processed_at) ON inbox_messages TO {role}"
    )
    try:
        await migrate(old.dsn)
        await owner.execute(f"SET ROLE {role}")
        await owner.execute(INSERT, uuid.uuid4(), "{}")
        await owner.execute("UPDATE inbox_messages SET processed_at = now()")
        await owner.execute("RESET ROLE")
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# --- what is refused, or interrupted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE outbox_events ADD tenant TEXT", "column tenant of outbox_events is not in SDS-047"),
        ("ALTER TABLE outbox_events DROP publish_error", "column publish_error of outbox_events is missing"),
        (
            "ALTER TABLE inbox_messages ALTER attempts TYPE bigint",
            'column attempts of inbox_messages is "bigint NOT NULL DEFAULT 0": make it "integer NOT NULL',
        ),
        (
            "ALTER TABLE outbox_events ALTER payload DROP NOT NULL",
            'column payload of outbox_events is "jsonb": make it "jsonb NOT NULL"',
        ),
        ("ALTER TABLE inbox_messages DROP CONSTRAINT inbox_messages_pkey", "has no primary key on its id"),
        (
            "CREATE TABLE effects (event UUID REFERENCES outbox_events)",
            "constraint effects_event_fkey on table effects would be lost with outbox_events",
        ),
        ("CREATE VIEW late AS SELECT id FROM outbox_events", "view late would be lost with outbox_events"),
        ("CREATE INDEX mine ON outbox_events (event_type)", "index mine would be lost with outbox_events"),
        ("CREATE PUBLICATION feed FOR TABLE outbox_events", "would be lost with outbox_events: drop it"),
        (
            "CREATE TRIGGER t BEFORE UPDATE ON inbox_messages EXECUTE FUNCTION tsvector_update_trigger()",
            "trigger t on table inbox_messages would be lost",
        ),
        ("ALTER TABLE outbox_events OWNER TO pg_monitor", "outbox_events is owned by pg_monitor, not by"),
        ("ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY", "outbox_events has row level security"),
    ],
)
async def test_another_table_is_refused_by_name_and_left_as_it_is(
    change: str, said: str, old: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute(change)
    before = await described(old)
    for attempt in (plan, migrate):
        with pytest.raises(ContractError) as refused:
            await attempt(old.dsn)
        assert said in str(refused.value)
    assert await described(old) == before


async def described(old: Database) -> list[str]:
    """Return the tables of a schema that has no migration."""
    catalogue = (
        "SELECT relname, relkind, relowner, relhastriggers FROM pg_class"
        " WHERE relnamespace = 'public'::regnamespace"
    )
    rows = "SELECT id FROM outbox_events ORDER BY id"
    return [await run_psql(old.dsn, "-At", "-c", f"{catalogue} ORDER BY 1", "-c", rows)]


async def test_a_table_that_others_keep_busy_is_left_as_it_is(
    old: Database, owner: asyncpg.Connection
) -> None:
    await add(owner)
    before = await described(old)
    async with owner.transaction():
        await owner.fetch("SELECT FROM inbox_messages")
        with pytest.raises(StoreUnavailableError, match="lock"):
            await migrate(old.dsn)
    assert await described(old) == before
    await migrate(old.dsn)


@pytest.mark.fault("D40")
async def test_a_killed_migration_leaves_the_old_tables_as_they_were(
    old: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute(HISTORY.format(rows=50_000))
    before = await described(old)
    environment = os.environ | {"SEA_MQ_DATABASE_URL": old.dsn, "SEA_MQ_CONTEXT": "sea"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sea_mq_worker", "migrate", env=environment
    )
    copying = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND query LIKE '%INSERT INTO outbox\\_events (%' AND pid <> pg_backend_pid()"
    )
    backend = await eventually(lambda: owner.fetchval(copying), what="rows are copied")
    process.kill()
    await process.wait()
    await owner.fetch("SELECT pg_terminate_backend($1, 10000)", backend)
    assert await described(old) == before
    await migrate(old.dsn)
    assert await owner.fetchval("SELECT count(*) FROM outbox_events WHERE state = 'PUBLISHED'") == 50_000


# --- beside the old worker


async def test_without_the_window_the_old_statements_are_refused(
    old: Database, owner: asyncpg.Connection
) -> None:
    await migrate(old.dsn)
    event_id = await add(owner)
    with pytest.raises(asyncpg.CheckViolationError):
        await mark(owner, event_id)


async def mark(owner: asyncpg.Connection, event_id: uuid.UUID) -> None:
    """Mark an event as the old worker does."""
    assert await owner.execute(MARK, event_id) == "UPDATE 1"


@pytest.mark.parametrize("before", ["PENDING", "CLAIMED", "DEAD"])
async def test_in_the_window_an_event_of_any_open_state_becomes_published(
    before: str, old: Database, owner: asyncpg.Connection
) -> None:
    await migrate(old.dsn)
    for _ in range(2):
        await set_old_worker(old.dsn, schema="public", beside=True)
    event_id = await add(owner)
    if before != "PENDING":
        await owner.execute(
            "UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w',"
            " publish_attempts = 1, first_attempt_at = now()"
        )
    if before == "DEAD":
        await owner.execute("UPDATE outbox_events SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL")
    error = (
        "UPDATE outbox_events SET publish_attempts = publish_attempts + 1, publish_error = 'x' WHERE id = $1"
    )
    await owner.execute(error, event_id)
    await mark(owner, event_id)
    found = await row(owner, event_id)
    assert (found["state"], found["publish_error"], found["claimed_by"]) == ("PUBLISHED", None, None)
    await mark(owner, event_id)
    assert (await row(owner, event_id))["published_at"] == found["published_at"]


async def test_the_end_of_the_window_leaves_the_schema_of_a_new_one(
    old: Database, owner: asyncpg.Connection, database: Database
) -> None:
    await migrate(old.dsn)
    await set_old_worker(old.dsn, schema="public", beside=True)
    assert await dumped(old.dsn, "public") != await dumped(database.dsn, "public")
    for _ in range(2):
        await set_old_worker(old.dsn, schema="public", beside=False)
    assert await dumped(old.dsn, "public") == await dumped(database.dsn, "public")
    with pytest.raises(asyncpg.CheckViolationError):
        await mark(owner, await add(owner))


async def test_the_window_keeps_every_other_rule_of_the_lifecycle(
    old: Database, owner: asyncpg.Connection
) -> None:
    await migrate(old.dsn)
    await set_old_worker(old.dsn, schema="public", beside=True)
    event_id = await add(owner)
    for change in ("state = 'DEAD'", "publish_attempts = -1", "payload = '{}'"):
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(f"UPDATE outbox_events SET {change} WHERE id = $1", event_id)
    await mark(owner, event_id)
    with pytest.raises(asyncpg.CheckViolationError):
        await owner.execute("UPDATE outbox_events SET publish_attempts = 0 WHERE id = $1", event_id)


PAUSED_SECONDS = 2.5
SHORT_WINDOW = {"duplicate_window": 2 * SECOND}


@pytest.mark.fault("D40")
@pytest.mark.parametrize(("mode", "beside"), [("auto", False), ("atomic", False), ("auto", True)])
async def test_what_the_old_worker_published_and_did_not_mark_is_not_published_again(
    mode: str, beside: bool, owner: asyncpg.Connection, site_of_old: SiteWith
) -> None:
    """The stream has forgotten its id since; rows that can never be published end DEAD with their reason."""
    async with site_of_old(stream=SHORT_WINDOW) as made, old_worker(made.direct) as rust:
        if beside:
            await migrate(made.dsn)
            await set_old_worker(made.dsn, schema="public", beside=True)
        marked = str(await add(owner))
        await rust.publish_once()
        unmarked = [str(await add(owner)) for _ in range(3)]
        cut_off = asyncio.create_task(rust.publish_once(pause=asyncio.Event()))
        await eventually(made.copies, until=lambda copies: len(copies) == 2)
        cut_off.cancel()
        bad = {str(await add(owner, event_type=" ")), str(await add(owner, event_version=0))}
        await asyncio.sleep(PAUSED_SECONDS)  # the window passes
        await migrate(made.dsn)
        async with made.worker(outbox_publish_mode=mode) as worker:
            await worker.ready()
            await made.published()
        assert await made.copies() == Counter([marked, *unmarked])
        dead = await owner.fetch("SELECT id, publish_error FROM outbox_events WHERE state = 'DEAD'")
        assert {str(r["id"]) for r in dead} == bad
        assert all(r["publish_error"].startswith("INVALID_OUTBOX: event_") for r in dead)


@pytest.mark.parametrize("purged", [False, True])
async def test_what_the_old_worker_just_published_counts_as_published(
    purged: bool, owner: asyncpg.Connection, site_of_old: SiteWith
) -> None:
    """Its copy has none of this worker's headers, or is gone, and is not taken for another event's."""
    async with site_of_old() as made, old_worker(made.direct) as rust:
        await migrate(made.dsn)
        await set_old_worker(made.dsn, schema="public", beside=True)
        event_id = str(await add(owner))
        cut_off = asyncio.create_task(rust.publish_once(pause=asyncio.Event()))
        await eventually(made.copies)
        cut_off.cancel()
        if purged:
            await api(made.broker, f"STREAM.PURGE.{made.target.stream}")
        async with made.worker() as worker:
            await worker.ready()
            await made.published()
        found = await row(owner, uuid.UUID(event_id))
        assert (found["state"], found["stream_seq"]) == ("PUBLISHED", 1)
        assert await made.copies() == ({} if purged else {event_id: 1})


async def test_the_commands_of_the_document_lead_from_the_old_worker(
    owner: asyncpg.Connection, site_of_old: SiteWith
) -> None:
    await add(owner)
    async with site_of_old() as made:
        plan, begin, doctor, end = [
            await typed(command.text, made.direct.environment)
            for command in commands("docs/how-to/from-the-rust-worker.md")
        ]
    assert [plan.code, begin.code, end.code] == [0, 0, 0]
    rows = "1 rows of outbox_events and 0 rows of inbox_messages"
    assert f"would take over {rows}; nobody else can use the tables for about 1 s\n" in plan.out
    assert f"taking over {rows}" in begin.out
    assert "the old worker may run beside this one" in begin.out
    assert "migrate --end-old-worker" in doctor.out
    assert "the old worker's statements are refused" in end.out
    with pytest.raises(asyncpg.CheckViolationError):
        await mark(owner, await add(owner))


async def test_a_migration_has_one_purpose(old: Database) -> None:
    both = "python -m sea_mq_worker migrate --beside-old-worker --end-old-worker"
    assert (await typed(both, {"SEA_MQ_DATABASE_URL": old.dsn, "SEA_MQ_CONTEXT": "sea"})).code == 2


async def side_by_side(
    owner: asyncpg.Connection, made: Site, *, rounds: int, pause: float
) -> tuple[int, int]:
    """Let both workers publish and handle what comes; return how much the old one did of it."""
    async with old_worker(made.direct) as rust, made.worker() as worker:
        await worker.ready()
        stop = asyncio.Event()
        beside = asyncio.create_task(rust.run(made.handler.url, stop))
        events, messages = [], []
        for _ in range(rounds):
            for _ in range(5):
                events.append(str(uuid.uuid4()))
                await owner.execute(INSERT, events[-1], '{"total": 1.00}')
            messages += await made.send(5)
            await asyncio.sleep(pause)  # the rate of the traffic
        await made.quiet(within=60)
        stop.set()
        await beside
        copies = await made.copies()
        assert rust.errors == []
        assert {event_id for event_id in events if copies[event_id] != 1} == set()
        assert {one for one in messages if made.effects.calls[one] != 1} == set()
        unprocessed = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL"
        assert await owner.fetchval(unprocessed) == 0
    return rust.published, rust.handled


async def test_both_workers_publish_and_handle_side_by_side(
    old: Database, owner: asyncpg.Connection, site_of_old: SiteWith
) -> None:
    await migrate(old.dsn)
    await set_old_worker(old.dsn, schema="public", beside=True)
    async with site_of_old() as made:
        published, handled = await side_by_side(owner, made, rounds=10, pause=0.1)
        assert published > 0
        assert handled > 0

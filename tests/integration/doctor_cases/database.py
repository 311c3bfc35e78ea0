"""Causes of doctor's findings in PostgreSQL, on the session's server."""

import contextlib
import uuid
from dataclasses import replace
from urllib.parse import urlsplit

import asyncpg
import pytest

from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.postgres.migrations import set_old_worker
from tests.integration.doctor_cases.registry import (
    LONG_AGO,
    UNUSED,
    by_setting,
    by_sql,
    mended_by,
    provokes,
    provokes_in_tables,
)
from tests.support.checkups import Mend, Patient
from tests.support.clocks import postgres_clock
from tests.support.partitions import partition_outbox
from tests.support.rows import add_event
from tests.support.waiting import eventually

MADE = "SELECT count(*) > 8 FROM outbox_partitions()"
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"

by_setting("database_unreachable", database_url=f"postgresql://u@{UNUSED}/d")
by_sql("index_missing", "DROP INDEX idx_outbox_due")
by_sql("trigger_disabled__is_missing", "DROP TRIGGER outbox_immutable ON outbox_events")
by_sql("trigger_disabled", "ALTER TABLE outbox_events DISABLE TRIGGER outbox_wakeup")
by_sql(
    "trigger_foreign",
    "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION touch()",
)
by_sql(
    "publication_blocks",
    "ALTER TABLE inbox_messages REPLICA IDENTITY NOTHING; CREATE PUBLICATION others FOR TABLE inbox_messages",
)
by_sql("migration_altered", "UPDATE sea_mq_migrations SET sha256 = 'other' WHERE version = 1")
by_sql("autovacuum_off", "ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
by_sql("slot_inactive", "SELECT pg_create_physical_replication_slot('{database}', true)")


@provokes
async def database_refuses(p: Patient) -> Mend:
    right = p.given["database_url"]
    parts = urlsplit(p.database.dsn)
    p.given["database_url"] = parts._replace(netloc=f"nobody:wrong@{parts.hostname}:{parts.port}").geturl()
    return p.changing(database_url=right)


@provokes_in_tables
async def schema_version__of_another_context(p: Patient) -> Mend:
    await p.sql("INSERT INTO sea_mq_context (context) VALUES ('other')")

    async def move(finding: Finding) -> None:
        p.given["database_schema"] = "of_its_own"
        await p.command(replace(finding, command="python -m sea_mq_worker migrate"))

    return move


@provokes_in_tables
async def clocks_differ__of_postgresql(p: Patient) -> Mend:
    await p.sql(postgres_clock(right=False))
    return mended_by(lambda: p.sql(postgres_clock(right=True)))


@provokes_in_tables
async def database_unreachable__for_writing(p: Patient) -> Mend:
    owner = await p.session()
    await owner.execute(f"ALTER DATABASE {p.database.name} SET default_transaction_read_only = on")
    reset = f"ALTER DATABASE {p.database.name} RESET default_transaction_read_only"
    return mended_by(lambda: owner.execute(reset))


@provokes_in_tables
async def table_locked(p: Patient) -> None:
    """As somebody leaves it who went to lunch in the middle of a change."""
    p.given["database_timeout_seconds"] = 0.5
    locking = await p.session()
    await locking.execute("BEGIN; LOCK TABLE outbox_events")


@provokes_in_tables
async def lane_held(p: Patient) -> None:
    program = await p.session()
    await program.execute("SELECT pg_advisory_lock(7182, hashtext(current_schema()::text))")


async def publish(p: Patient, what: str, *, since: int) -> None:
    session = await p.session()
    if session.get_server_version() < (since,):
        pytest.skip("this PostgreSQL has no such publication")
    await session.execute(f"CREATE PUBLICATION others FOR TABLE outbox_events {what}")


@provokes_in_tables
async def publication_blocks__filters_by_another_column(p: Patient) -> None:
    await publish(p, "WHERE (event_type = 'x')", since=15)


@provokes_in_tables
async def publication_blocks__identity_is_full(p: Patient) -> None:
    await p.sql("ALTER TABLE outbox_events REPLICA IDENTITY FULL")
    await publish(p, "", since=18)


@provokes_in_tables
async def connections_short(p: Patient) -> Mend:
    await p.sql(f"ALTER DATABASE {p.database.name} CONNECTION LIMIT 12")
    return p.changing(database_pool_max=1)


@provokes_in_tables
async def index_missing__in_partitions(p: Patient) -> None:
    await partition_outbox(p.database.dsn)
    await p.sql("DROP INDEX idx_outbox_due")


@provokes_in_tables
async def index_missing__is_invalid(p: Patient) -> None:
    """Building it waits for a transaction, and is given up."""
    making = await p.session()
    await p.sql("DROP INDEX idx_outbox_correlation")
    await making.execute("SET statement_timeout = '200 ms'")
    writing = await p.session()
    await writing.execute("BEGIN; LOCK TABLE outbox_events IN ROW EXCLUSIVE MODE")
    with contextlib.suppress(asyncpg.QueryCanceledError):
        await making.execute(
            "CREATE INDEX CONCURRENTLY idx_outbox_correlation ON outbox_events (correlation_id)"
        )
    await writing.execute("ROLLBACK")


@provokes_in_tables
async def transaction_open_long(p: Patient) -> None:
    p.expect_soon()
    forgotten = await p.session()
    await forgotten.execute("BEGIN; CREATE TEMPORARY TABLE x ()")


DROP_LATER_DAYS = """
DO $$ DECLARE leaf text; BEGIN
    FOR leaf IN SELECT relname FROM pg_class WHERE relname ~ '^outbox_events_[0-9]{8}$' AND relkind = 'r'
        AND right(relname, 8) > to_char(now() AT TIME ZONE 'UTC' + interval '2 days', 'YYYYMMDD')
    LOOP EXECUTE format('DROP TABLE %I', leaf); END LOOP;
END $$"""


def by_a_worker(p: Patient, *, until: str, what: str) -> Mend:
    """Run the worker as the finding says, until a statement tells that it has done its part."""

    async def start(finding: Finding) -> None:
        async with p.worker(finding.command):
            await eventually(lambda: p.pool.fetchval(until), what=what)

    return start


@provokes_in_tables
async def outbox_unattended(p: Patient) -> Mend:
    await add_event(p.pool, occurred_at=LONG_AGO, available_at=LONG_AGO)
    return by_a_worker(p, until=PUBLISHED, what="the event is published")


@provokes_in_tables
async def messages_missed__as_a_worker_found(p: Patient) -> Mend:
    await p.sql(
        "INSERT INTO sea_mq_standings"
        " (stream, durable, standing, missed, missed_first_seq, missed_last_seq, missed_at)"
        f" VALUES ('{p.upstream_stream}', '{p.durable}', '{{}}', 3, 4, 6, now()),"
        f" ('ANOTHER_EVENTS', '{p.durable}', '{{}}', 5, 1, 9, NULL)"
    )

    async def clear(finding: Finding) -> None:
        await p.paste(finding)
        assert await p.pool.fetchval("SELECT sum(missed) FROM sea_mq_standings") == 5  # of the other stream

    return clear


@provokes_in_tables
async def outbox_behind(p: Patient) -> Mend:
    await add_event(p.pool, occurred_at=LONG_AGO, available_at=LONG_AGO, ordering_key="k")
    for purpose in ("outbox", "outbox", "outbox", "upkeep"):
        await p.session(f"sea_mq_worker {purpose}")

    async def publish_elsewhere(finding: Finding) -> None:
        assert finding.what.endswith("; workers connected: 1")
        p.given["outbox_enabled"] = False

    return publish_elsewhere


@provokes_in_tables
async def outbox_unattended__by_idle_workers(p: Patient) -> Mend:
    """Whoever holds the worker's connections does nothing with them."""
    p.expect_soon()
    await add_event(p.pool)
    for purpose in ("outbox", "upkeep"):
        await p.session(f"sea_mq_worker {purpose}")

    async def restart(finding: Finding) -> None:
        assert "workers connected: 1; no statement of theirs for 0 s" in finding.what
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published")

    return restart


@provokes_in_tables
async def sequence_behind(p: Patient) -> None:
    """As after a dump of the rows was read in, and the sequence left alone."""
    for _ in range(3):
        await add_event(p.pool, "PUBLISHED")
    await p.sql("ALTER TABLE outbox_events ALTER seq RESTART")


@provokes_in_tables
async def rows_failing__of_the_outbox(p: Patient) -> Mend:
    refused = "no permission to publish after 15 s (SQLSTATE 42501)"
    ids = [await add_event(p.pool, error=refused, **given) for given in ({}, {"ordering_key": "k"})]

    async def work(finding: Finding) -> None:
        assert finding.what.endswith(": no permission to publish after # s (SQLSTATE 42501)")
        assert finding.what.startswith("2 wait, the oldest for ")
        assert finding.command in {f"python -m sea_mq_worker where {id_}" for id_ in ids}
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the events are published")

    return work


@provokes_in_tables
async def rows_failing__of_the_inbox(p: Patient) -> Mend:
    """Of one type the handler wants a token."""
    message, seq = uuid.uuid4(), await p.send()
    await p.received(seq=seq, hours=0)
    reported = "the handler answered 401 (with 0 bytes)"
    await p.pool.execute("UPDATE inbox_messages SET message_id = $1, last_error = $2", message, reported)

    async def give_up(finding: Finding) -> None:
        assert finding.what.endswith(": the handler answered 401 (with # bytes)")
        await p.command(finding)
        close = f"python -m sea_mq_worker inbox close {message} --reason 'a test' --actor ann"
        await p.command(replace(finding, command=close))

    return give_up


@provokes_in_tables
async def outbox_dead(p: Patient) -> Mend:
    p.given["outbox_dead_key"] = "hold"
    await add_event(p.pool, "DEAD")

    async def replay(finding: Finding) -> None:
        assert finding.what == "DEAD events: 1; later events of their keys wait"
        command = "python -m sea_mq_worker outbox replay --state DEAD --reason mended --actor ann"
        await p.command(replace(finding, command=command))

    return replay


@provokes_in_tables
async def outbox_unpruned(p: Patient) -> Mend:
    published = await add_event(p.pool, "CLAIMED")
    done = "state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = $2"
    await p.pool.execute(f"UPDATE outbox_events SET {done} WHERE id = $1", published, LONG_AGO)
    return p.command


@provokes_in_tables
async def partitions_short(p: Patient) -> Mend:
    """As seen a week after the last worker made some."""
    await partition_outbox(p.database.dsn)
    await p.sql(DROP_LATER_DAYS)
    return by_a_worker(p, until=MADE, what="partitions are made")


@provokes_in_tables
async def beside_old_worker(p: Patient) -> Mend:
    await set_old_worker(p.database.dsn, schema="public", beside=True)
    return p.command


@provokes_in_tables
async def inbox_orphans(p: Patient) -> Mend:
    await p.received(seq=1, hours=0, consumer="another")
    await p.consumer("another")
    return p.changing(consumers=f"{p.given['consumers']},{p.upstream_stream}/another")


@provokes_in_tables
async def inbox_stuck(p: Patient) -> Mend:
    message = uuid.uuid4()
    await p.received(seq=await p.send(str(message)), hours=48)
    await p.pool.execute("UPDATE inbox_messages SET message_id = $1", message)

    async def run_a_worker(finding: Finding) -> None:
        assert finding.fix == "check its error, and whether a worker is running"
        async with p.worker():
            processed = "SELECT processed_at IS NOT NULL FROM inbox_messages"
            await eventually(lambda: p.pool.fetchval(processed), what="the message has its effect")

    return run_a_worker

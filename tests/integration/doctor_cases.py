"""How each of doctor's findings is provoked, on the session's servers."""

import contextlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres.operations import PostgresOperations
from sea_mq_worker.bootstrap.doctor import Finding
from tests.support.checkups import Mend, Patient
from tests.support.handlers import answer
from tests.support.jetstream import DAY, SECOND, create_consumer, create_stream, store
from tests.support.other_clock import nats_clock, postgres_clock
from tests.support.rows import add_event, add_message
from tests.support.waiting import eventually

LONG_AGO = datetime.now(UTC) - timedelta(days=40)
UNUSED = "127.0.0.1:1"
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"
PROCESSED = "SELECT bool_and(processed_at IS NOT NULL) FROM inbox_messages"

Provoke = Callable[[Patient], Awaitable[Mend | None]]
"""Makes something wrong. What it returns mends it; None: the statements do that the finding prints."""

CASES: dict[str, Provoke] = {}
"""What leaves the tables as they are."""
CASES_OF_TABLES: dict[str, Provoke] = {}
"""What needs tables of its own."""


def provokes(provoke: Provoke) -> Provoke:
    """Enter a case; its name is the slug of what doctor has to find."""
    CASES[provoke.__name__] = provoke
    return provoke


def provokes_in_tables(provoke: Provoke) -> Provoke:
    """Enter a case that changes the database."""
    CASES_OF_TABLES[provoke.__name__] = provoke
    return provoke


def by_sql(slug: str, statement: str) -> None:
    async def provoke(p: Patient) -> None:
        await p.sql(statement.format(database=p.database.name))

    CASES_OF_TABLES[slug] = provoke


def by_definition(slug: str, file: str, **fields: object) -> None:
    async def provoke(p: Patient) -> Mend:
        return await p.define(file, **fields)

    CASES[slug] = provoke


def by_setting(slug: str, **given: object) -> None:
    async def provoke(p: Patient) -> Mend:
        right = {key: p.given.get(key, "") for key in given}
        p.given.update(given)
        return p.changing(**right)

    CASES[slug] = provoke


# --- PostgreSQL

by_setting("database_unreachable", database_url=f"postgresql://u@{UNUSED}/d")
by_sql("synchronous_commit_off", "ALTER DATABASE {database} SET synchronous_commit = off")
by_sql("triggers_off", "ALTER DATABASE {database} SET session_replication_role = replica")
by_sql("session_timeouts", "ALTER DATABASE {database} SET idle_session_timeout = '5 s'")
by_sql("table_unlogged", "ALTER TABLE inbox_messages SET UNLOGGED")
by_sql("index_missing", "DROP INDEX idx_outbox_due")
by_sql("trigger_missing", "DROP TRIGGER outbox_immutable ON outbox_events")
by_sql("trigger_disabled", "ALTER TABLE outbox_events DISABLE TRIGGER outbox_wakeup")
by_sql("autovacuum_off", "ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
by_sql("slot_inactive", "SELECT pg_create_physical_replication_slot('{database}', true)")


@provokes
async def database_refuses(p: Patient) -> Mend:
    right = p.given["database_url"]
    parts = urlsplit(p.database.dsn)
    p.given["database_url"] = parts._replace(netloc=f"nobody:wrong@{parts.hostname}:{parts.port}").geturl()
    return p.changing(database_url=right)


@provokes_in_tables
async def schema_owner(p: Patient) -> Mend:
    await p.sql("INSERT INTO sea_mq_context (context) VALUES ('other')")

    async def move(finding: Finding) -> None:
        p.given["database_schema"] = "of_its_own"
        await p.command(replace(finding, command="sea-mq-worker migrate"))

    return move


@provokes_in_tables
async def database_clock(p: Patient) -> Mend:
    await p.sql(postgres_clock(right=False))

    async def correct(_finding: Finding) -> None:
        await p.sql(postgres_clock(right=True))

    return correct


@provokes
async def broker_clock(p: Patient) -> Mend:
    right = p.given["nats_url"]
    _, p.given["nats_url"] = await p.stack.enter_async_context(nats_clock(str(right)))
    return p.changing(nats_url=right)


@provokes_in_tables
async def database_read_only(p: Patient) -> Mend:
    owner = await p.session()
    await owner.execute(f"ALTER DATABASE {p.database.name} SET default_transaction_read_only = on")

    async def allow(_finding: Finding) -> None:
        await owner.execute(f"ALTER DATABASE {p.database.name} RESET default_transaction_read_only")

    return allow


@provokes_in_tables
async def table_locked(p: Patient) -> None:
    """As somebody leaves it who went to lunch in the middle of a change."""
    p.given["database_timeout_seconds"] = 0.5
    locking = await p.session()
    await locking.execute("BEGIN; LOCK TABLE outbox_events")


@provokes_in_tables
async def connections_short(p: Patient) -> Mend:
    await p.sql(f"ALTER DATABASE {p.database.name} CONNECTION LIMIT 12")
    return p.changing(database_pool_max=1)


@provokes_in_tables
async def index_invalid(p: Patient) -> None:
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
async def dead_rows(p: Patient) -> Mend:
    """Autovacuum leaves alone what somebody has locked."""
    await p.sql("ALTER TABLE inbox_messages SET (autovacuum_vacuum_threshold = 1)")
    locking = await p.session()
    await locking.execute("BEGIN; LOCK TABLE inbox_messages IN SHARE UPDATE EXCLUSIVE MODE")
    await p.sql(
        "INSERT INTO inbox_messages (message_id, subject)"
        " SELECT gen_random_uuid(), 's' FROM generate_series(1, 50)"
    )
    await p.sql("DELETE FROM inbox_messages")
    dead = "SELECT pg_stat_get_dead_tuples('inbox_messages'::regclass)"
    await eventually(lambda: p.pool.fetchval(f"{dead} = 50"), what="the deleted rows are counted")

    async def mend(finding: Finding) -> None:
        await locking.execute("ROLLBACK")
        await p.sql(finding.sql)
        await eventually(lambda: p.pool.fetchval(f"{dead} = 0"), what="the removed rows are counted")

    return mend


@provokes_in_tables
async def transaction_open_long(p: Patient) -> None:
    impatient(p)
    forgotten = await p.session()
    await forgotten.execute("BEGIN; CREATE TEMPORARY TABLE x ()")


def impatient(p: Patient) -> None:
    """Make five leases less than two seconds."""
    p.given |= {
        "database_timeout_seconds": 0.25,
        "outbox_publish_timeout_seconds": 0.125,
        "outbox_lease_seconds": 0.375,
    }


@provokes_in_tables
async def outbox_unattended(p: Patient) -> Mend:
    await add_event(p.pool, occurred_at=LONG_AGO, available_at=LONG_AGO)

    async def start(finding: Finding) -> None:
        assert finding.command == "sea-mq-worker run"
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published")

    return start


@provokes_in_tables
async def outbox_behind(p: Patient) -> Mend:
    await add_event(p.pool, occurred_at=LONG_AGO, available_at=LONG_AGO, ordering_key="k")
    await p.session("sea_mq_worker outbox")
    return p.changing(outbox_enabled=False)


@provokes_in_tables
async def outbox_dead(p: Patient) -> Mend:
    await add_event(p.pool, "DEAD")

    async def replay(finding: Finding) -> None:
        command = "sea-mq-worker outbox replay --state DEAD --reason mended --actor ann"
        await p.command(replace(finding, command=command))

    return replay


@provokes_in_tables
async def outbox_unpruned(p: Patient) -> Mend:
    published = await add_event(p.pool, "CLAIMED")
    done = "state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = $2"
    await p.pool.execute(f"UPDATE outbox_events SET {done} WHERE id = $1", published, LONG_AGO)
    return p.command


@provokes_in_tables
async def inbox_orphans(p: Patient) -> Mend:
    await p.received(seq=1, hours=0, consumer="another")
    await another_consumer(p, "another")
    return p.changing(consumers=f"{p.given['consumers']},{p.upstream_stream}/another")


async def another_consumer(p: Patient, name: str, **config: object) -> None:
    right = {"ack_wait": 120 * SECOND, "max_ack_pending": 50}
    await create_consumer(p.broker, p.upstream_stream, name, **right, **config)


@provokes_in_tables
async def inbox_stuck(p: Patient) -> Mend:
    await p.received(seq=1, hours=48)
    return p.changing(inbox_backoff_max_seconds=15_000)


# --- NATS

by_setting("broker_unreachable", nats_url=f"nats://{UNUSED}")
by_setting("stream_missing", advisory_stream="NOWHERE")
by_definition("stream_useless", "SEA_EVENTS", no_ack=True)
by_definition("stream_discards_old", "SEA_EVENTS", discard="old")
by_definition("subjects_uncovered", "SEA_EVENTS", subjects=["sea.event.order.>"])
by_definition("dead_letters_short_lived", "SEA_DLQ", max_age=2 * DAY)


@provokes
async def stream_forgetful(p: Patient) -> Mend:
    """What a stream is stored in cannot be changed."""
    delete = f"STREAM.DELETE.{p.name.upper()}_EVENTS"
    await p.ask(delete)
    mend = await p.define("SEA_EVENTS", storage="memory")

    async def make_anew(finding: Finding) -> None:
        await p.ask(delete)
        await mend(finding)

    return make_anew


@provokes
async def topology_differs(p: Patient) -> Mend:
    own = p.name.upper() + "_EVENTS"
    config = (await p.ask(f"STREAM.INFO.{own}"))["config"]
    await p.ask(f"STREAM.UPDATE.{own}", config | {"max_age": 8 * DAY})
    return p.command


@provokes
async def definitions_invalid(p: Patient) -> Mend:
    file = p.files / "SEA_DLQ.json"
    right = file.read_text()
    file.write_text(right[:-2])

    async def correct(finding: Finding) -> None:
        assert str(file) in finding.what
        file.write_text(right)

    return correct


@provokes
async def subjects_elsewhere(p: Patient) -> Mend:
    """The own stream takes every subject that it is asked about, and the other one some of them."""
    mend = await p.define("SEA_EVENTS", subjects=["sea.event.order.>"])
    other = f"{p.name.upper()}_OTHER"
    await create_stream(p.broker, other, f"{p.name}.event.user.>")

    async def remove(finding: Finding) -> None:
        await p.ask(f"STREAM.DELETE.{other}")
        await mend(finding)

    return remove


@provokes
async def stream_nearly_full(p: Patient) -> Mend:
    mend = await p.define("SEA_EVENTS", max_msgs=5)
    for _ in range(4):
        await store(p.broker, f"{p.name}.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})
    return mend


@provokes
async def dead_letters(p: Patient) -> Mend:
    await store(p.broker, f"{p.name}.dlq.made.v1")

    async def purge(_finding: Finding) -> None:
        await p.ask(f"STREAM.PURGE.{p.name.upper()}_DLQ")

    return purge


@provokes
async def consumer_missing(p: Patient) -> Mend:
    right = p.given["consumers"]
    p.given["consumers"] = f"{p.upstream_stream}/nobody"
    return p.changing(consumers=right)


@provokes
async def consumer_paused(p: Patient) -> Mend:
    pause = f"CONSUMER.PAUSE.{p.upstream_stream}.{p.durable}"
    if p.broker.server_version < (2, 11):
        pytest.skip("this nats-server knows no pause")
    await p.ask(pause, {"pause_until": (datetime.now(UTC) + timedelta(hours=1)).isoformat()})

    async def resume(finding: Finding) -> None:
        assert finding.command == f"nats consumer resume {p.upstream_stream} {p.durable}"
        await p.ask(pause, {})

    return resume


async def short_of_patience(p: Patient, **config: object) -> None:
    """Make two ack_waits less than a second."""
    await p.define("consumer", ack_wait=SECOND * 3 // 10, **config)
    p.given["handler_timeout_seconds"] = 0.2


@provokes
async def consumer_stuck(p: Patient) -> Mend:
    await short_of_patience(p, max_ack_pending=1)
    p.given["handler_concurrency"] = 1
    await p.send()
    acknowledge = await p.take()

    async def mend(_finding: Finding) -> None:
        await acknowledge()

    return mend


@provokes
async def consumer_unattended(p: Patient) -> Mend:
    await short_of_patience(p)
    await p.send()

    async def mend(_finding: Finding) -> None:
        await p.take()

    return mend


# --- the handler

by_setting("handler_missing", handler_url="")
by_setting("handler_unreachable", handler_url=f"http://{UNUSED}/handle")


@provokes
async def handler_path(p: Patient) -> Mend:
    p.handler.default = answer(404)

    async def mend(_finding: Finding) -> None:
        p.handler.default = answer(405)

    return mend


# To the settings it is a name like any other; a resolver reads its digits.
by_setting("handler_forbidden", handler_url="http://\uff11\uff16\uff19.254.169.254/handle")


# --- what must fit together

by_definition("window_below_publish", "SEA_EVENTS", duplicate_window=5 * SECOND)
by_definition("window_below_lease", "SEA_EVENTS", duplicate_window=30 * SECOND)
by_definition("window_below_backoff", "SEA_EVENTS", duplicate_window=120 * SECOND)
by_definition("window_delays_replay", "SEA_EVENTS", duplicate_window=2 * DAY)
by_definition("ack_wait_short", "consumer", ack_wait=30 * SECOND)
by_definition("max_deliver_low", "consumer", max_deliver=10)
by_definition("max_ack_pending_low", "consumer", max_ack_pending=10)
by_definition("consumer_filter", "consumer", filter_subject="nothing.of.it")
by_definition("retries_outlive_stream", "upstream", max_age=3600 * SECOND)


@provokes_in_tables
async def event_too_large(p: Patient) -> Mend:
    await add_event(p.pool, payload='{{"text": "{}"}}'.format("x" * 2000))
    return await p.define("SEA_EVENTS", max_msg_size=1000)


@provokes_in_tables
async def message_lost(p: Patient) -> Mend:
    seq = await p.send()
    await p.ask(f"STREAM.PURGE.{p.upstream_stream}")
    await p.received(seq=seq, hours=0)

    async def send_again(finding: Finding) -> None:
        await p.command(finding)
        await p.send(await p.pool.fetchval("SELECT message_id::text FROM inbox_messages"))
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PROCESSED), what="the message has its effect")

    return send_again


@provokes_in_tables
async def inbox_pruned_early(p: Patient) -> Mend:
    await p.send()
    await p.take()
    await add_message(p.pool, processed=True)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    await PostgresOperations(pool=p.pool).prune_inbox(soon, actor="ann", reason="a test")

    async def purge(_finding: Finding) -> None:
        await p.ask(f"STREAM.PURGE.{p.upstream_stream}")

    return purge

"""Causes of each of doctor's findings, on the session's servers; test_doctor.py runs them."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import nats.errors
import pytest

from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.doctor import examine
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.postgres.migrations import set_old_worker
from tests.support.checkups import Mend, Patient
from tests.support.clocks import nats_clock, postgres_clock
from tests.support.handlers import Behaviour, answer, hang, raw
from tests.support.jetstream import DAY, SECOND, create_stream, store
from tests.support.partitions import partition_outbox
from tests.support.rows import add_event
from tests.support.waiting import eventually

LONG_AGO = datetime.now(UTC) - timedelta(days=40)
UNUSED = "127.0.0.1:1"
PROCESSED = "SELECT bool_and(processed_at IS NOT NULL) FROM inbox_messages"
VARIANT = "__"
"""Behind a slug: one of several ways to provoke the same."""

Provoke = Callable[[Patient], Awaitable[Mend | None]]
"""Makes something wrong. What it returns mends it; None: the statements do that the finding prints."""

CASES: dict[str, Provoke] = {}
"""What leaves the tables as they are."""
CASES_OF_TABLES: dict[str, Provoke] = {}
"""What needs tables of its own."""


def mended_by(mend: Callable[[], Awaitable[object]]) -> Mend:
    """Return what mends by a call that needs nothing of the finding."""

    async def fix(_finding: Finding) -> None:
        await mend()

    return fix


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

MADE = "SELECT max(until_at) > now() + interval '7 days' FROM outbox_partitions()"
DROP_LATER_DAYS = """
DO $$ DECLARE leaf text; BEGIN
    FOR leaf IN SELECT relname FROM pg_class WHERE relname ~ '^outbox_events_[0-9]{8}$' AND relkind = 'r'
        AND right(relname, 8) > to_char(now() AT TIME ZONE 'UTC' + interval '2 days', 'YYYYMMDD')
    LOOP EXECUTE format('DROP TABLE %I', leaf); END LOOP;
END $$"""
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"

by_setting("database_unreachable", database_url=f"postgresql://u@{UNUSED}/d")
by_sql("index_missing", "DROP INDEX idx_outbox_due")
by_sql("trigger_disabled__is_missing", "DROP TRIGGER outbox_immutable ON outbox_events")
by_sql("trigger_disabled__by_a_setting", "ALTER DATABASE {database} SET session_replication_role = replica")
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
async def table_locked__but_for_reading(p: Patient) -> None:
    """As while somebody builds an index: changes wait, and give up."""
    p.given["database_timeout_seconds"] = 0.5
    building = await p.session()
    await building.execute("BEGIN; CREATE INDEX x ON inbox_messages (subject)")


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
            await eventually(lambda: p.pool.fetchval(PROCESSED), what="the message has its effect")

    return run_a_worker


# --- NATS

by_setting("broker_unreachable", nats_url=f"nats://{UNUSED}")
by_setting("topology_differs__lacks_a_stream", dlq_stream="NOWHERE")
by_definition("stream_discards_old", "SEA_EVENTS", discard="old")
by_definition("stream_discards_old__of_a_subject", "SEA_EVENTS", max_msgs_per_subject=5)
by_definition("subjects_uncovered", "SEA_EVENTS", subjects=["sea.event.order.>"])


@provokes
async def stream_volatile(p: Patient) -> Mend:
    return await made_anew(p, storage="memory")


@provokes
async def stream_volatile__once_read(p: Patient) -> Mend:
    return await made_anew(p, retention="interest")


async def made_anew(p: Patient, **fields: object) -> Mend:
    """Define what cannot be changed of a stream that is there."""
    delete = f"STREAM.DELETE.{p.name.upper()}_EVENTS"
    await p.ask(delete)
    fix = await p.define("SEA_EVENTS", **fields)

    async def make_anew(finding: Finding) -> None:
        await p.ask(delete)
        await fix(finding)

    return make_anew


@provokes
async def topology_differs(p: Patient) -> Mend:
    own = p.name.upper() + "_EVENTS"
    config = (await p.ask(f"STREAM.INFO.{own}"))["config"]
    await p.ask(f"STREAM.UPDATE.{own}", config | {"max_age": 8 * DAY})
    return p.command


@provokes
async def topology_differs__by_a_broken_file(p: Patient) -> Mend:
    file = p.files / "SEA_DLQ.json"
    right = file.read_text()
    file.write_text(right[:-2])

    async def correct(finding: Finding) -> None:
        assert str(file) in finding.what
        file.write_text(right)

    return correct


@provokes
async def subjects_uncovered__taken_elsewhere(p: Patient) -> Mend:
    """The own stream takes every subject that it is asked about, and the other one some of them."""
    fix = await p.define("SEA_EVENTS", subjects=["sea.event.order.>"])
    other = f"{p.name.upper()}_OTHER"
    await create_stream(p.broker, other, f"{p.name}.event.user.>")

    async def remove(finding: Finding) -> None:
        await p.ask(f"STREAM.DELETE.{other}")
        await fix(finding)

    return remove


@provokes
async def stream_nearly_full(p: Patient) -> Mend:
    fix = await p.define("SEA_EVENTS", max_msgs=5)
    for _ in range(4):
        await store(p.broker, f"{p.name}.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})
    return fix


@provokes
async def stream_full(p: Patient) -> Mend:
    fix = await p.define("SEA_EVENTS", max_msgs=5)
    with contextlib.suppress(nats.errors.Error):
        while True:
            await store(p.broker, f"{p.name}.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})
    return fix


@provokes
async def dead_letters(p: Patient) -> Mend:
    await store(p.broker, f"{p.name}.dlq.made.v1")
    return mended_by(lambda: p.ask(f"STREAM.PURGE.{p.name.upper()}_DLQ"))


@provokes
async def topology_differs__lacks_a_consumer(p: Patient) -> Mend:
    right = p.given["consumers"]
    p.given["consumers"] = f"{p.upstream_stream}/nobody"
    return p.changing(consumers=right)


@provokes
async def consumer_paused(p: Patient) -> Mend:
    pause = f"CONSUMER.PAUSE.{p.upstream_stream}.{p.durable}"
    if p.broker.server_version < (2, 11):
        pytest.skip("this nats-server knows no pause")
    await p.ask(pause, {"pause_until": (datetime.now(UTC) + timedelta(hours=1)).isoformat()})

    return p.command


@provokes
async def consumer_unfit__pushes(p: Patient) -> Mend:
    await p.consumer("another", deliver_subject="nobody")
    p.given["consumers"] = f"{p.given['consumers']},{p.upstream_stream}/another"

    async def make_anew(finding: Finding) -> None:
        await p.command(finding)
        await p.consumer("another")

    return make_anew


async def short_of_patience(p: Patient, **config: object) -> None:
    """Make two ack_waits less than a second."""
    await p.define("consumer", ack_wait=SECOND * 3 // 10, **config)
    p.given["handler_timeout_seconds"] = 0.2


@provokes
async def messages_missed(p: Patient) -> Mend:
    """A full stream, which drops what nobody has fetched."""
    await p.define("upstream", max_msgs=2, discard="old")
    for _ in range(3):
        await p.send()

    async def send_again(_finding: Finding) -> None:
        await p.send()
        await p.take()

    return send_again


@provokes
async def consumer_unattended__with_messages_in_flight(p: Patient) -> Mend:
    await short_of_patience(p, max_ack_pending=1)
    p.given["handler_concurrency"] = 1
    await p.send()
    return mended_by(await p.take())


@provokes
async def consumer_behind(p: Patient) -> Mend:
    """A slow handler: messages are taken one by one, and many wait."""
    await short_of_patience(p)
    count = 300
    for _ in range(count):
        await p.send()

    async def take_slowly() -> None:
        while True:
            await (await p.take())()
            await asyncio.sleep(0.1)

    taking = asyncio.create_task(take_slowly())
    p.stack.callback(taking.cancel)

    async def catch_up(_finding: Finding) -> None:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await p.ask(f"STREAM.PURGE.{p.upstream_stream}", {"keep": 0})

    return catch_up


@provokes
async def consumer_unattended(p: Patient) -> Mend:
    await short_of_patience(p)
    await p.send()
    return mended_by(p.take)


# --- the handler

by_setting("handler_unreachable", handler_url=f"http://{UNUSED}/handle")


def by_answer(slug: str, behaviour: Behaviour) -> None:
    async def provoke(p: Patient) -> Mend:
        p.handler.default = behaviour

        async def fix(_finding: Finding) -> None:
            p.handler.default = answer(405)

        return fix

    CASES[slug] = provoke


by_answer("handler_path", answer(404))
by_answer("handler_path__speaks_no_http", raw(b"220 mail.example ESMTP\r\n"))
by_answer("handler_unreachable__silent", hang)

# --- the worker


async def answering(p: Patient, **told: Any) -> None:
    """Answer as a worker does."""
    server = AdminServer(host="127.0.0.1", port=0, **told)
    await server.start()
    p.stack.push_async_callback(server.close)
    p.given["admin_port"] = server.port


@provokes
async def worker_not_ready(p: Patient) -> Mend:
    """It is guarded by a token, and tells those who do not have it which part pauses, and no more."""
    reasons = {"handler": "the handler rejects message after message: the handler answered 422"}
    token = p.files / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    await answering(p, reasons=lambda: reasons, token=lambda: "s3cret")
    p.given["admin_token_file"] = p.files / "missing"
    found = await p.finds("worker_not_ready")
    assert found["worker_not_ready"].what == "handler"
    p.given["admin_token_file"] = token

    async def heal(finding: Finding) -> None:
        assert finding.what == f"handler: {reasons['handler']}"
        assert (await examine(p.settings())).not_checked == []
        reasons.clear()

    return heal


@provokes_in_tables
async def worker_not_ready__silent(p: Patient) -> Mend:
    """A worker that is stopped, as by a debugger or a machine that is suspended, while an event waits."""
    p.expect_soon()
    worker = await p.stack.enter_async_context(p.worker())
    worker.send(signal.SIGSTOP)
    p.given["admin_port"] = int(worker.address.rpartition(":")[2].strip("/"))
    await add_event(p.pool)

    async def let_continue(finding: Finding) -> None:
        assert "SIGCONT" in finding.fix
        worker.send(signal.SIGCONT)
        await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published")

    return let_continue


@provokes
async def worker_warns(p: Patient) -> Mend:
    warnings = {"event type made": "the handler answered 503"}
    await answering(p, warnings=lambda: warnings)

    async def heal(finding: Finding) -> None:
        assert finding.what == "event type made: the handler answered 503"
        warnings.clear()

    return heal


# --- what must fit together

by_definition("window_short", "SEA_EVENTS", duplicate_window=5 * SECOND)
by_definition("consumer_unfit__ack_wait", "consumer", ack_wait=30 * SECOND)
by_definition("consumer_unfit__max_deliver", "consumer", max_deliver=10)


@provokes
async def clocks_differ__of_nats(p: Patient) -> Mend:
    right = p.given["nats_url"]
    _, p.given["nats_url"] = await p.stack.enter_async_context(nats_clock(str(right)))
    return p.changing(nats_url=right)


@provokes_in_tables
async def events_lost(p: Patient) -> Mend:
    """The stream was set back behind what it had acknowledged."""
    await add_event(p.pool, "PUBLISHED")
    await p.sql("UPDATE outbox_events SET stream = $1, stream_seq = 52221", p.settings().stream)

    async def send_again(_finding: Finding) -> None:
        await replay_matching(p.pool, OutboxFilter(), actor="ann", reason="lost", cap=1)
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published again")

    return send_again


@provokes_in_tables
async def messages_missed__of_the_inbox(p: Patient) -> Mend:
    seq = await p.send()
    await p.ask(f"STREAM.PURGE.{p.upstream_stream}")
    await p.received(seq=seq, hours=0)

    async def send_again(finding: Finding) -> None:
        await p.command(finding)
        await p.send(await p.pool.fetchval("SELECT message_id::text FROM inbox_messages"))
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PROCESSED), what="the message has its effect")

    return send_again

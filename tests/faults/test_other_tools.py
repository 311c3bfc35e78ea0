"""Other tools on the worker's tables: bulk loads, subscriptions, publications, foreign keys and triggers."""

import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from tests.support.jetstream import store
from tests.support.operators import WHY, Answer, World, world_of
from tests.support.partitions import id_of_day, partition_outbox, past_partition
from tests.support.rows import add_event, add_message
from tests.support.servers import QUICK, Database, database_connection, unique
from tests.support.site import Site, site
from tests.support.waiting import eventually

UNSAYABLE = ("0044-03-15 12:00:00+00 BC", "-infinity", "infinity", "10000-01-01 00:00:00+00")
EVENT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at,"
    " created_at, available_at) VALUES ($1, 'order', 'o-1', 'order.created', '{}', $2::text::timestamptz,"
    " $3::text::timestamptz, $4::text::timestamptz)"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, received_at, dead_letter_begun_at, locked_until,"
    " locked_by) SELECT $1, 'a.event.b.v1', at, at, $3::text::timestamptz, 'w'"
    " FROM (SELECT $2::text::timestamptz AS at) given"
)
_IDLE = """
SELECT count(*) = 2 FROM pg_locks
 WHERE locktype = 'advisory' AND classid IN (7177, 7179) AND mode = 'ExclusiveLock' AND granted"""
ODD_TIMES = (
    "0000-00-00",
    "-44-03-15T12:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "\u0661",
)
ODD_BODIES = (b"9" * 5000, b'{"n": 1e%s}' % (b"9" * 400), b'"\\ud800"', b'"\\u0000"', b"[" * 900 + b"]" * 900)


@asynccontextmanager
async def without_triggers(site: Site) -> AsyncIterator[asyncpg.Connection]:
    """Write as a bulk load does, or a logical subscription."""
    async with database_connection(site.dsn) as connection:
        await connection.execute("SET session_replication_role = replica")
        yield connection


@pytest.fixture
async def world(shared: Site, database: Database, nats_url: str, names: str) -> AsyncIterator[World]:
    async with world_of(database, nats_url, names) as made:
        yield made


async def done(world: World, *command: str) -> Answer:
    """Run a command that has to succeed."""
    answer = await world.run(*command)
    assert answer.code == 0, f"{command}: {answer.err or answer.out}"
    return answer


@pytest.mark.fault("O01")
async def test_rows_that_were_loaded_past_the_triggers_spoil_no_other_and_every_command_works_on_them(
    shared: Site, world: World
) -> None:
    unsayable, sayable = [], []
    async with without_triggers(shared) as loading:
        for at in UNSAYABLE:
            unsayable += [str(uuid.uuid4()) for _ in range(2)]
            sayable.append(str(uuid.uuid4()))
            await loading.execute(EVENT, uuid.UUID(unsayable[-2]), at, at, "now")
            await loading.execute(EVENT, uuid.UUID(unsayable[-1]), at, "now", "-infinity")
            await loading.execute(EVENT, uuid.UUID(sayable[-1]), "now", at, "0044-03-15 12:00:00+00 BC")
        messages = [str(uuid.uuid4()) for _ in UNSAYABLE]
        for message, at in zip(messages, UNSAYABLE, strict=True):
            await loading.execute(MESSAGE, uuid.UUID(message), at, "0044-03-15 12:00:00+00 BC")
    good = await shared.commit(20)

    async with shared.worker() as worker:
        await worker.ready()
        for message in messages:
            await store(shared.broker, shared.subject, b"{}", headers={"Nats-Msg-Id": message})
        await shared.published()
        await shared.answered()
        await shared.commit(3)
        await shared.published()
    for event in unsayable:
        row = await shared.database.fetchrow(
            "SELECT state, publish_error, publish_attempts FROM outbox_events WHERE id = $1", event
        )
        assert tuple(row) == (
            "DEAD", "INVALID_OUTBOX: occurred_at is not within the years 1 to 9999", 1,
        )  # fmt: skip
    assert set(await shared.copies()) >= {*good, *sayable}
    assert set(shared.effects.taken) == set(messages)
    for command in (
        *(("depth",), ("outbox", "list"), ("outbox", "summary"), ("inbox", "summary"), ("audit",)),
        ("outbox", "list", "--state", "PUBLISHED"),
        ("inbox", "list", "--state", "PROCESSED"),
        *(("outbox", "show", event) for event in unsayable[::3]),
        *(("where", event) for event in (unsayable[0], messages[0])),
        ("inbox", "show", messages[0]),
    ):
        await done(world, *command)
    await done(world, "depth", "--json")
    await done(world, "outbox", "discard", *unsayable, *WHY, "--yes")
    await done(world, "prune", "--before", "0m", "--side", "outbox", *WHY)
    assert {row["id"] for row in await shared.database.fetch("SELECT id FROM outbox_events")} == set()


@pytest.mark.fault("O01")
async def test_an_operator_ends_events_whose_times_nobody_can_say(shared: Site, world: World) -> None:
    waiting = [str(uuid.uuid4()) for _ in UNSAYABLE]
    async with without_triggers(shared) as loading:
        for event, at in zip(waiting, UNSAYABLE, strict=True):
            await loading.execute(EVENT, uuid.UUID(event), at, at, at)
    marked = await done(world, "outbox", "mark-dead", *waiting, *WHY)
    assert marked.out == f"marked dead {len(waiting)} of {len(waiting)}\n"


async def test_messages_with_odd_times_and_numbers_are_handled_beside_the_others(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        sent = []
        for headers, body in (
            *(({"ce-time": at}, b"{}") for at in ODD_TIMES),
            *(({}, body) for body in ODD_BODIES),
        ):
            sent.append(str(uuid.uuid4()))
            await store(shared.broker, shared.subject, body, headers={"Nats-Msg-Id": sent[-1], **headers})
        sent += await shared.send(5)
        await shared.answered()
        assert "loop_died" not in worker.events()
    letters = {one["Dlq-Message-Id"] for one in await shared.dead_letters()}
    assert set(shared.effects.taken) | letters == set(sent)
    assert set(shared.effects.taken) >= set(sent[-5:])


ORDERS = """
CREATE TABLE orders (event_id UUID CONSTRAINT orders_event REFERENCES outbox_events (id));
CREATE TABLE effects (message UUID CONSTRAINT effects_message REFERENCES inbox_messages ON DELETE RESTRICT);
CREATE TABLE notes (event_id UUID REFERENCES outbox_events (id) ON DELETE CASCADE)
"""


@pytest.mark.fault("O02")
@pytest.mark.parametrize("partitioned", [False, True])
async def test_rows_that_foreign_keys_reference_stay_and_all_others_are_pruned(
    shared: Site, world: World, *, partitioned: bool
) -> None:
    if partitioned:
        await partition_outbox(shared.dsn)
        async with world.pool.acquire() as connection:
            await past_partition(connection, days_ago=2)
    await shared.database.execute(ORDERS)
    old = [await add_event(world.pool, "PUBLISHED", id=id_of_day(2)) for _ in range(5)]
    new = [await add_event(world.pool, "PUBLISHED") for _ in range(2)]
    messages = [await add_message(world.pool, processed=True) for _ in range(3)]
    for event in (old[0], new[0], old[0]):
        await shared.database.execute("INSERT INTO orders VALUES ($1)", event)
    await shared.database.execute("INSERT INTO notes VALUES ($1)", old[1])
    await shared.database.execute("INSERT INTO effects VALUES ($1)", messages[0])

    prune = ("prune", "--before", "0m", *WHY)
    dry = (await done(world, *prune, "--dry-run")).out
    pruned = (await done(world, *prune)).out
    assert dry == (
        "outbox: would delete 5; 2 stay, referenced by orders_event of orders\n"
        "inbox: would delete 2; 1 stay, referenced by effects_message of effects\n"
    )
    assert pruned == dry.replace("would delete", "deleted")
    left = await shared.database.fetch(
        "SELECT id FROM outbox_events UNION SELECT message_id FROM inbox_messages"
    )
    assert {row["id"] for row in left} == {old[0], new[0], messages[0]}
    again = (await done(world, *prune, "--json")).json
    assert again["stay"]["outbox"] == {"count": 2, "by": ["orders_event of orders"]}


@pytest.mark.fault("O02")
async def test_a_foreign_key_of_a_table_that_a_login_may_not_read_stops_its_side_alone(
    shared: Site, world: World
) -> None:
    await shared.database.execute(ORDERS)
    await add_event(world.pool, "PUBLISHED")
    await add_message(world.pool, processed=True)
    login = unique("janitor")
    await shared.database.execute(
        f"CREATE ROLE {login} LOGIN PASSWORD 'p'; GRANT ALL ON ALL TABLES IN SCHEMA public TO {login};"
        f"REVOKE ALL ON orders FROM {login}"
    )
    try:
        url = urlsplit(shared.dsn)
        own = url._replace(netloc=f"{login}:p@{url.hostname}:{url.port}").geturl()
        refused = await world.run("prune", "--before", "0m", *WHY, SEA_MQ_DATABASE_URL=own)
        assert (refused.code, refused.out) == (3, "inbox: deleted 1\n")
        assert "orders_event of orders keeps rows of outbox_events: grant SELECT on orders" in refused.err
    finally:
        await shared.database.execute(f"DROP OWNED BY {login}; DROP ROLE {login}")


@pytest.mark.fault("O03")
async def test_a_publication_that_lets_no_row_change_is_named_and_waited_for(
    shared: Site, world: World
) -> None:
    full, since = "ALTER TABLE outbox_events REPLICA IDENTITY", 18
    if shared.database.get_server_version().major < since:
        pytest.skip("an older PostgreSQL publishes such a table")
    async with shared.worker() as worker:
        await worker.ready()
        await shared.database.execute(f"{full} FULL; CREATE PUBLICATION others FOR TABLE outbox_events")
        await shared.commit(3)
        said = await worker.answers(503, "replica identity and a publication of it do not fit")
        assert "migrate" not in said
        await shared.database.execute(f"{full} USING INDEX outbox_events_pkey")
        await shared.published()
        await worker.ready()
    await shared.audit()


@pytest.mark.fault("O05")
async def test_what_a_subscription_writes_is_published_and_spoils_nothing_else(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    """The publisher's outbox is copied into the subscriber's, which a worker serves."""
    settings = {**QUICK, "wal_level": "logical"}
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedPostgres(Path(folder), settings=settings) as server:
            await migrate(server.dsn)
            async with database_connection(server.dsn) as admin:
                await admin.execute("CREATE DATABASE source")
            source_dsn = urlsplit(server.dsn)._replace(path="/source").geturl()
            await migrate(source_dsn)
            async with (
                site(dsn=server.dsn, nats_url=nats_url, name=names, folder=tmp_path) as made,
                database_connection(source_dsn) as source,
                made.worker(outbox_poll_seconds=0.5) as worker,
            ):
                await worker.ready()
                await source.execute(
                    "CREATE PUBLICATION events FOR TABLE outbox_events WITH (publish = 'insert');"
                )
                await source.execute("SELECT pg_create_logical_replication_slot('events', 'pgoutput')")
                parts = urlsplit(source_dsn)
                await made.database.execute(
                    f"CREATE SUBSCRIPTION events CONNECTION 'host={parts.hostname} port={parts.port}"
                    f" user={parts.username} password={parts.password} dbname=source'"
                    " PUBLICATION events WITH (create_slot = false, slot_name = 'events')"
                )
                own = await made.commit(3, ordering_key="k")
                copied = [str(await add_event(source, ordering_key=key)) for key in (None, "k")]
                far = str(uuid.uuid4())
                await source.execute("SET session_replication_role = replica")
                await source.execute(EVENT, uuid.UUID(far), UNSAYABLE[0], "now", "now")
                wanted = {*own, *copied}
                await eventually(
                    lambda: made.database.fetchval("SELECT count(*) = 6 FROM outbox_events"),
                    what="the subscription has written",
                )
                await made.published()
                assert set(await made.copies()) == wanted
                assert (
                    await made.database.fetchval("SELECT state FROM outbox_events WHERE id = $1", far)
                ) == "DEAD"
                await made.database.execute("DROP SUBSCRIPTION events")


async def send_without_end(connection: asyncpg.Connection) -> None:
    while True:
        await connection.execute("SELECT pg_notify('others', repeat('x', 7000) || random())")


@pytest.mark.fault("O06")
async def test_a_full_queue_of_notifications_keeps_no_producer_from_committing(
    nats_url: str, names: str, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedPostgres(
            Path(folder), settings={**QUICK, "max_notify_queue_pages": "64"}
        ) as server:
            await migrate(server.dsn)
            async with (
                site(dsn=server.dsn, nats_url=nats_url, name=names, folder=tmp_path) as made,
                database_connection(server.dsn) as listening,
                database_connection(server.dsn) as noisy,
                made.worker() as worker,
            ):
                await worker.ready()
                for statement in ("SET application_name = 'sleepy'", "LISTEN others", "BEGIN", "SELECT 1"):
                    await listening.execute(statement)
                with pytest.raises(asyncpg.ProgramLimitExceededError):
                    await send_without_end(noisy)
                await eventually(lambda: made.database.fetchval(_IDLE), what="the worker waits for a wake-up")
                await made.commit(3)
                await made.commit(3, ordering_key="k")
                await made.published()
                async with world_of(Database(dsn=server.dsn, name="postgres"), nats_url, names) as world:
                    told = (await world.run("doctor", "--json")).json
                [full] = [one for one in told if one["slug"] == "notifications_full"]
                assert f"session {listening.get_server_pid()}" == full["where"]
                assert "sleepy" in full["what"]
                assert "database_unreachable" not in {one["slug"] for one in told}
                await made.database.execute(full["sql"])
                await made.commit(3)
                await made.published()

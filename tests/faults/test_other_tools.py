"""Other tools on the worker's tables: bulk loads, subscriptions, publications, foreign keys and triggers."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.support.jetstream import store
from tests.support.operators import WHY, Answer, World, world_of
from tests.support.servers import Database, database_connection
from tests.support.site import Site

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

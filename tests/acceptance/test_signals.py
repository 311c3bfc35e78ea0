"""The life of a worker process: it becomes ready, works, and ends as it was told or as it must."""

import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.handlers import HandlerServer, answer, handler_server
from tests.support.jetstream import connected, store, stored_messages
from tests.support.proxy import proxied
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, apply_streams, deployment, running

EVENTS = 200
STATES = "SELECT state, count(*) FROM outbox_events GROUP BY state"


@pytest.fixture
async def handler() -> AsyncIterator[HandlerServer]:
    async with handler_server(answer(200)) as server:
        yield server


@pytest.fixture
async def target(
    database: Database, nats_url: str, names: str, handler: HandlerServer, tmp_path: Path
) -> Deployment:
    """A migrated database, the streams, and a handler that takes everything."""
    made = deployment(context=names, database_url=database.dsn, nats_url=nats_url, handler_url=handler.url)
    await apply_streams(made, tmp_path / "streams")
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


async def add_events(database: Database, count: int) -> set[str]:
    connection = await asyncpg.connect(database.dsn)
    try:
        async with connection.transaction():
            return {
                str(event_id)
                for event_id in await enqueue(connection, *(enqueueable() for _ in range(count)))
            }
    finally:
        await connection.close()


async def states(database: Database) -> dict[str, int]:
    connection = await asyncpg.connect(database.dsn)
    try:
        return dict(await connection.fetch(STATES))
    finally:
        await connection.close()


async def send_messages(target: Deployment, nats_url: str, count: int) -> set[str]:
    ids = [str(uuid.uuid4()) for _ in range(count)]
    async with connected(nats_url) as connection:
        for message_id in ids:
            await store(connection, f"{target.upstream}.event.made.v1", headers={"Nats-Msg-Id": message_id})
    return set(ids)


async def published_ids(target: Deployment, nats_url: str) -> list[str]:
    async with connected(nats_url) as connection:
        stored = await stored_messages(connection, target.stream)
    return sorted(headers["Nats-Msg-Id"] for *_, headers in stored)


@pytest.mark.clause("POL-047-005")
async def test_it_moves_events_both_ways_and_stops_when_asked(
    target: Deployment, database: Database, nats_url: str, handler: HandlerServer, log: Path
) -> None:
    events = await add_events(database, EVENTS)
    messages = await send_messages(target, nats_url, EVENTS)
    async with running(target, log) as worker:
        await worker.ready()
        await handler.called(EVENTS, within=20)

        async def all_published() -> bool:
            return await states(database) == {"PUBLISHED": EVENTS}

        await eventually(all_published, within=20)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    assert await published_ids(target, nats_url) == sorted(events)
    assert handler.calls_of() == dict.fromkeys(messages, 1)


async def test_a_handler_slower_than_the_servers_patience_is_refused(target: Deployment, log: Path) -> None:
    async with running(target, log, handler_timeout_seconds=120) as worker:
        assert await worker.ended() == 2
    assert "SEA_MQ_HANDLER_TIMEOUT_SECONDS" in worker.written


async def test_a_missing_schema_names_the_command_that_makes_it(
    target: Deployment, postgres_server: PostgresAddress, log: Path
) -> None:
    async with (
        scratch_database(postgres_server, prefix="bare_") as bare,
        running(target, log, database_url=bare.dsn) as worker,
    ):
        assert await worker.ended() == 3
    assert "python -m sea_mq_worker migrate" in worker.written


async def test_a_missing_stream_names_the_command_that_makes_it(
    database: Database, nats_url: str, names: str, log: Path
) -> None:
    target = deployment(
        context=names,
        database_url=database.dsn,
        nats_url=nats_url,
        handler_url="http://127.0.0.1:1/handle",
    )
    async with running(target, log) as worker:
        assert await worker.ended() == 3
    assert "python -m sea_mq_worker streams apply" in worker.written


async def test_it_waits_for_a_database_that_comes_later(
    target: Deployment, database: Database, nats_url: str, log: Path
) -> None:
    events = await add_events(database, 3)
    async with proxied(database.dsn) as (proxy, url):
        proxy.refuse()
        async with running(target, log, database_url=url) as worker:
            assert "the worker is starting" in await worker.answers(503)
            await worker.tells('"waiting"')
            proxy.heal()
            await worker.ready()

            async def arrived() -> bool:
                return await published_ids(target, nats_url) == sorted(events)

            await eventually(arrived)


async def test_a_stop_while_it_waits_for_a_server_is_graceful(
    target: Deployment, database: Database, log: Path
) -> None:
    async with proxied(database.dsn) as (proxy, url):
        proxy.refuse()
        async with running(target, log, database_url=url) as worker:
            await worker.answers(503)
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0

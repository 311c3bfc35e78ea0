"""once: the service's mark of a handled message, in the transaction of the effect, against PostgreSQL."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest

from sea_mq_worker.producer.once import once
from tests.support.documents import blocks
from tests.support.servers import Database
from tests.support.service_libraries import ASYNCHRONOUS, SYNCHRONOUS, Transaction, asyncpg_connection
from tests.support.waiting import eventually


async def is_first(transaction: Transaction, connection: Any, message: UUID) -> bool:
    if transaction in ASYNCHRONOUS:
        async with once(connection, message) as first:
            return first
    with once(connection, message) as first:
        return first


@pytest.mark.parametrize("transaction", [*ASYNCHRONOUS, *SYNCHRONOUS])
async def test_only_the_first_committed_transaction_handles_a_message(
    database: Database, reader: asyncpg.Connection, transaction: Transaction
) -> None:
    message, found = uuid4(), []

    for commit in (False, True, True):
        async with transaction(database.dsn, commit=commit) as connection:
            found.append(await is_first(transaction, connection, message))

    assert found == [True, True, False]


async def test_a_pipeline_of_psycopg_finds_the_first_transaction(database: Database) -> None:
    message, found = uuid4(), []

    with (
        psycopg.connect(database.dsn) as synchronous,
        synchronous.pipeline(),
        once(synchronous, message) as first,
    ):
        found.append(first)
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection, connection.pipeline():
        for each in (message, uuid4()):
            async with once(connection, each) as first:
                found.append(first)

    assert found == [True, False, True]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_concurrent_transaction_waits_and_is_first_only_if_the_other_is_rolled_back(
    database: Database, reader: asyncpg.Connection, commit: bool
) -> None:
    message = uuid4()
    locked = "datname = current_database() AND wait_event_type = 'Lock'"
    waits = "SELECT count(*) FROM pg_stat_activity WHERE " + locked

    async def second() -> bool:
        async with asyncpg_connection(database.dsn) as connection, once(connection, message) as first:
            return first

    async with asyncpg_connection(database.dsn, commit=commit) as connection, once(connection, message):
        waiting = asyncio.create_task(second())
        await eventually(lambda: reader.fetchval(waits), what="the second transaction waits")

    assert await waiting is not commit


async def test_a_mark_holds_the_worker_up_in_nothing_and_is_deleted_with_its_message(
    database: Database, reader: asyncpg.Connection
) -> None:
    deleted, kept = uuid4(), uuid4()
    for message in (deleted, kept):
        await reader.execute("INSERT INTO inbox_messages (message_id, subject) VALUES ($1, 's')", message)
        async with asyncpg_connection(database.dsn) as connection, once(connection, message):
            await reader.execute("SET lock_timeout = 1")
            await reader.execute("UPDATE inbox_messages SET processed_at = received_at")

    await reader.execute("DELETE FROM inbox_messages WHERE message_id = $1", deleted)

    assert [row["message_id"] for row in await reader.fetch("TABLE handled_messages")] == [kept]


async def test_a_mark_outside_a_transaction_or_for_no_uuid_is_refused(reader: asyncpg.Connection) -> None:
    with pytest.raises(ValueError, match="no transaction is open"):
        async with once(reader, uuid4()):
            pass
    with pytest.raises(ValueError, match="badly formed"):
        once(reader, "order-7")


async def test_the_table_may_be_in_a_schema_of_its_own(
    database: Database, reader: asyncpg.Connection
) -> None:
    await reader.execute("CREATE SCHEMA shop; ALTER TABLE handled_messages SET SCHEMA shop")
    async with reader.transaction(), once(reader, uuid4(), schema="shop") as first:
        assert first


async def test_the_handler_of_the_document_applies_an_effect_once(
    database: Database, reader: asyncpg.Connection
) -> None:
    [example] = [text for _, language, text in blocks("docs/how-to/handling.md") if language == "python"]
    await reader.execute("DROP TABLE orders; CREATE TABLE orders (id int, paid bool DEFAULT false)")
    await reader.execute("INSERT INTO orders VALUES (42)")

    async with asyncpg.create_pool(database.dsn, min_size=1) as pool:
        names: dict[str, Any] = {"pool": pool}
        exec(compile(example, "handling.md", "exec"), names)
        message = {"message_id": str(uuid4()), "payload": {"order": 42}}
        assert [await names["handle"](message) for _ in range(2)] == [200, 409]

    assert await reader.fetchval("SELECT paid FROM orders")

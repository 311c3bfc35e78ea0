"""enqueue, over every kind of connection that it takes, against PostgreSQL."""

import contextlib
import sqlite3
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import django.db
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy.ext import asyncio as sa_asyncio

from sea_mq_worker.producer import Event, enqueue, enqueue_sync
from tests.support.builders import enqueueable as event
from tests.support.servers import Database
from tests.support.service_libraries import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    Transaction,
    configured_django,
    psycopg_connection,
    tortoise,
    url,
)


async def produce(transaction: Transaction, dsn: str, *events: Event, commit: bool = True) -> None:
    """Enqueue events in a transaction of a library."""
    async with transaction(dsn, commit=commit) as connection:
        if transaction in ASYNCHRONOUS:
            await enqueue(connection, *events)
        else:
            enqueue_sync(connection, *events)


async def stored(reader: asyncpg.Connection) -> list[Any]:
    return list(
        await reader.fetch(
            "SELECT o.*, payload::text AS payload, headers::text AS headers, metadata::text AS metadata"
            " FROM outbox_events o ORDER BY seq"
        )
    )


# --- one transaction


@pytest.mark.clause("store-01")
@pytest.mark.parametrize("transaction", [*ASYNCHRONOUS, *SYNCHRONOUS])
async def test_events_are_committed_and_rolled_back_with_the_change(
    database: Database, reader: asyncpg.Connection, transaction: Transaction
) -> None:
    lost, kept = event(), [event(ordering_key="k") for _ in range(3)]

    await produce(transaction, database.dsn, lost, commit=False)
    assert await stored(reader) == []
    assert await reader.fetchval("SELECT count(*) FROM orders") == 0

    await produce(transaction, database.dsn, *kept)
    assert [row["id"] for row in await stored(reader)] == [one.id for one in kept]
    assert await reader.fetchval("SELECT count(*) FROM orders") == 1


@pytest.mark.clause("store-01")
async def test_a_connection_that_would_commit_at_once_is_refused(
    database: Database, reader: asyncpg.Connection
) -> None:
    refused = pytest.raises(ValueError, match="no transaction is open")
    with refused:
        await enqueue(reader, event())
    with psycopg.connect(database.dsn, autocommit=True) as connection, refused:
        enqueue_sync(connection, event())
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        with refused:
            await enqueue(connection, event())
    with contextlib.closing(psycopg2.connect(database.dsn)) as connection, refused:
        connection.autocommit = True
        enqueue_sync(connection, event())
    with configured_django(database.dsn), refused:
        enqueue_sync(django.db.connection, event())
    async with tortoise(database.dsn, commit=False) as transaction:
        with refused:
            await enqueue(transaction._parent, event())
    engine = sa.create_engine(url(database.dsn, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as plain, refused:
        enqueue_sync(plain, event())
    engine.dispose()
    async_engine = sa_asyncio.create_async_engine(url(database.dsn, "asyncpg"), isolation_level="AUTOCOMMIT")
    async with sa_asyncio.AsyncSession(async_engine) as session:
        with refused:
            await enqueue(session, event())
    await async_engine.dispose()

    assert await stored(reader) == []


async def test_a_connection_of_another_kind_is_refused_with_a_hint(database: Database) -> None:
    async with asyncpg.create_pool(database.dsn, min_size=1) as pool:
        with pytest.raises(TypeError, match=r"asyncpg\.pool\.Pool.* not a pool or engine"):
            await enqueue(pool, event())
        async with pool.acquire() as connection:
            with pytest.raises(TypeError, match="enqueue and `async with` take asynchronous"):
                enqueue_sync(connection, event())
    sqlite = contextlib.closing(sqlite3.connect(":memory:"))
    with sqlite as other, pytest.raises(TypeError, match=r"sqlite3\.Connection'> is not supported"):
        enqueue_sync(other, event())
    wrong_function = pytest.raises(TypeError, match="enqueue_sync and `with` take synchronous")
    with psycopg.connect(database.dsn) as connection, wrong_function:
        await enqueue(connection, event())


async def test_a_schema_may_be_named(database: Database, reader: asyncpg.Connection) -> None:
    await reader.execute("CREATE SCHEMA shop; ALTER TABLE outbox_events SET SCHEMA shop")
    one = event()

    async with reader.transaction():
        assert await enqueue(reader, one, schema="shop") == [one.id]

    assert await reader.fetchval("SELECT id FROM shop.outbox_events") == one.id
    async with reader.transaction():
        with pytest.raises(ValueError, match="schema's name"):
            await enqueue(reader, event(), schema='x"; --')


# --- what is stored


@pytest.mark.clause("OutboxEvent")
@pytest.mark.parametrize("transaction", [*ASYNCHRONOUS, *SYNCHRONOUS])
async def test_every_field_is_stored_as_given(
    database: Database, reader: asyncpg.Connection, transaction: Transaction
) -> None:
    given: dict[str, Any] = {
        "aggregate_type": "order",
        "aggregate_id": "o:1 100%s ä",
        "event_type": "order.paid",
        "event_version": 3,
        "occurred_at": datetime(2025, 12, 29, 16, 0, 0, 123456, tzinfo=timezone(timedelta(hours=20))),
        "correlation_id": uuid.uuid4(),
        "causation_id": uuid.uuid4(),
        "ordering_key": "k",
        "partition_key": "p",
        "available_at": datetime(2100, 1, 1, tzinfo=UTC),
    }
    one = event(
        **given,
        payload={"a": [None, ":x %s 'ä'"]},
        headers={"x-h": "1"},
        metadata={"by": given["causation_id"]},
    )

    await produce(transaction, database.dsn, one)

    [row] = await stored(reader)
    assert {name: row[name] for name in given} == given
    assert (row["id"], row["state"]) == (one.id, "PENDING")
    assert row["payload"] == """{"a": [null, ":x %s 'ä'"]}"""
    assert row["headers"] == '{"x-h": "1"}'
    assert row["metadata"] == f'{{"by": "{given["causation_id"]}"}}'


@pytest.mark.clause("event-model-12")
async def test_what_is_not_given_has_the_columns_defaults(
    database: Database, reader: asyncpg.Connection
) -> None:
    await produce(psycopg_connection, database.dsn, event())

    [row] = await stored(reader)
    assert row["event_version"] == 1
    assert row["occurred_at"] == row["created_at"] == row["available_at"]
    unset = ("correlation_id", "causation_id", "ordering_key", "partition_key", "headers", "metadata")
    assert [row[name] for name in unset] == [None] * len(unset)


@pytest.mark.clause("event-model-08")
@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (None, "null"),
        ([1, 2.5, "x"], '[1, 2.5, "x"]'),
        (b"[1.00, 12345678901234567890.123456789]", "[1.00, 12345678901234567890.123456789]"),
        ('"text"', '"text"'),
        (r'"no \\u0000 at all"', r'"no \\u0000 at all"'),
    ],
)
async def test_a_payload_keeps_its_json(
    database: Database, reader: asyncpg.Connection, payload: Any, text: str
) -> None:
    await produce(psycopg_connection, database.dsn, event(payload=payload))

    assert [row["payload"] for row in await stored(reader)] == [text]


# --- traces


@pytest.mark.clause("event-model-16")
async def test_the_active_span_is_stored_with_the_event(
    database: Database, reader: asyncpg.Connection
) -> None:
    given = f"00-{1:032x}-{2:016x}-01"

    with TracerProvider().get_tracer("test").start_as_current_span("place order") as span:
        await produce(
            psycopg_connection,
            database.dsn,
            event(metadata={"by": "test"}),
            event(metadata={"traceparent": given}),
        )
    context = span.get_span_context()

    own = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert [row["metadata"] for row in await stored(reader)] == [
        f'{{"by": "test", "traceparent": "{own}"}}',
        f'{{"traceparent": "{given}"}}',
    ]

"""Clauses of the specifications that no other module proves."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.domain.headers import outbound_message
from sea_mq_worker.domain.outcomes import Postponed
from sea_mq_worker.ports.outbox import OutboxRepository
from tests.support.builders import claimed_event
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, opened
from tests.support.servers import Database


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database) as made:
        yield made


def relay(pool: asyncpg.Pool) -> OutboxRepository:
    return PostgresWorld(pool).relay()


@pytest.mark.clause("SDS-047: OutboxEvent's fields")
async def test_the_outbox_begins_with_the_specified_columns(pool: asyncpg.Pool) -> None:
    rows = await pool.fetch(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_name = 'outbox_events'"
    )
    found = {row["column_name"]: tuple(row)[1:] for row in rows}
    expected = {
        "id": ("uuid", "NO", None),
        "aggregate_type": ("text", "NO", None),
        "aggregate_id": ("text", "NO", None),
        "event_type": ("text", "NO", None),
        "event_version": ("integer", "NO", "1"),
        "payload": ("jsonb", "NO", None),
        "occurred_at": ("timestamp with time zone", "NO", "now()"),
        "correlation_id": ("uuid", "YES", None),
        "causation_id": ("uuid", "YES", None),
        "published_at": ("timestamp with time zone", "YES", None),
        "publish_attempts": ("integer", "NO", "0"),
        "publish_error": ("text", "YES", None),
    }
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.clause("SDS-047: idx_outbox_unpublished, idx_outbox_correlation")
@pytest.mark.parametrize(
    ("index", "definition"),
    [
        ("idx_outbox_unpublished", "USING btree (occurred_at) WHERE (published_at IS NULL)"),
        ("idx_outbox_correlation", "USING btree (correlation_id)"),
    ],
)
async def test_the_outbox_has_the_specified_indexes(pool: asyncpg.Pool, index: str, definition: str) -> None:
    found = await pool.fetchval("SELECT pg_get_indexdef($1::text::regclass)", index)
    assert found.endswith(f"ON public.outbox_events {definition}")


@pytest.mark.clause("store-contract: persistence MUST succeed before the event becomes visible")
async def test_an_event_is_claimed_only_once_it_is_committed(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as producer:
        transaction = producer.transaction()
        await transaction.start()
        event_id = await add_event(producer)
        before = await relay(pool).find_unpublished(batch_max=1)
        await transaction.commit()
    after = await relay(pool).find_unpublished(batch_max=1)

    assert before.events == ()
    assert [event.id for event in after.events] == [str(event_id)]


@pytest.mark.clause("store-contract: state updates MUST be durable")
async def test_the_workers_sessions_commit_durably(pool: asyncpg.Pool) -> None:
    durable = await pool.fetchval("SHOW synchronous_commit")
    unlogged = await pool.fetchval(
        "SELECT count(*) FROM pg_class"
        " WHERE relname IN ('outbox_events', 'inbox_messages') AND relpersistence <> 'p'"
    )
    assert (durable, unlogged) == ("on", 0)


@pytest.mark.clause("store-contract: partial updates do not corrupt event state")
async def test_a_statement_with_one_invalid_transition_changes_no_event(pool: asyncpg.Pool) -> None:
    claimed, waiting = await add_event(pool, "CLAIMED"), await add_event(pool)
    with pytest.raises(asyncpg.CheckViolationError, match="not in the lifecycle"):
        await pool.execute(
            "UPDATE outbox_events SET state = 'PUBLISHED', published_at = now(), claimed_at = NULL,"
            " claimed_by = NULL"
        )
    rows = await pool.fetch("SELECT id, state FROM outbox_events")
    assert {row["id"]: row["state"] for row in rows} == {claimed: "CLAIMED", waiting: "PENDING"}


@pytest.mark.clause("event-model: partition_key does not define ordering")
async def test_a_partition_key_delays_no_event(pool: asyncpg.Pool) -> None:
    for _ in range(2):
        await add_event(pool, partition_key="tenant-7")
    first = await relay(pool).find_unpublished(batch_max=1)
    failed = Postponed(first.events[0], "no answer", 60.0, failed=False)
    await relay(pool).increment_attempts(first, [failed])

    second = await relay(pool).find_unpublished(batch_max=1)

    assert first.events[0].seq < second.events[0].seq


@pytest.mark.clause("event-model: metadata MUST NOT affect delivery and is not for the external system")
@pytest.mark.parametrize("metadata", ['{"source": "import", "ordering_key": "k", "Nats-Msg-Id": "x"}', "[1]"])
def test_metadata_stays_inside(metadata: str) -> None:
    given: dict[str, Any] = {"id": str(uuid.uuid4())}
    without = outbound_message(claimed_event(**given), context="sea", source="/sea")
    with_it = outbound_message(claimed_event(**given, metadata=metadata), context="sea", source="/sea")
    assert with_it == without

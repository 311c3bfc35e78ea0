"""Operators' queries read few pages of large tables on any machine, because they use indexes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.operators.lookup import Lookup, lookup_report
from sea_mq_worker.operators.records import READ_MAX, InboxFilter, InboxState, OutboxFilter
from sea_mq_worker.operators.replay import choose
from sea_mq_worker.operators.tables import (
    depth,
    inbox_page,
    outbox_page,
    overview,
    show_inbox,
    show_outbox,
    summary,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.counters.budgets import check
from tests.counters.meters import Servers
from tests.support.rows import opened
from tests.support.servers import scratch_database

LIMIT = 100_000
"""Of all that a sample of the depth counts."""
HOUR = timedelta(hours=1)
UNFINISHED = (EventState.PENDING, EventState.CLAIMED, EventState.DEAD)
UNPROCESSED = (InboxState.WAITING, InboxState.HANDLING, InboxState.DEAD_LETTERED)
# Of 50,000 of each, 200 are unfinished; ids are UUIDv7. Only triggers let no event begin as a published one.
FILL = """
SET LOCAL session_replication_role = replica;
CREATE TEMPORARY TABLE made ON COMMIT DROP AS
SELECT n, now() - n * interval '1 second' AS at,
       ('0' || to_hex(floor(extract(epoch FROM now()) * 1000)::bigint - n * 1000)
        || '70008' || lpad(to_hex(n), 15, '0'))::uuid AS id,
       CASE WHEN n % 250 > 0 THEN 'DONE' WHEN n % 500 > 0 THEN 'DEAD' ELSE 'OPEN' END AS state
  FROM generate_series(0, 49999) n;
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, correlation_id, ordering_key, occurred_at,
        created_at, state, published_at, publish_error)
SELECT id, 'order', n::text, 'order.created', '{}', gen_random_uuid(), 'order-' || n / 10, at,
       at, CASE state WHEN 'DONE' THEN 'PUBLISHED' WHEN 'OPEN' THEN 'PENDING' ELSE state END,
       CASE state WHEN 'DONE' THEN at END, CASE state WHEN 'DEAD' THEN 'no acknowledgement' END
  FROM made;
INSERT INTO inbox_messages
       (message_id, subject, received_at, processed_at, dead_letter_reason, dead_letter_begun_at,
        dead_lettered_at)
SELECT id, 'vibespro.event.made.v1', at, CASE state WHEN 'DONE' THEN at END,
       CASE state WHEN 'DEAD' THEN 'REJECTED' END, CASE state WHEN 'DEAD' THEN at END,
       CASE state WHEN 'DEAD' THEN at END
  FROM made;
"""
EXAMPLES = """
SELECT e.id AS event, e.correlation_id AS correlation, d.id AS dead, d.ordering_key AS key,
       m.message_id AS message, pg_relation_size('outbox_events') / 8192 AS size
  FROM (SELECT * FROM outbox_events WHERE state = 'PUBLISHED' LIMIT 1) e,
       (SELECT * FROM outbox_events WHERE state = 'DEAD' ORDER BY occurred_at LIMIT 1 OFFSET 50) d,
       (SELECT * FROM inbox_messages WHERE processed_at IS NOT NULL LIMIT 1) m
"""
# Of 20,000 unpublished events the oldest are dead.
BACKLOG = """
SET LOCAL session_replication_role = replica;
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, ordering_key, occurred_at, state)
SELECT gen_random_uuid(), 'order', n::text, 'order.created', '{}', 'order-' || n / 10,
       now() - n * interval '1 second',
       CASE WHEN n > 19980 THEN 'DEAD' ELSE 'PENDING' END
  FROM generate_series(1, 20000) n;
"""
pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Large tables, rows to ask for, and who asks."""

    database: str
    pool: asyncpg.Pool
    place: Lookup
    event: UUID
    correlation: UUID
    dead: UUID
    key: str
    message: UUID
    size: int
    """Pages of the outbox."""


@pytest_asyncio.fixture(loop_scope="session")
async def desk(servers: Servers) -> AsyncIterator[Desk]:
    async with scratch_database(servers.postgres, prefix="looks_") as own:
        await migrate(own.dsn)
        connection = await asyncpg.connect(own.dsn)
        try:
            async with connection.transaction():
                await connection.execute(FILL)
            await connection.execute("VACUUM ANALYZE outbox_events, inbox_messages")
            examples = await connection.fetchrow(EXAMPLES)
        finally:
            await connection.close()
        async with opened(own, hints=OPERATOR_HINTS) as pool:
            place = Lookup(pool=pool, connection=None)
            yield Desk(database=own.name, pool=pool, place=place, **examples)


Question: TypeAlias = Callable[[Desk], Awaitable[object]]


def events(*states: EventState, read_max: int | None = READ_MAX, **which: Any) -> Question:
    asked = OutboxFilter(states=states or UNFINISHED, **which)
    return lambda desk: outbox_page(desk.pool, asked, read_max=read_max)


def messages(*states: InboxState, read_max: int = READ_MAX, **which: Any) -> Question:
    asked = InboxFilter(states=states or UNPROCESSED, **which)
    return lambda desk: inbox_page(desk.pool, asked, read_max=read_max)


QUESTIONS: dict[str, Question] = {
    "depth": lambda desk: depth(desk.pool, "outbox"),
    "depth of the inbox": lambda desk: depth(desk.pool, "inbox"),
    "a sample of the depth": lambda desk: depth(desk.pool, "outbox", limit=LIMIT),
    "a sample of the inbox's depth": lambda desk: depth(desk.pool, "inbox", limit=LIMIT),
    "a sample of reasons": lambda desk: overview(desk.pool, sessions="sea_mq_worker upkeep"),
    "outbox list": events(),
    "outbox list --type": events(event_type="order.created"),
    "outbox list --key": lambda desk: events(ordering_key=desk.key)(desk),
    "outbox list --error": events(error_like="nothing says this"),
    "outbox list --after": lambda desk: events(before_id=desk.dead)(desk),
    "outbox list --correlation": lambda desk: events(*EventState, correlation_id=desk.correlation)(desk),
    "outbox list --state PUBLISHED": events(EventState.PUBLISHED),
    "outbox list --state PUBLISHED --until": events(EventState.PUBLISHED, until=datetime.now(UTC) - HOUR),
    "outbox list --state PUBLISHED --key, --read": events(
        EventState.PUBLISHED, ordering_key="nobody's", read_max=2000
    ),
    "outbox summary": lambda desk: summary(desk.pool, "outbox", read_max=LIMIT, groups_max=5),
    "outbox show": lambda desk: show_outbox(desk.pool, desk.event),
    "inbox list": messages(),
    "inbox list --error": messages(error_like="nothing says this"),
    "inbox list --state PROCESSED": messages(InboxState.PROCESSED),
    "inbox list --state PROCESSED --since": messages(InboxState.PROCESSED, since=datetime.now(UTC) - HOUR),
    "inbox list --state PROCESSED --consumer, --read": messages(
        InboxState.PROCESSED, consumer="nobody", read_max=2000
    ),
    "inbox summary": lambda desk: summary(desk.pool, "inbox", read_max=LIMIT, groups_max=5),
    "inbox show": lambda desk: show_inbox(desk.pool, desk.message),
    "where, an event": lambda desk: lookup_report(str(desk.event), desk.place),
    "where, a dead event": lambda desk: lookup_report(str(desk.dead), desk.place),
    "where, a message": lambda desk: lookup_report(str(desk.message), desk.place),
    "where, the beginning of an id": lambda desk: lookup_report(str(desk.event)[:8], desk.place),
    "where, a correlation id": lambda desk: lookup_report(str(desk.correlation), desk.place),
}


async def pages(servers: Servers, database: str, ask: Callable[[], Awaitable[object]]) -> int:
    """Count the pages that a question reads."""
    await ask()  # the first time the driver asks for types, too
    before = await servers.pages(database)
    await ask()
    return await servers.pages(database) - before


async def test_what_operators_ask_reads_few_pages(servers: Servers, desk: Desk) -> None:
    read = {
        asked: await pages(servers, desk.database, partial(question, desk))
        for asked, question in QUESTIONS.items()
    }
    check("pages that the depth of the outbox reads", read["depth"])
    check("pages that an operator's query reads", max(read.values()), read)

    every = events(EventState.PUBLISHED, event_type="nobody's", read_max=None)
    all_read = await pages(servers, desk.database, partial(every, desk))
    assert desk.size <= all_read < desk.size + 50, "in the table's order, and not by its primary key"


async def test_a_backlog_is_listed_by_index_before_it_is_analysed(servers: Servers) -> None:
    async with scratch_database(servers.postgres, prefix="backlog_") as own:
        await migrate(own.dsn)
        async with opened(own, hints=OPERATOR_HINTS) as pool:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(BACKLOG)
            page, dead_ones = partial(outbox_page, pool), partial(choose, pool, limit=1000)
            dead = OutboxFilter(states=(EventState.DEAD,))
            asked = {
                "outbox list": partial(page, OutboxFilter(states=UNFINISHED)),
                "outbox list --state DEAD": partial(page, dead),
                "outbox list --key": partial(page, OutboxFilter(states=UNFINISHED, ordering_key="order-7")),
                "outbox list --type, --read": partial(
                    page, OutboxFilter(states=UNFINISHED, event_type="nobody's"), read_max=500
                ),
                "outbox replay --state DEAD": partial(dead_ones, dead),
            }
            read = {name: await pages(servers, own.name, question) for name, question in asked.items()}
    check(
        "pages that a list or a replay reads in a backlog",
        max(read.values()),
        read,
    )

"""A statement of the loops reads few pages for each row, whatever the statistics of its table.

Each connection of a worker plans a statement once. A plan for an empty table must still serve when the
table is large.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import asyncpg
import pytest

from sea_mq_worker.inbox.message import GivenBack, InboxMessage, Lease
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.tables import BY_INDEX, depth
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.pool import OPERATOR_HINTS, WORKER_HINTS
from sea_mq_worker.postgres.queries import load_named
from tests.counters.budgets import check
from tests.counters.meters import Servers
from tests.counters.test_operator_queries import pages
from tests.support.builders import claimed_event
from tests.support.outboxes import postponed, published, released
from tests.support.partitions import partition_outbox
from tests.support.rows import opened
from tests.support.servers import Database, scratch_database

GATE_ROWS = 24_000
BATCH = 100
"""Rows that a statement changes."""
# Two of three rows are finished, and a tenth of the other events have failed before. Half of the ids belong
# to a later day, which has a partition of its own in a divided outbox. No temporary table: the first one of a
# session makes a schema, and that ends every plan of the other sessions.
FILL = """
SET LOCAL session_replication_role = replica;
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, payload, ordering_key,
        state, published_at, publish_error)
SELECT (left(outbox_id_from(now() + n % 2 * interval '3 days')::text, 14)
           || right(gen_random_uuid()::text, 22))::uuid,
       'order', n::text, 'order.created', '{}', CASE WHEN n % 4 > 1 THEN 'order-' || n / 20 END,
       CASE WHEN n % 3 > 0 THEN 'PUBLISHED' ELSE 'PENDING' END, CASE WHEN n % 3 > 0 THEN now() END,
       CASE WHEN n % 30 = 0 THEN 'no' END
  FROM generate_series(1, $1) n;
INSERT INTO inbox_messages
       (message_id, subject, received_at, processed_at, attempts, consumer, stream, stream_seq, content_hash)
SELECT gen_random_uuid(), 'made', now() - n * interval '1 ms', CASE WHEN n % 3 > 0 THEN now() END,
       1, 'c', 'S', n, 'x'
  FROM generate_series(1, $1) n;
"""
PRUNE_ALL = """
SET LOCAL session_replication_role = replica;
DELETE FROM outbox_events;
DELETE FROM inbox_messages;
"""
ANALYSE = "VACUUM ANALYZE outbox_events, inbox_messages"
WAITING = """
SELECT message_id::text AS id FROM inbox_messages WHERE processed_at IS NULL AND last_error IS NULL LIMIT 20
"""
PUBLISHED = "SELECT id, published_at FROM outbox_events WHERE state = 'PUBLISHED' LIMIT 100"

pytestmark = pytest.mark.asyncio(loop_scope="session")
Prepare: TypeAlias = Callable[[Database, asyncpg.Connection], Awaitable[None]]


async def never_analysed(_own: Database, _owner: asyncpg.Connection) -> None:
    """Leave the tables as the migrations make them."""


async def analysed_while_empty(_own: Database, owner: asyncpg.Connection) -> None:
    await owner.execute(ANALYSE)


async def analysed_when_all_was_pruned(_own: Database, owner: asyncpg.Connection) -> None:
    """Leave pages without a row, so that the planner expects no row however many the table gets."""
    await change(owner, FILL.replace("$1", "900"))
    await change(owner, PRUNE_ALL)
    await owner.execute(ANALYSE)


async def divided_and_analysed_while_empty(own: Database, owner: asyncpg.Connection) -> None:
    await partition_outbox(own.dsn)
    await owner.execute(ANALYSE)


async def change(owner: asyncpg.Connection, script: str) -> None:
    async with owner.transaction():
        await owner.execute(script)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Each statement of the loops, and the pages that it read for each row."""

    servers: Servers
    owner: asyncpg.Connection
    database: str
    loops: asyncpg.Pool
    upkeep: asyncpg.Pool
    operator: asyncpg.Pool
    pages: dict[str, float] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)
    """Events of each lane that the latest run claimed."""

    async def run(self) -> None:
        """Run all of them; a later run replaces the counts of an earlier one."""
        for lane in ("unkeyed", "keyed"):
            await self._outbox(lane, is_keyed=lane == "keyed")
        await self._inbox()
        await self._archive()
        # of each lane: 50 events, and up to 1,000 failed ones for the time since which they wait
        await self._count("depth of the outbox", 2 * 50, partial(depth, self.upkeep, "outbox", limit=50))
        await self._count("depth of the inbox", 50, partial(depth, self.upkeep, "inbox", limit=50))

    async def _outbox(self, lane: str, *, is_keyed: bool) -> None:
        relay, reaper = (self._relay(lease, is_keyed=is_keyed) for lease in (60.0, 0.0))
        claim = await self._count(f"claim, {lane}", BATCH, partial(relay.find_unpublished, batch_max=BATCH))
        self.claimed[lane] = len(claim.events)
        if not claim.events:  # a claim of no event, so that the other statements are planned, too
            claim = replace(claim, token=f"{claim.at.isoformat()} w", events=(claimed_event(),) * BATCH)
        verdicts = published(claim)[:50], postponed(claim)[50:75], released(claim)[75:]
        await self._count(f"publish, {lane}", 50, partial(relay.mark_published_batch, claim, verdicts[0]))
        await self._count(
            f"postpone, {lane}", 25, partial(relay.increment_attempts_batch, claim, verdicts[1])
        )
        await self._count(f"release, {lane}", 25, partial(relay.release, claim, verdicts[2]))
        await relay.find_unpublished(batch_max=BATCH)
        await self._count(f"reap, {lane}", BATCH, reaper.reap)

    def _relay(self, lease_seconds: float, *, is_keyed: bool) -> PostgresOutboxAdapter:
        return PostgresOutboxAdapter(
            pool=self.loops,
            worker="w",
            lease_seconds=lease_seconds,
            ordered=is_keyed,
            hold_dead_keys=True,
            failures_max=9,
            look_max=BATCH,
        )

    async def _inbox(self) -> None:
        inbox = PostgresInboxAdapter(pool=self.loops, worker="w")
        known = [row["id"] for row in await self.owner.fetch(WAITING)]
        new = [str(uuid.uuid4()) for _ in range(BATCH - len(known))]
        entries = [InboxMessage(one, "made", "c", "S", seq, b"x") for seq, one in enumerate(known + new)]
        receipts = await self._count(
            "insert", BATCH, partial(inbox.insert_batch, entries, lease_seconds=60.0)
        )
        leases = [receipt for receipt in receipts if isinstance(receipt, Lease)]
        failures = [(lease, GivenBack("no", counted=True)) for lease in leases[50:75]]
        await self._count("extend", BATCH, partial(inbox.extend, leases, lease_seconds=60.0))
        await self._count("mark_processed", 50, partial(inbox.mark_processed_batch, leases[:50]))
        await self._count("record_error", 25, partial(inbox.record_error_batch, failures))
        for lease in leases[75:]:
            begin = partial(inbox.begin_dead_letter, lease, reason="REJECTED", detail="no")
            await self._count("begin_dead_letter", 1, begin)
        await self._count("mark_dead_lettered", 25, partial(inbox.mark_dead_lettered, leases[75:]))
        overdue = partial(inbox.overdue, stream="S", consumer="c", older_than_seconds=0.0, lease_seconds=60.0)
        await self._count("overdue", BATCH, partial(overdue, after="", limit=BATCH))
        purge = load_named("operators")["record_purge"].sql
        given = uuid.UUID(leases[99].message_id), "purged by a: r", 0
        await self._count("record_purge", 1, partial(self.loops.fetch, purge, *given))

    async def _archive(self) -> None:
        """Compare events with digests that are not theirs, and delete none of them."""
        archive = load_named("pipeline_archive")
        rows = await self.owner.fetch(PUBLISHED)
        keys: Sequence[Any] = (
            [row["id"] for row in rows],
            [row["published_at"] for row in rows],
            ["-"] * len(rows),
        )
        never = keys[0], [row["published_at"].replace(year=2000) for row in rows], keys[2]
        await self._count("altered", BATCH, partial(self.loops.fetch, archive["altered"].sql, *never))
        await self._count("delete", BATCH, partial(self.loops.fetch, archive["delete"].sql, *keys, 0))

    async def prune(self) -> None:
        """Delete what is finished in a range of pages."""
        until = await self.owner.fetchval("SELECT now() + interval '1 minute'")
        sides: tuple[Literal["outbox", "inbox"], ...] = ("outbox", "inbox")
        for side in sides:
            before = await self.servers.pages(self.database)
            deleted = (await prune(self.operator, side, until, cap=1, actor="a", reason="r")).deleted
            self.pages[f"prune the {side}"] = (await self.servers.pages(self.database) - before) / deleted

    async def _count(self, what: str, rows: int, statement: Callable[[], Awaitable[Any]]) -> Any:
        before = await self.servers.pages(self.database)
        result = await statement()
        self.pages[what] = (await self.servers.pages(self.database) - before) / rows
        return result


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rows", [GATE_ROWS, pytest.param(5_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "prepare",
    [never_analysed, analysed_while_empty, analysed_when_all_was_pruned, divided_and_analysed_while_empty],
)
async def test_a_statement_reads_few_pages_for_each_row(
    servers: Servers, prepare: Prepare, rows: int
) -> None:
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(scratch_database(servers.postgres, prefix="plans_"))
        await migrate(own.dsn)
        owner = await asyncpg.connect(own.dsn)
        stack.push_async_callback(owner.close)
        await prepare(own, owner)
        loops, upkeep, operator = [
            await stack.enter_async_context(opened(own, hints=hints))
            for hints in (WORKER_HINTS, BY_INDEX, OPERATOR_HINTS)
        ]
        statements = Statements(
            servers=servers, owner=owner, database=own.name, loops=loops, upkeep=upkeep, operator=operator
        )
        await statements.run()
        await change(owner, FILL.replace("$1", str(rows)))
        await statements.run()
        if rows > GATE_ROWS:
            await statements.run()  # the fill took so long that the driver has prepared all anew
        assert statements.claimed == {"unkeyed": BATCH, "keyed": BATCH}
        await statements.prune()
    is_divided = prepare is divided_and_analysed_while_empty
    per_row = "pages that a statement of the loops reads per row, with any statistics"
    check(
        "the same in partitions" if is_divided else per_row, max(statements.pages.values()), statements.pages
    )


BACKLOG = """
SET LOCAL session_replication_role = replica;
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', n::text, 'order.created', '{}',
       CASE WHEN n % 2 = 0 THEN 'order-' || n / 10 END
  FROM generate_series(1, $1::int) n;
"""
CLAIM = """
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = now() - interval '1 hour', claimed_by = 'w', publish_attempts = 1
 WHERE seq = $1
"""
CLAIMED = "SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED'"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("waiting", [60_000, pytest.param(2_000_000, marks=pytest.mark.long)])
async def test_a_reaper_reads_a_bounded_part_of_a_backlog_and_by_and_by_all_of_it(
    servers: Servers, waiting: int
) -> None:
    async with scratch_database(servers.postgres, prefix="reaper_") as own:
        await migrate(own.dsn)
        owner = await asyncpg.connect(own.dsn)
        async with owner.transaction():
            await owner.execute(BACKLOG.replace("$1", str(waiting)))
            await owner.execute(CLAIM, waiting * 4 // 5)
        await owner.close()
        async with opened(own, hints=WORKER_HINTS) as pool:
            adapter = PostgresOutboxAdapter(
                pool=pool, worker="w", lease_seconds=60.0, ordered=False, hold_dead_keys=False, failures_max=9
            )
            check(
                "pages that one search for expired leases reads", await pages(servers, own.name, adapter.reap)
            )
            assert await pool.fetchval(CLAIMED) == 1, "too far behind for two looks"
            looks = 2
            while await pool.fetchval(CLAIMED):
                assert looks < 2 + waiting // 10_000
                await adapter.reap()
                looks += 1

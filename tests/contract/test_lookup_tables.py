"""The contract of LookupTables, over PostgreSQL and the in-memory fake."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.inbox.dead_letter import conflict_detail
from sea_mq_worker.operators.records import Discarded, OutboxFilter
from sea_mq_worker.operators.tables import PostgresOperations
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.postgres.sessions import PostgresWorkerSession
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.inbox import InboxRow, InboxTable
from sea_mq_worker.testing.operators import InMemoryLookupTables
from sea_mq_worker.testing.outbox import OutboxTable
from tests.support.inboxes import entry
from tests.support.rows import add_event, add_message, opened
from tests.support.servers import Database

REJECTED = "REJECTED: 422"
CONFLICT = "UPDATE inbox_messages SET dead_letter_reason = $2, last_error = $3 WHERE message_id = $1"


@dataclass(kw_only=True)
class PostgresWorld:
    pool: asyncpg.Pool
    dsn: str

    @property
    def tables(self) -> PostgresOperations:
        return PostgresOperations(pool=self.pool)

    async def event(
        self, state: str = "PENDING", *, id_: UUID | None = None, error: str | None = None, **given: Any
    ) -> UUID:
        return await add_event(self.pool, state, id=id_ or uuid.uuid4(), error=error, **given)

    async def message(self, *, processed: bool = False, dead: bool = False, error: str = REJECTED) -> UUID:
        message_id = await add_message(self.pool, processed=processed, dead=dead)
        if dead:
            await self.pool.execute(CONFLICT, message_id, error.partition(":")[0], error)
        return message_id

    async def discard(self, event_id: UUID) -> None:
        selection = OutboxFilter(ids=(event_id,))
        await self.tables.discard([event_id], selection=selection, actor="ann", reason="sent anew")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[str]:
        held = PostgresWorkerSession(
            dsn=self.dsn,
            schema="public",
            worker="w",
            sides=["outbox"],
            silent_seconds=60.0,
            on_event=lambda *_: None,
        )
        await held.start()
        try:
            yield held.id
        finally:
            await held.close()


@dataclass(kw_only=True)
class MemoryWorld:
    now: list[float] = field(default_factory=lambda: [1000.0])

    def __post_init__(self) -> None:
        self.outbox, self.inbox = OutboxTable(self.clock), InboxTable(self.clock)
        self.tables = InMemoryLookupTables(outbox=self.outbox, inbox=self.inbox)

    def clock(self) -> float:
        """Return another time at each call, like a clock of microseconds."""
        self.now[0] += 0.001
        return self.now[0]

    async def event(
        self, state: str = "PENDING", *, id_: UUID | None = None, error: str | None = None, **given: Any
    ) -> UUID:
        id_ = id_ or uuid.uuid4()
        self.outbox.add(str(id_), ordering_key=given.pop("ordering_key", None))
        row = self.outbox.rows[str(id_)]
        row.state, row.error = EventState(state), error
        for name, value in given.items():
            setattr(row, name, str(value))
        return id_

    async def message(self, *, processed: bool = False, dead: bool = False, error: str = REJECTED) -> UUID:
        now, message_id = self.clock(), uuid.uuid4()
        self.inbox.rows[str(message_id)] = InboxRow(
            entry=entry(str(message_id), subject="a.event.b.v1", consumer="durable"),
            received_at=now,
            content_hash=None,
            attempts=3,
            processed_at=now if processed else None,
            dead_letter_reason=error.partition(":")[0] if dead else None,
            dead_letter_begun_at=now if dead else None,
            dead_lettered_at=now if dead else None,
            last_error=error if dead else None,
        )
        return message_id

    async def discard(self, event_id: UUID) -> None:
        row = self.outbox.rows.pop(str(event_id))
        self.tables.discards[event_id] = Discarded(
            at=EPOCH, actor="ann", reason="sent anew", event_type=row.event_type, error=row.error
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[str]:
        self.tables.held.add("00c0ffee")
        yield "00c0ffee"
        self.tables.held.remove("00c0ffee")


World: TypeAlias = MemoryWorld | PostgresWorld


@pytest_asyncio.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        yield PostgresWorld(pool=pool, dsn=database.dsn)


async def listed(world: World, **which: Any) -> list[UUID]:
    return [event.id for event in await world.tables.list_outbox(OutboxFilter(**which))]


@pytest.mark.clause("terms-15")
async def test_events_are_listed_by_each_part_of_a_filter_the_latest_first(world: World) -> None:
    correlation = uuid.uuid4()
    first = await world.event(ordering_key="k", event_type="order.paid")
    second = await world.event("DEAD", error="too LARGE", aggregate_type="cart", aggregate_id="c-7")
    third = await world.event(correlation_id=correlation)

    assert await listed(world) == [third, second, first]
    assert await listed(world, limit=2) == [third, second]
    assert await listed(world, states=(EventState.DEAD,)) == [second]
    assert await listed(world, states=()) == await listed(world, ids=()) == []
    assert await listed(world, ids=(first, uuid.uuid4())) == [first]
    assert await listed(world, event_type="order.paid") == await listed(world, ordering_key="k") == [first]
    assert await listed(world, aggregate_type="cart") == await listed(world, aggregate_id="c-7") == [second]
    assert await listed(world, correlation_id=correlation) == [third]
    assert await listed(world, error_like="Large") == [second]
    assert await listed(world, error_like="%") == []
    [one] = await world.tables.list_outbox(OutboxFilter(ids=(second,)))
    assert (one.state, one.event_type, one.aggregate_id, one.last_error) == (
        "DEAD", "order.created", "c-7", "too LARGE",
    )  # fmt: skip
    assert await listed(world, since=one.created_at) == [third, second]
    assert await listed(world, until=one.created_at) == [first]


async def test_ids_that_begin_alike_are_found_on_both_sides(world: World) -> None:
    events = [await world.event(id_=UUID(f"abcd0000-0000-4000-8000-00000000000{n}")) for n in (1, 2)]
    message = await world.message(processed=True)
    low, high = UUID("abcd" + "0" * 28), UUID("abcd" + "f" * 28)
    found = await world.tables.ids_between(low, high, limit=9)
    assert [(one.side, one.id, one.state, one.name) for one in found] == [
        ("outbox", events[0], "PENDING", "order.created"), ("outbox", events[1], "PENDING", "order.created"),
    ]  # fmt: skip
    assert [one.id for one in await world.tables.ids_between(low, high, limit=1)] == events[:1]
    [found_message] = await world.tables.ids_between(message, message, limit=9)
    assert (found_message.side, found_message.state, found_message.name) == (
        "inbox", "PROCESSED", "a.event.b.v1",
    )  # fmt: skip


async def test_a_message_is_shown_with_its_state(world: World) -> None:
    waiting, dead = await world.message(), await world.message(dead=True)
    shown = [await world.tables.show_inbox(each) for each in (waiting, dead, uuid.uuid4())]
    assert [one and one.state for one in shown] == ["WAITING", "DEAD_LETTERED", None]
    assert shown[1] is not None
    assert (shown[1].dead_letter_reason, shown[1].attempts, shown[1].consumer) == ("REJECTED", 3, "durable")
    assert shown[1].dead_lettered_at is not None


async def test_an_event_waits_for_the_unfinished_ones_before_it_in_its_key(world: World) -> None:
    first = await world.event("DEAD", ordering_key="k", error="too large")
    await world.event("PUBLISHED", ordering_key="k")
    second = await world.event(ordering_key="k")
    await world.event(ordering_key="other")
    last, free = await world.event(ordering_key="k"), await world.event()

    async def earlier(event: UUID, *, limit: int = 9, dead_hold: bool = False) -> list[UUID]:
        [one] = await world.tables.list_outbox(OutboxFilter(ids=(event,)))
        found = await world.tables.earlier_of_key(one, limit=limit, dead_hold=dead_hold)
        return [each.id for each in found]

    assert await earlier(last) == [second]
    assert await earlier(last, dead_hold=True) == [first, second]
    assert await earlier(last, limit=1, dead_hold=True) == [first]
    assert await earlier(second) == await earlier(free, dead_hold=True) == []


async def test_other_contents_of_a_message_are_found_under_their_own_ids_the_latest_first(
    world: World,
) -> None:
    message = await world.message(processed=True)
    noted = f"CONTENT_CONFLICT: {conflict_detail(str(message))}"
    others = [await world.message(dead=True, error=noted) for _ in range(2)]
    await world.message(dead=True)
    assert list(await world.tables.conflicts(message, limit=9)) == others[::-1]
    assert list(await world.tables.conflicts(message, limit=1)) == others[1:]
    assert list(await world.tables.conflicts(others[0], limit=9)) == []


async def test_the_record_of_a_discarded_event_stays(world: World) -> None:
    event = await world.event("DEAD", error="blank type")
    assert await world.tables.discarded(event) is None
    await world.discard(event)
    assert await listed(world, ids=(event,)) == []
    found = await world.tables.discarded(event)
    assert found is not None
    assert (found.actor, found.reason, found.event_type, found.error) == (
        "ann", "sent anew", "order.created", "blank type",
    )  # fmt: skip


async def test_a_session_is_held_as_long_as_its_worker_lives(world: World) -> None:
    async with world.session() as session:
        assert await world.tables.session_is_held(session)
    assert not await world.tables.session_is_held(session)

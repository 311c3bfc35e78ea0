"""Pages of events and of messages, finished ones too, against PostgreSQL."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.operators import tables as listings
from sea_mq_worker.operators.records import InboxFilter, InboxState, OutboxFilter
from sea_mq_worker.operators.tables import RowGoneError, inbox_page, outbox_page, show_outbox
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.partitions import min_id_at
from tests.support.partitions import partition_outbox
from tests.support.rows import add_event, add_message
from tests.support.servers import Database

NOW = datetime.now(UTC).replace(microsecond=0)

Listed: TypeAlias = tuple[list[UUID], UUID | None, int | None]
"""Ids of a page, behind which one it goes on, and how many rows were read where that ended it."""


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def made(minutes_ago: float) -> UUID:
    """Make an id of version 7 at a time."""
    return UUID(int=min_id_at(ago(minutes_ago)).int | 7 << 76 | 2 << 62)


@dataclass(frozen=True, slots=True)
class Outbox:
    pool: asyncpg.Pool

    async def add(self, id_: UUID, *, finished: bool = True) -> UUID:
        """Add an event that occurs now, whenever its id was made."""
        return await add_event(self.pool, "PUBLISHED" if finished else "DEAD", id=id_)

    async def listed(self, *, finished: bool = True, read_max: int | None = None, **which: Any) -> Listed:
        states = (EventState.PUBLISHED if finished else EventState.DEAD,)
        asked = OutboxFilter(states=states, **which)
        page = await outbox_page(self.pool, asked, read_max=read_max)
        return [row.id for row in page.rows], page.next_after, page.read


@dataclass(frozen=True, slots=True)
class Inbox:
    pool: asyncpg.Pool

    async def add(self, id_: UUID, *, finished: bool = True) -> UUID:
        """Add a message that is received now, whenever its id was made."""
        return await add_message(self.pool, message_id=id_, processed=finished, dead=not finished)

    async def listed(self, *, finished: bool = True, read_max: int | None = None, **which: Any) -> Listed:
        states = (InboxState.PROCESSED if finished else InboxState.DEAD_LETTERED,)
        asked = InboxFilter(states=states, **which)
        page = await inbox_page(self.pool, asked, read_max=read_max)
        return [row.message_id for row in page.rows], page.next_after, page.read


Side: TypeAlias = Outbox | Inbox


@pytest.fixture(params=[Outbox, Inbox])
def side(request: pytest.FixtureRequest, pool: asyncpg.Pool) -> Side:
    made_of: Side = request.param(pool)
    return made_of


async def test_finished_ones_come_in_the_order_in_which_their_ids_were_made(side: Side) -> None:
    middle, earliest, latest = [await side.add(made(minutes)) for minutes in (2, 3, 1)]
    await side.add(made(0), finished=False)

    assert await side.listed() == ([latest, middle, earliest], None, None)
    assert await side.listed(since=ago(2)) == ([latest, middle], None, None)
    assert await side.listed(until=ago(2)) == ([earliest], None, None)
    assert await side.listed(since=ago(2.5), until=ago(1.5)) == ([middle], None, None)


async def test_pages_of_finished_ones_follow_each_other_by_id(side: Side) -> None:
    first, second, third = [await side.add(made(minutes)) for minutes in (1, 2, 3)]

    assert await side.listed(limit=2) == ([first, second], second, None)
    assert await side.listed(limit=2, before_id=second) == ([third], None, None)
    assert await side.listed(before_id=made(1.5)) == ([second, third], None, None), "of an event that is gone"
    assert await side.listed(before_id=first, until=ago(2.5)) == ([third], None, None)


async def test_a_read_keeps_its_limit_and_returns_its_end(side: Side) -> None:
    unfinished = [await side.add(made(minutes), finished=False) for minutes in (1, 2, 3)]
    found = await side.add(made(4))
    last = await side.add(made(5), finished=False)

    assert await side.listed(read_max=3) == ([], unfinished[2], 3)
    assert await side.listed(read_max=3, before_id=unfinished[2]) == ([found], None, None)
    assert await side.listed(read_max=4) == ([found], found, 4)
    assert await side.listed(read_max=4, limit=1) == ([found], found, None), "the page is full"
    assert await side.listed(read_max=5) == ([found], last, 5)
    assert await side.listed(read_max=6) == ([found], None, None)
    assert await side.listed(read_max=2, since=ago(2.5)) == ([], unfinished[1], 2)


async def test_ids_without_a_time_leave_the_order_to_the_rows_and_all_are_read(side: Side) -> None:
    added = [await side.add(made(0)), *[await side.add(uuid.uuid4()) for _ in range(9)]]

    assert await side.listed(read_max=1) == (added[::-1], None, None)
    assert await side.listed(read_max=1, limit=4) == (added[:5:-1], added[6], None)
    assert await side.listed(read_max=1, before_id=added[6]) == (added[5::-1], None, None)
    assert await side.listed(until=ago(0)) == ([], None, None)


async def test_unfinished_ones_are_listed_by_when_they_came_whatever_their_ids(side: Side) -> None:
    early, late = [await side.add(made(minutes), finished=False) for minutes in (1, 2)]

    assert await side.listed(finished=False) == ([late, early], None, None)
    assert await side.listed(finished=False, limit=1) == ([late], late, None)
    with pytest.raises(RowGoneError, match="begin again"):
        await side.listed(finished=False, before_id=uuid.uuid4())


async def test_of_unfinished_events_no_more_are_read_either(pool: asyncpg.Pool) -> None:
    paid, *others = [
        await add_event(pool, occurred_at=ago(minutes), event_type=type_)
        for minutes, type_ in ((4, "paid"), (3, "made"), (2, "made"), (1, "made"))
    ]
    await add_event(pool, "PUBLISHED", event_type="paid")

    async def listed(
        *, read_max: int | None = 2, **which: Any
    ) -> tuple[list[UUID], UUID | None, datetime | None]:
        states = (EventState.PENDING, EventState.DEAD)
        asked = OutboxFilter(states=states, event_type="paid", **which)
        page = await outbox_page(pool, asked, read_max=read_max)
        return [row.id for row in page.rows], page.next_after, page.reached

    assert await listed() == ([], others[1], ago(2))
    assert await listed(before_id=others[1]) == ([paid], paid, ago(4))
    assert await listed(read_max=None) == await listed(read_max=5) == ([paid], None, None)
    assert await listed(until=ago(3)) == await listed(ids=(*others, paid)) == ([paid], None, None)


async def test_of_unfinished_messages_no_more_are_read_either(pool: asyncpg.Pool) -> None:
    first, second, third = [await add_message(pool, received_at=ago(minutes)) for minutes in (3, 2, 1)]

    async def listed(read_max: int, **given: Any) -> Listed:
        asked = InboxFilter(states=(InboxState.WAITING, InboxState.DEAD_LETTERED), **given)
        page = await inbox_page(pool, asked, read_max=read_max)
        return [row.message_id for row in page.rows], page.next_after, page.read

    assert await listed(2, consumer="nobody") == ([], second, 2)
    assert await listed(2, before_id=second) == ([first], None, None)
    assert await listed(3) == ([third, second, first], first, 3)
    assert await listed(4) == ([third, second, first], None, None)


@pytest.mark.parametrize(("due", "year"), [("-infinity", 1), ("infinity", 9999), ("20000-01-01", 9999)])
async def test_a_due_time_that_python_cannot_hold_is_shown_as_the_nearest(
    pool: asyncpg.Pool, due: str, year: int
) -> None:
    event_id = await add_event(pool)
    await pool.execute(f"UPDATE outbox_events SET available_at = '{due}'")
    shown = await show_outbox(pool, event_id)
    assert shown
    assert (shown.available_at.year, shown.available_at.tzinfo) == (year, UTC)


async def test_dead_events_are_all_looked_at(pool: asyncpg.Pool) -> None:
    dead = await add_event(pool, "DEAD", event_type="paid")
    await add_event(pool, "DEAD")

    assert await Outbox(pool).listed(finished=False, event_type="paid", read_max=1) == ([dead], None, None)


@pytest.mark.parametrize("many", [4, 3])
async def test_unfinished_events_of_a_key_are_listed_whether_they_are_few_or_many(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(listings, "_OF_A_KEY_MAX", many - 1)
    pending, dead, claimed = [
        await add_event(pool, state, ordering_key="k") for state in ("PENDING", "DEAD", "CLAIMED")
    ]
    for state, key in (("PUBLISHED", "k"), ("PENDING", "other"), ("DEAD", "other")):
        await add_event(pool, state, ordering_key=key)

    async def listed(*states: EventState, **which: Any) -> list[UUID]:
        asked = OutboxFilter(states=states, ordering_key="k", **which)
        return [row.id for row in (await outbox_page(pool, asked)).rows]

    assert await listed(EventState.PENDING, EventState.CLAIMED, EventState.DEAD) == [claimed, dead, pending]
    assert await listed(EventState.DEAD) == [dead]
    assert await listed(EventState.PENDING, EventState.DEAD, before_id=dead) == [pending]
    assert await listed(EventState.PENDING, event_type="order.paid") == []


async def test_pages_continue_from_one_partition_to_the_next(database: Database, pool: asyncpg.Pool) -> None:
    await partition_outbox(database.dsn)
    outbox = Outbox(pool)
    now, ahead, earlier = [await outbox.add(made(days * 1440)) for days in (0, -3, 1)]

    assert await outbox.listed() == ([ahead, now, earlier], None, None)
    assert await outbox.listed(read_max=2, error_like="none") == ([], now, 2)
    assert await outbox.listed(before_id=ahead, limit=1) == ([now], now, None)
    assert await outbox.listed(finished=False, ordering_key="k") == ([], None, None)

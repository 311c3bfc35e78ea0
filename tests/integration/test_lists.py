"""What operators read on PostgreSQL: depth, rows, pages of events and messages, and what the page samples."""

import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators import tables as listings
from sea_mq_worker.operators.changes import close
from sea_mq_worker.operators.records import DeadReason, Depth, InboxFilter, InboxState, OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import (
    BY_INDEX,
    SQL,
    RowGoneError,
    audit,
    dead_events,
    depth,
    inbox_page,
    outbox_page,
    overview,
    show_outbox,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.partitions import min_id_at
from tests.support.inboxes import entry
from tests.support.partitions import partition_outbox
from tests.support.rows import add_event, add_message, opened
from tests.support.servers import Database

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WHO = {"actor": "ann", "reason": "lost"}

Listed: TypeAlias = tuple[list[UUID], UUID | None, int | None]
"""Ids of a page, behind which one it goes on, and how many rows were read where that ended it."""


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def made(minutes_ago: float) -> UUID:
    """Make an id of version 7 at a time."""
    return UUID(int=min_id_at(ago(minutes_ago)).int | 7 << 76 | 2 << 62)


# --- depth, exact and capped at a limit


async def depths(
    pool: asyncpg.Pool, *, side: Literal["outbox", "inbox"] = "outbox", limit: int = 9, oldest: object = ...
) -> list[tuple[int, ...]]:
    """Return count, waiting, the minutes that they wait, scheduled and dead; all with the same oldest."""
    found = [await depth(pool, side), await depth(pool, side, limit=limit)]
    assert oldest is ... or {d.oldest_at for d in found} == {oldest}
    return [(d.count, d.waiting, round(d.waiting_seconds / 60), d.scheduled, d.dead) for d in found]


@pytest.mark.clause("QRY-050")
async def test_the_outbox_depth_counts_unpublished_and_dead_events_separately(pool: asyncpg.Pool) -> None:
    hours = [datetime.now(UTC) - n * HOUR for n in range(4)]
    for state, at in zip(("PENDING", "CLAIMED", "DEAD", "PUBLISHED"), hours, strict=True):
        await add_event(pool, state, occurred_at=at, available_at=at)
    assert await depths(pool, limit=2) == [(3, 2, 60, 0, 1), (2, 2, 60, 0, 1)]
    assert (
        (await depth(pool, "outbox")).oldest_at
        == (await depth(pool, "outbox", limit=2)).oldest_at
        == hours[2]
    )


@pytest.mark.clause("QRY-051")
async def test_the_inbox_depth_counts_unprocessed_messages_and_dead_letters_separately(
    pool: asyncpg.Pool,
) -> None:
    hours = [datetime.now(UTC) - n * HOUR for n in range(4)]
    for n, (processed, dead) in enumerate([(False, False), (False, False), (False, True), (True, False)]):
        await add_message(pool, received_at=hours[n], processed=processed, dead=dead)
    await close(pool, [await add_message(pool)], **WHO)
    assert await depths(pool, side="inbox", limit=2) == [(4, 2, 60, 0, 1), (2, 2, 60, 0, 1)]
    assert (
        (await depth(pool, "inbox")).oldest_at == (await depth(pool, "inbox", limit=2)).oldest_at == hours[2]
    )


@pytest.mark.clause("QRY-050", "QRY-051")
async def test_empty_tables_have_no_depth(pool: asyncpg.Pool) -> None:
    empty = Depth(count=0, oldest_at=None, waiting=0, waiting_seconds=0.0, scheduled=0, dead=0)
    for limit in (None, 9):
        assert await depth(pool, "outbox", limit=limit) == await depth(pool, "inbox", limit=limit) == empty


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_event_waits_since_it_was_due_or_if_it_has_failed_since_it_was_first_tried(
    pool: asyncpg.Pool, key: str | None
) -> None:
    for _ in range(3):
        await add_event(pool, ordering_key=key, occurred_at=NOW - DAY, available_at=NOW + DAY)
    assert await depths(pool, limit=2) == [(3, 0, 0, 3, 0), (2, 0, 0, 2, 0)], "they are scheduled"
    await add_event(pool, ordering_key=key, occurred_at=NOW - DAY)
    assert await depths(pool, limit=2) == [(4, 1, 0, 3, 0), (2, 1, 0, 2, 0)]
    failed = await add_event(pool, "CLAIMED", ordering_key=key, occurred_at=NOW - DAY)
    await pool.execute(
        "UPDATE outbox_events SET state = 'PENDING', claimed_at = NULL, claimed_by = NULL, failures = 1,"
        " publish_error = 'no answer', available_at = now() + interval '1 hour',"
        " first_attempt_at = now() - interval '5 minutes' WHERE id = $1",
        failed,
    )
    assert await depths(pool, limit=2) == [(5, 2, 5, 3, 0), (2, 2, 5, 2, 0)]


async def test_an_event_that_only_a_clock_set_back_keeps_waiting_is_not_scheduled(pool: asyncpg.Pool) -> None:
    await add_event(pool, available_at=datetime.now(UTC) + timedelta(minutes=10))
    await add_event(pool)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        times = ("occurred_at", "created_at", "available_at")
        later = ", ".join(f"{name} = {name} + '1 hour'" for name in times)
        await connection.execute(f"UPDATE outbox_events SET {later}")
    assert [(count, waiting, scheduled) for count, waiting, _, scheduled, _ in await depths(pool)] == [
        (2, 1, 1), (2, 1, 1),
    ]  # fmt: skip


async def test_dead_events_beyond_the_limit_are_not_counted_as_waiting(pool: asyncpg.Pool) -> None:
    for _ in range(3):
        await add_event(pool, "DEAD")
    for waiting in (0, 1, 2, 2):
        assert (await depths(pool, limit=2))[1] == (2, waiting, 0, 0, 2)
        await add_event(pool)


# --- one row


@pytest.mark.clause("lifecycle-29", "terms-15")
@pytest.mark.parametrize("state", list(EventState))
async def test_an_event_is_shown_whole_in_every_state(pool: asyncpg.Pool, state: EventState) -> None:
    event_id = await add_event(
        pool, state, payload='{"total": 1.00, "n": 12345678901234567890123}', headers='{"a": "b"}',
        metadata='{"by": "test"}', error="no answer", partition_key="p",
    )  # fmt: skip
    shown = await show_outbox(pool, event_id)
    assert shown is not None
    assert shown.payload == '{"n": 12345678901234567890123, "total": 1.00}'
    assert (shown.headers, shown.metadata, shown.partition_key) == ('{"a": "b"}', '{"by": "test"}', "p")
    assert (shown.state, shown.last_error) == (state, "no answer")
    assert shown.attempts == (0 if state is EventState.PENDING else 1)
    assert (shown.stream_seq == 5) == (state is EventState.PUBLISHED)


@pytest.mark.parametrize(("due", "year"), [("-infinity", 1), ("infinity", 9999), ("20000-01-01", 9999)])
async def test_a_due_time_that_python_cannot_hold_is_shown_as_the_nearest(
    pool: asyncpg.Pool, due: str, year: int
) -> None:
    event_id = await add_event(pool)
    await pool.execute(f"UPDATE outbox_events SET available_at = '{due}'")
    shown = await show_outbox(pool, event_id)
    assert shown
    assert (shown.available_at.year, shown.available_at.tzinfo) == (year, UTC)


@pytest.mark.clause("terms-15", "QRY-idempotency", "inspection")
async def test_inspection_changes_nothing(pool: asyncpg.Pool) -> None:
    event_id = await add_event(pool, "DEAD")
    everything = "SELECT o.xmin, o.* FROM outbox_events o ORDER BY seq"
    before = await pool.fetch(everything)
    await outbox_page(pool, OutboxFilter())
    await show_outbox(pool, event_id)
    await depth(pool, "outbox")
    await replay_matching(pool, OutboxFilter(), **WHO, cap=9, dry_run=True)
    assert await pool.fetch(everything) == before
    assert await audit(pool, limit=9) == []


# --- pages by each part of a filter


async def test_events_are_found_by_each_part_of_a_filter_the_latest_first(pool: asyncpg.Pool) -> None:
    correlation = uuid.uuid4()
    first = await add_event(pool, occurred_at=ago(3), ordering_key="k", event_type="order.paid")
    second = await add_event(
        pool, "DEAD", occurred_at=ago(2), error="too LARGE", aggregate_type="cart", aggregate_id="c-7"
    )
    third = await add_event(pool, occurred_at=ago(1), correlation_id=correlation)
    for which, found in (
        ({}, [third, second, first]),
        ({"limit": 2}, [third, second]),
        ({"states": (EventState.DEAD,)}, [second]),
        ({"states": ()}, []),
        ({"ids": ()}, []),
        ({"ids": (first, uuid.uuid4())}, [first]),
        ({"event_type": "order.paid"}, [first]),
        ({"ordering_key": "k"}, [first]),
        ({"aggregate_type": "cart"}, [second]),
        ({"aggregate_id": "c-7"}, [second]),
        ({"correlation_id": correlation}, [third]),
        ({"error_like": "Large"}, [second]),
        ({"error_like": "%"}, []),
        ({"since": ago(2)}, [third, second]),
        ({"until": ago(2)}, [first]),
    ):
        page = await outbox_page(pool, OutboxFilter(**which), read_max=None)  # type: ignore[arg-type]
        assert [row.id for row in page.rows] == found, which


async def test_messages_are_found_by_each_part_of_a_filter_the_latest_first(pool: asyncpg.Pool) -> None:
    waiting = await add_message(pool, received_at=ago(4))
    dead = await add_message(pool, received_at=ago(3), dead=True)
    processed = await add_message(pool, received_at=ago(2), processed=True)
    handling = await add_message(pool, received_at=ago(1))
    await PostgresInboxAdapter(pool=pool, worker="w").insert_batch([entry(str(handling))], lease_seconds=60)
    by_state = dict(zip(InboxState, (waiting, handling, processed, dead), strict=True))
    for which, found in (
        ({}, [handling, processed, dead, waiting]),
        *(({"states": (state,)}, [message]) for state, message in by_state.items()),
        ({"ids": (dead,)}, [dead]),
        ({"consumer": "other"}, []),
        ({"subject": "other"}, []),
        ({"reason": "REJECTED"}, [dead]),
        ({"error_like": "rejected"}, [dead]),
        ({"since": ago(2.5)}, [handling, processed]),
        ({"until": ago(2.5)}, [dead, waiting]),
        ({"limit": 2}, [handling, processed]),
        ({"limit": 2, "before_id": processed}, [dead, waiting]),
    ):
        page = await inbox_page(pool, InboxFilter(**which), read_max=None)  # type: ignore[arg-type]
        assert [row.message_id for row in page.rows] == found, which


# --- pages of finished and of unfinished rows, and their bounds


@dataclass(frozen=True, slots=True)
class Outbox:
    pool: asyncpg.Pool

    async def add(self, id_: UUID, *, finished: bool = True) -> UUID:
        """Add an event that occurs now, whenever its id was made."""
        return await add_event(self.pool, "PUBLISHED" if finished else "DEAD", id=id_)

    async def listed(self, *, finished: bool = True, read_max: int | None = None, **which: Any) -> Listed:
        states = (EventState.PUBLISHED if finished else EventState.DEAD,)
        page = await outbox_page(self.pool, OutboxFilter(**{"states": states} | which), read_max=read_max)
        return [row.id for row in page.rows], page.next_after, page.read


@dataclass(frozen=True, slots=True)
class Inbox:
    pool: asyncpg.Pool

    async def add(self, id_: UUID, *, finished: bool = True) -> UUID:
        """Add a message that is received now, whenever its id was made."""
        return await add_message(self.pool, message_id=id_, processed=finished, dead=not finished)

    async def listed(self, *, finished: bool = True, read_max: int | None = None, **which: Any) -> Listed:
        states = (InboxState.PROCESSED if finished else InboxState.DEAD_LETTERED,)
        page = await inbox_page(self.pool, InboxFilter(**{"states": states} | which), read_max=read_max)
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


async def test_of_unfinished_events_no_more_are_read_but_of_dead_ones_all(pool: asyncpg.Pool) -> None:
    paid, *others = [
        await add_event(pool, occurred_at=ago(minutes), event_type=type_)
        for minutes, type_ in ((4, "paid"), (3, "made"), (2, "made"), (1, "made"))
    ]
    await add_event(pool, "PUBLISHED", event_type="paid")
    unfinished = {"states": (EventState.PENDING, EventState.DEAD), "event_type": "paid"}

    async def listed(read_max: int | None = 2, **which: Any) -> tuple[list[UUID], UUID | None, object]:
        page = await outbox_page(pool, OutboxFilter(**unfinished | which), read_max=read_max)  # type: ignore[arg-type]
        return [row.id for row in page.rows], page.next_after, page.reached

    assert await listed() == ([], others[1], ago(2))
    assert await listed(before_id=others[1]) == ([paid], paid, ago(4))
    assert await listed(read_max=None) == await listed(read_max=5) == ([paid], None, None)
    assert await listed(until=ago(3)) == await listed(ids=(*others, paid)) == ([paid], None, None)
    dead = await add_event(pool, "DEAD", event_type="paid", occurred_at=ago(9))
    await add_event(pool, "DEAD")
    assert await listed(read_max=1, states=(EventState.DEAD,)) == ([dead], None, None)


async def test_of_unfinished_messages_no_more_are_read_either(pool: asyncpg.Pool) -> None:
    first, second, third = [await add_message(pool, received_at=ago(minutes)) for minutes in (3, 2, 1)]

    async def listed(read_max: int, **which: Any) -> Listed:
        states = (InboxState.WAITING, InboxState.DEAD_LETTERED)
        return await Inbox(pool).listed(read_max=read_max, states=states, **which)

    assert await listed(2, consumer="nobody") == ([], second, 2)
    assert await listed(2, before_id=second) == ([first], None, None)
    assert await listed(3) == ([third, second, first], first, 3)
    assert await listed(4) == ([third, second, first], None, None)


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


# --- what the page samples, within bounds


@pytest.fixture
async def sampling(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, hints=BY_INDEX) as made:
        yield made


async def test_reasons_are_counted_the_most_frequent_first_and_workers_by_their_sessions(
    sampling: asyncpg.Pool, database: Database
) -> None:
    for error in ("too large", None, "too large", *map(str, range(8))):
        await add_event(sampling, "DEAD", error=error)
    await add_event(sampling, "PUBLISHED")
    await add_event(sampling, error="failed once")
    for _ in range(2):
        await add_message(sampling, dead=True)
    await close(sampling, [await add_message(sampling)], **WHO)
    other = await asyncpg.connect(database.dsn, server_settings={"application_name": "upkeep"})
    found = await overview(sampling, sessions="upkeep")
    await other.close()
    assert found.reasons["outbox"][0] == DeadReason(text="too large", count=2)
    assert len(found.reasons["outbox"]) == 5
    assert found.reasons["inbox"] == [DeadReason(text="REJECTED", count=2)]
    assert found.workers == 1


async def test_dead_events_are_listed_page_by_page_and_by_type_and_error(sampling: asyncpg.Pool) -> None:
    dead = [
        await add_event(sampling, "DEAD", error=f"too LARGE {n}", event_type=f"t{n % 2}") for n in range(5)
    ]
    await add_event(sampling)
    last = 0

    async def listed(**given: Any) -> list[UUID]:
        nonlocal last
        filters: dict[str, Any] = {"event_type": None, "error": None, "below": None, "limit": 10, **given}
        found = await dead_events(sampling, **filters)
        last = found[-1].seq
        return [event.id for event in found]

    assert await listed() == dead[::-1]
    assert await listed(event_type="t1") == [dead[3], dead[1]]
    assert await listed(error="large 4") == [dead[4]]
    assert await listed(limit=2) == [dead[4], dead[3]]
    assert await listed(below=last) == dead[2::-1]


async def test_no_sample_reads_through_what_is_published(sampling: asyncpg.Pool) -> None:
    """The planner overrates how much is unpublished and dead where most of the unpublished are dead."""
    columns = "id, aggregate_type, aggregate_id, event_type, payload, state, published_at"
    row = "SELECT gen_random_uuid(), 'order', 'o', 't', '{}', $1, $2::timestamptz FROM generate_series(1, $3)"
    async with sampling.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for state, published_at, count in (("PUBLISHED", datetime.now(UTC), 4000), ("DEAD", None, 2000)):
            insert = f"INSERT INTO outbox_events ({columns}) {row}"
            await connection.execute(insert, state, published_at, count)
    await sampling.execute("VACUUM ANALYZE outbox_events")
    for statement, given in (
        ("overview", (100, 5, "upkeep")),
        ("dead_events", (None, None, None, 100, 10)),
        ("outbox_depth_capped", (100,)),
        ("inbox_depth_capped", (100,)),
    ):
        plan = "\n".join(row[0] for row in await sampling.fetch(f"EXPLAIN {SQL[statement].sql}", *given))
        assert not re.search(r"Seq Scan on (outbox_events|inbox_messages)", plan), plan

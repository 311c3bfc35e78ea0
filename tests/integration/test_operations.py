"""Operators' queries and changes on PostgreSQL (Open Outbox, operator; QRY-050, QRY-051)."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.operators.changes import close, mark_dead
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.records import Depth, OutboxFilter
from sea_mq_worker.operators.replay import ReplayResult, begin, choose, feed_replay, replay_matching
from sea_mq_worker.operators.tables import audit, depth, outbox_page, show_outbox
from sea_mq_worker.outbox.event import EventState
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, add_message

WHO: dict[str, Any] = {"actor": "ann", "reason": "the stream lost them"}
FAR_AHEAD = datetime(2100, 1, 1, tzinfo=UTC)

Add = Callable[..., Awaitable[UUID]]
Replay = Callable[..., Awaitable[ReplayResult]]


@pytest.fixture
def add(pool: asyncpg.Pool) -> Add:
    return partial(add_event, pool)


@pytest.fixture
def replay(pool: asyncpg.Pool) -> Replay:
    return partial(replay_matching, pool, **{**WHO, "cap": 1000})


async def listed(pool: asyncpg.Pool, **given: Any) -> list[UUID]:
    return [event.id for event in (await outbox_page(pool, OutboxFilter(**given), read_max=None)).rows]


async def everything(pool: asyncpg.Pool) -> list[Any]:
    return list(await pool.fetch("SELECT o.xmin, o.* FROM outbox_events o ORDER BY seq"))


# --- depth


@pytest.mark.clause("QRY-050")
async def test_the_outbox_depth_counts_unpublished_and_dead_events_separately(
    pool: asyncpg.Pool, add: Add
) -> None:
    hours = [datetime.now(UTC) - timedelta(hours=n) for n in range(4)]
    await add(occurred_at=hours[0])
    await add("CLAIMED", occurred_at=hours[1], available_at=hours[1])
    await add("DEAD", occurred_at=hours[2], available_at=hours[2])
    await add("PUBLISHED", occurred_at=hours[3], available_at=hours[3])

    exact = await depth(pool, "outbox")
    capped = await depth(pool, "outbox", limit=2)

    assert (exact.count, exact.oldest_at, exact.waiting, exact.dead) == (3, hours[2], 2, 1)
    assert exact.waiting_seconds == pytest.approx(3600, abs=30)
    assert (capped.count, capped.oldest_at, capped.waiting, capped.dead) == (2, hours[2], 2, 1)
    assert capped.waiting_seconds == pytest.approx(3600, abs=30)


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_event_that_is_not_due_yet_is_scheduled_and_does_not_wait(
    pool: asyncpg.Pool, add: Add, key: str | None
) -> None:
    long_ago, tomorrow = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    for _ in range(3):
        await add(ordering_key=key, occurred_at=long_ago, available_at=tomorrow)

    async def depths() -> list[tuple[float, ...]]:
        asked = [await depth(pool, "outbox"), await depth(pool, "outbox", limit=2)]
        return [(d.count, d.waiting, round(d.waiting_seconds / 60), d.scheduled) for d in asked]

    assert await depths() == [(3, 0, 0, 3), (2, 0, 0, 2)]
    await add(ordering_key=key, occurred_at=long_ago)
    assert await depths() == [(4, 1, 0, 3), (2, 1, 0, 2)], "it waits since it was due"
    await add(ordering_key=key, occurred_at=long_ago, available_at=datetime.now(UTC) - timedelta(minutes=5))
    assert await depths() == [(5, 2, 5, 3), (2, 2, 5, 2)]


async def test_an_event_that_only_a_clock_set_back_keeps_waiting_is_not_scheduled(
    pool: asyncpg.Pool, add: Add
) -> None:
    await add(available_at=datetime.now(UTC) + timedelta(minutes=10))
    await add()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        later = ", ".join(
            f"{name} = {name} + '1 hour'" for name in ("occurred_at", "created_at", "available_at")
        )
        await connection.execute(f"UPDATE outbox_events SET {later}")
    for found in (await depth(pool, "outbox"), await depth(pool, "outbox", limit=9)):
        assert (found.count, found.waiting, found.scheduled) == (2, 1, 1)


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_event_that_has_failed_waits_since_it_was_first_tried(
    pool: asyncpg.Pool, add: Add, key: str | None
) -> None:
    event = await add("CLAIMED", ordering_key=key, occurred_at=datetime.now(UTC) - timedelta(days=1))
    await pool.execute(
        "UPDATE outbox_events SET state = 'PENDING', claimed_at = NULL, claimed_by = NULL, failures = 1,"
        " publish_error = 'no answer', available_at = now() + interval '1 hour',"
        " first_attempt_at = now() - interval '1 hour' WHERE id = $1",
        event,
    )

    for found in (await depth(pool, "outbox"), await depth(pool, "outbox", limit=9)):
        assert (found.count, found.waiting, found.scheduled) == (1, 1, 0)
        assert found.waiting_seconds == pytest.approx(3600, abs=30)


async def test_dead_events_beyond_the_limit_are_not_counted_as_waiting(pool: asyncpg.Pool, add: Add) -> None:
    for _ in range(3):
        await add("DEAD")

    for waiting in (0, 1, 2, 2):
        capped = await depth(pool, "outbox", limit=2)
        assert (capped.count, capped.waiting, capped.dead) == (2, waiting, 2)
        await add()


@pytest.mark.clause("QRY-051")
async def test_the_inbox_depth_counts_unprocessed_messages_and_dead_letters_separately(
    pool: asyncpg.Pool,
) -> None:
    hours = [datetime.now(UTC) - timedelta(hours=n) for n in range(4)]
    for n, (processed, dead) in enumerate([(False, False), (False, False), (False, True), (True, False)]):
        await add_message(pool, received_at=hours[n], processed=processed, dead=dead)
    await close(pool, [await add_message(pool)], **WHO)

    exact = await depth(pool, "inbox")
    capped = await depth(pool, "inbox", limit=2)

    assert (exact.count, exact.oldest_at, exact.waiting, exact.dead) == (4, hours[2], 2, 1)
    assert exact.waiting_seconds == pytest.approx(3600, abs=30)
    assert (capped.count, capped.oldest_at, capped.waiting, capped.dead) == (2, hours[2], 2, 1)


@pytest.mark.clause("QRY-050", "QRY-051")
async def test_empty_tables_have_no_depth(pool: asyncpg.Pool) -> None:
    empty = Depth(count=0, oldest_at=None, waiting=0, waiting_seconds=0.0, scheduled=0, dead=0)

    assert await depth(pool, "outbox") == await depth(pool, "inbox") == empty
    assert await depth(pool, "outbox", limit=9) == empty
    assert await depth(pool, "inbox", limit=9) == empty


# --- inspection


@pytest.mark.clause("lifecycle-29", "terms-15")
@pytest.mark.parametrize("state", list(EventState))
async def test_an_event_is_shown_whole_in_every_state(
    pool: asyncpg.Pool, add: Add, state: EventState
) -> None:
    event_id = await add(
        state, payload='{"total": 1.00, "n": 12345678901234567890123}', headers='{"a": "b"}',
        metadata='{"by": "test"}', error="no answer", partition_key="p",
    )  # fmt: skip

    shown = await show_outbox(pool, event_id)

    assert shown is not None
    assert shown.payload == '{"n": 12345678901234567890123, "total": 1.00}'
    assert (shown.headers, shown.metadata, shown.partition_key) == ('{"a": "b"}', '{"by": "test"}', "p")
    assert (shown.state, shown.last_error) == (state, "no answer")
    assert shown.attempts == (0 if state is EventState.PENDING else 1)
    assert (shown.stream_seq == 5) == (state is EventState.PUBLISHED)


@pytest.mark.clause("terms-15", "QRY-idempotency", "inspection")
async def test_inspection_changes_nothing(add: Add, pool: asyncpg.Pool, replay: Replay) -> None:
    event_id = await add("DEAD")
    before = await everything(pool)

    await listed(pool)
    await show_outbox(pool, event_id)
    await depth(pool, "outbox")
    await replay(OutboxFilter(), dry_run=True)

    assert await everything(pool) == before
    assert await audit(pool, limit=9) == []


# --- replay


@pytest.mark.clause("lifecycle-15")
async def test_a_dead_event_starts_a_new_lifecycle_at_once(
    pool: asyncpg.Pool, add: Add, replay: Replay
) -> None:
    event_id = await add("DEAD", error="too large")

    result = await replay(OutboxFilter(ids=(event_id,)))

    assert result == ReplayResult(matched=1, replayed=1)
    shown = await show_outbox(pool, event_id)
    assert shown is not None
    assert (shown.state, shown.attempts, shown.failures, shown.last_error) == ("PENDING", 0, 0, None)
    assert shown.first_attempt_at is None
    assert shown.available_at <= datetime.now(UTC) + timedelta(seconds=1)


@pytest.mark.clause("lifecycle-15", "replay-delivered")
async def test_a_published_event_is_due_again_at_once_and_knows_its_earlier_copy(
    pool: asyncpg.Pool, add: Add, replay: Replay
) -> None:
    event_id = await add("PUBLISHED", occurred_at=datetime.now(UTC) - timedelta(days=1))

    await replay(OutboxFilter())

    shown = await show_outbox(pool, event_id)
    assert shown is not None
    assert (shown.state, shown.published_at, shown.attempts) == ("PENDING", None, 0)
    assert shown.available_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert (shown.stream, shown.stream_seq) == ("SEA_EVENTS", 5)
    found = await depth(pool, "outbox")
    assert (found.waiting, found.scheduled) == (1, 0)
    assert found.waiting_seconds < 60, "it waits since its replay"


@pytest.mark.clause("lifecycle-12", "lifecycle-15")
async def test_only_terminal_events_of_the_chosen_states_are_replayed(
    pool: asyncpg.Pool, add: Add, replay: Replay
) -> None:
    added = {state: await add(state) for state in EventState}

    dead_only = await replay(OutboxFilter(states=(EventState.DEAD, EventState.CLAIMED)))
    assert dead_only == ReplayResult(matched=1, replayed=1)
    await replay(OutboxFilter())

    states = {
        event.id: event.state for event in (await outbox_page(pool, OutboxFilter(), read_max=None)).rows
    }
    assert states == dict.fromkeys(added.values(), "PENDING") | {added[EventState.CLAIMED]: "CLAIMED"}


@pytest.mark.clause("event-model-15")
async def test_replays_keep_the_order_of_their_key(add: Add, pool: asyncpg.Pool, replay: Replay) -> None:
    """The earlier event waits for its duplicate window's end, and the later one for the earlier."""
    earlier = await add("PUBLISHED", ordering_key="k")
    later = await add("DEAD", ordering_key="k")
    await replay(OutboxFilter())
    later_on = "UPDATE outbox_events SET available_at = now() + '1 hour'::interval WHERE id = $1"
    await pool.execute(later_on, earlier)
    relay = PostgresWorld(pool).relay(ordered=True)

    assert (await relay.find_unpublished(batch_max=9)).events == ()
    await pool.execute("UPDATE outbox_events SET available_at = now() WHERE id = $1", earlier)
    claim = await relay.find_unpublished(batch_max=9)

    assert [event.id for event in claim.events] == [str(earlier), str(later)]


@pytest.mark.clause("terms-16", "audit")
async def test_a_large_replay_goes_in_batches_the_earliest_first_and_is_recorded_once(
    add: Add, pool: asyncpg.Pool
) -> None:
    added = [await add("DEAD") for _ in range(7)]
    which = OutboxFilter(event_type="order.created")
    chosen = await choose(pool, which, limit=9)
    replay = await begin(pool, which, **WHO)

    steps = feed_replay(pool, replay, chosen, per_second=3, ahead=9)
    seen = [(step.done, step.replayed) async for step in steps]

    order = [row["id"] for row in await pool.fetch("SELECT id FROM outbox_events ORDER BY available_at, seq")]
    assert order == added
    assert seen == [(3, 3), (6, 6), (7, 7)]
    [action] = await audit(pool, limit=9)
    assert (action.actor, action.action, action.reason, action.affected) == (
        "ann", "replay", "the stream lost them", 7,
    )  # fmt: skip
    assert json.loads(action.selection) == {
        "event_type": "order.created",
        "states": ["PUBLISHED", "DEAD"],
        "progress": {"through": chosen[-1].seq, "finished": True},
    }


@pytest.mark.clause("lifecycle-23")
async def test_two_operators_who_replay_at_once_replay_each_event_once(
    pool: asyncpg.Pool, add: Add, replay: Replay
) -> None:
    for _ in range(6):
        await add("DEAD")

    results = await asyncio.gather(*(replay(OutboxFilter()) for _ in range(2)))

    assert sum(result.replayed for result in results) == 6
    assert sum(action.affected for action in await audit(pool, limit=9)) == 6


@pytest.mark.clause("terms-16")
@pytest.mark.fault("S18")
@pytest.mark.parametrize("who", [{"actor": " "}, {"reason": ""}])
async def test_a_change_needs_an_actor_and_a_reason(
    add: Add, pool: asyncpg.Pool, who: dict[str, str], replay: Replay
) -> None:
    event_id = await add("DEAD")
    before = await everything(pool)

    with pytest.raises(ValueError, match="an actor and a reason"):
        await replay(OutboxFilter(), **who)
    with pytest.raises(ValueError, match="an actor and a reason"):
        await mark_dead(pool, [event_id], **WHO | who)
    with pytest.raises(ValueError, match="an actor and a reason"):
        await prune(pool, "outbox", FAR_AHEAD, **WHO | who)

    assert await everything(pool) == before


# --- burying


@pytest.mark.clause("lifecycle-12", "terms-16")
async def test_pending_events_are_marked_dead_by_two_valid_transitions(pool: asyncpg.Pool, add: Add) -> None:
    due, delayed = await add(), await add(available_at=FAR_AHEAD)
    claimed, published = await add("CLAIMED"), await add("PUBLISHED")

    ended = await mark_dead(pool, [due, delayed, claimed, published, uuid.uuid4()], **WHO)

    assert ended == {due, delayed}
    states = {
        event.id: event.state for event in (await outbox_page(pool, OutboxFilter(), read_max=None)).rows
    }
    assert states == {due: "DEAD", delayed: "DEAD", claimed: "CLAIMED", published: "PUBLISHED"}
    shown = await show_outbox(pool, due)
    assert shown is not None
    assert shown.last_error == "ended by ann: the stream lost them"
    [action] = await audit(pool, limit=9)
    assert (action.action, action.affected) == ("mark_dead", 2)

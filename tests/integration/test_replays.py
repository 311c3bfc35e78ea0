"""Replays: a new lifecycle for each event; large ones let new events pass, and go on where they were cut."""

import asyncio
import json
import re
import signal
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.operators import replay as replays
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import (
    Chosen,
    Replay,
    ReplayResult,
    begin,
    choose,
    feed_replay,
    load,
    replay_matching,
)
from sea_mq_worker.operators.tables import SQL, audit, depth, show_outbox
from sea_mq_worker.outbox.event import EventState
from tests.support.jetstream import SECOND, stored_messages
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event, lead
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

WHO = {"actor": "ann", "reason": "the stream lost them"}
ALL = OutboxFilter()
DEAD = OutboxFilter(states=(EventState.DEAD,))
PACE: dict[str, Any] = {"per_second": 100_000}


async def replay(pool: asyncpg.Pool, which: OutboxFilter = ALL, **given: Any) -> ReplayResult:
    return await replay_matching(pool, which, **{**WHO, "cap": 1000, **given})


async def claim(pool: asyncpg.Pool) -> list[UUID]:
    """Take all that is due, as a worker does."""
    claimed = await PostgresWorld(pool).relay().find_unpublished(batch_max=99)
    return [UUID(event.id) for event in claimed.events]


async def states(pool: asyncpg.Pool) -> dict[UUID, str]:
    return dict(await pool.fetch("SELECT id, state FROM outbox_events"))


# --- the new lifecycle


@pytest.mark.clause("lifecycle-15", "replay-delivered")
@pytest.mark.parametrize("state", ["DEAD", "PUBLISHED"])
async def test_a_finished_event_starts_a_new_lifecycle_at_once_and_knows_its_earlier_copy(
    pool: asyncpg.Pool, state: str
) -> None:
    event = await add_event(pool, state, occurred_at=datetime.now(UTC) - timedelta(days=1), error="too large")
    result = await replay(pool, OutboxFilter(ids=(event,)))
    assert (result.matched, result.replayed, result.last_published_at is None) == (1, 1, state == "DEAD")
    shown = await show_outbox(pool, event)
    assert shown is not None
    assert (shown.state, shown.attempts, shown.failures, shown.last_error) == ("PENDING", 0, 0, None)
    assert (shown.first_attempt_at, shown.published_at) == (None, None)
    assert shown.available_at <= datetime.now(UTC) + timedelta(seconds=1)
    copy = ("SEA_EVENTS", 5) if state == "PUBLISHED" else (None, None)
    assert (shown.stream, shown.stream_seq) == copy
    found = await depth(pool, "outbox")
    assert (found.waiting, found.scheduled, found.waiting_seconds < 60) == (1, 0, True)


@pytest.mark.clause("lifecycle-12", "lifecycle-15")
async def test_only_terminal_events_of_the_chosen_states_are_replayed(pool: asyncpg.Pool) -> None:
    added = {state: await add_event(pool, state) for state in EventState}
    dead_only = OutboxFilter(states=(EventState.DEAD, EventState.CLAIMED))
    assert await replay(pool, dead_only) == ReplayResult(matched=1, replayed=1)
    await replay(pool)
    assert await states(pool) == dict.fromkeys(added.values(), "PENDING") | {
        added[EventState.CLAIMED]: "CLAIMED"
    }


@pytest.mark.clause("event-model-15")
async def test_replays_keep_the_order_of_their_key(pool: asyncpg.Pool) -> None:
    """The earlier event waits for its duplicate window's end, and the later one for the earlier."""
    earlier = await add_event(pool, "PUBLISHED", ordering_key="k")
    later = await add_event(pool, "DEAD", ordering_key="k")
    await replay(pool)
    due = "UPDATE outbox_events SET available_at = now() + $2::interval WHERE id = $1"
    await pool.execute(due, earlier, timedelta(hours=1))
    relay = PostgresWorld(pool).relay(ordered=True)
    assert (await relay.find_unpublished(batch_max=9)).events == ()
    await pool.execute(due, earlier, timedelta())
    claimed = await relay.find_unpublished(batch_max=9)
    assert [event.id for event in claimed.events] == [str(earlier), str(later)]


@pytest.mark.clause("lifecycle-23")
async def test_two_operators_who_replay_at_once_replay_each_event_once(pool: asyncpg.Pool) -> None:
    for _ in range(6):
        await add_event(pool, "DEAD")
    results = await asyncio.gather(replay(pool), replay(pool))
    assert sum(result.replayed for result in results) == 6
    assert sum(action.affected for action in await audit(pool, limit=9)) == 6


@pytest.mark.fault("S18")
async def test_a_replay_at_once_changes_nothing_in_a_dry_run_or_above_its_cap(pool: asyncpg.Pool) -> None:
    for _ in range(3):
        await add_event(pool, "DEAD")
    for given in ({"cap": 2}, {"cap": 3, "dry_run": True}):
        assert await replay(pool, **given) == ReplayResult(matched=3, replayed=0)
    assert await pool.fetchval("SELECT count(*) FROM operator_actions") == 0
    assert await replay(pool, cap=3) == ReplayResult(matched=3, replayed=3)
    assert await replay(pool, cap=3) == ReplayResult(matched=0, replayed=0)


# --- portions: their pace, and who goes first


@pytest.mark.clause("terms-16", "audit")
async def test_a_large_replay_keeps_its_pace_from_batch_to_batch_and_is_recorded_once(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = [await add_event(pool, "DEAD") for _ in range(7)]
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(replays, "sleep", sleep)
    which = OutboxFilter(event_type="order.created")
    chosen = await choose(pool, which, limit=9)
    steps = feed_replay(pool, await begin(pool, which, **WHO), chosen, per_second=3, ahead=9)
    assert [(step.done, step.replayed, len(waits)) async for step in steps] == [
        (3, 3, 0), (6, 6, 1), (7, 7, 2),
    ]  # fmt: skip
    assert waits == [1.0, 1.0]
    order = [row["id"] for row in await pool.fetch("SELECT id FROM outbox_events ORDER BY available_at, seq")]
    assert order == added
    [action] = await audit(pool, limit=9)
    assert (action.actor, action.action, action.reason, action.affected) == (
        "ann", "replay", "the stream lost them", 7,
    )  # fmt: skip
    assert json.loads(action.selection) == {
        "event_type": "order.created",
        "states": ["PUBLISHED", "DEAD"],
        "progress": {"through": chosen[-1].seq, "finished": True},
    }


async def test_new_events_stand_before_the_rest_of_a_replay(pool: asyncpg.Pool) -> None:
    dead = [await add_event(pool, "DEAD") for _ in range(6)]
    begun = await begin(pool, DEAD, **WHO)
    taken: list[UUID] = []
    new = []
    async for step in feed_replay(pool, begun, await choose(pool, DEAD, limit=9), **PACE, ahead=2):
        if step.waiting:
            assert step.waiting == 2
            new.append(await add_event(pool))
            taken += await claim(pool)
    taken += await claim(pool)
    assert taken == [*dead[:2], new[0], *dead[2:4], new[1], *dead[4:]]


@pytest.mark.parametrize("held", [False, True])
async def test_an_event_is_waited_for_until_it_is_claimed_or_one_before_it_in_its_key_holds_it(
    pool: asyncpg.Pool, held: bool
) -> None:
    await add_event(pool, "DEAD", ordering_key="dead")
    behind = await add_event(pool, "PENDING", ordering_key="dead")
    failed, after = [await add_event(pool, "PENDING", ordering_key="k") for _ in range(2)]
    free = await add_event(pool)

    async def waiting() -> set[UUID]:
        bound = SQL["not_taken"].bind(ids=(behind, failed, after, free), hold_dead_keys=held)
        return {row["id"] for row in await pool.fetch(*bound)}

    assert await waiting() == {failed, after, free} | (set() if held else {behind})
    await lead(pool, free, "CLAIMED")
    await pool.execute(
        "UPDATE outbox_events SET publish_error = 'no answer', publish_attempts = 1 WHERE id = $1", failed
    )
    assert await waiting() == (set() if held else {behind})


# --- interrupted replays


async def put_back(pool: asyncpg.Pool, begun: Replay, portion: list[Chosen]) -> int:
    """Put back one portion, and stop there; return how many events the replay has put back so far."""
    rest = Chosen(UUID(int=0), 2**62)
    steps = feed_replay(pool, begun, [*portion, rest], per_second=len(portion), ahead=99)
    async for step in steps:
        await steps.aclose()  # type: ignore[attr-defined]
        return step.replayed
    raise AssertionError


async def test_every_part_of_a_filter_is_kept_with_the_record(pool: asyncpg.Pool) -> None:
    correlation = uuid.uuid4()
    event = await add_event(pool, "DEAD", ordering_key="k", correlation_id=correlation, error="too large")
    await add_event(pool, "DEAD")
    which = OutboxFilter(
        states=(EventState.DEAD,), ids=(event,), event_type="order.created", ordering_key="k",
        aggregate_type="order", aggregate_id="o-1", correlation_id=correlation,
        since=datetime(2020, 1, 1, tzinfo=UTC), error_like="LARGE",
    )  # fmt: skip
    loaded = await load(pool, (await begin(pool, which, **WHO)).id)
    assert (loaded.which, loaded.replayed, loaded.through) == (which, 0, 0)
    assert [one.id for one in await choose(pool, loaded.which, limit=9, resumed=loaded)] == [event]


async def test_an_interrupted_replay_continues_with_what_it_has_not_put_back(pool: asyncpg.Pool) -> None:
    """An event that it had put back is published again by now, and so is one that is none of its own."""
    for _ in range(4):
        await add_event(pool, "DEAD")
    chosen = await choose(pool, ALL, limit=9)
    begun = await begin(pool, ALL, **WHO)
    assert await put_back(pool, begun, chosen[:2]) == 2
    for step in ("CLAIMED", "PUBLISHED"):
        await lead(pool, chosen[1].id, step)
    later = await add_event(pool, "PUBLISHED")
    old = await load(pool, begun.id)
    left = await choose(pool, old.which, limit=9, resumed=old)
    assert (old.replayed, left, later in {one.id for one in left}) == (2, chosen[2:], False)
    assert [step.replayed async for step in feed_replay(pool, old, left, **PACE)] == [4]
    with pytest.raises(WorkerError, match="is finished: it put back 4"):
        await load(pool, begun.id)


async def test_of_two_runs_of_a_replay_only_one_continues(pool: asyncpg.Pool) -> None:
    for _ in range(3):
        await add_event(pool, "DEAD")
    begun, chosen = await begin(pool, ALL, **WHO), await choose(pool, ALL, limit=9)
    await put_back(pool, begun, chosen[:2])
    with pytest.raises(WorkerError, match="another run continues"):
        await put_back(pool, begun, chosen[2:])
    assert (await load(pool, begun.id)).replayed == 2
    assert await choose(pool, ALL, limit=9) == chosen[2:]


async def test_an_event_that_is_no_longer_finished_is_not_put_back(pool: asyncpg.Pool) -> None:
    taken, other = [await add_event(pool, "DEAD") for _ in range(2)]
    chosen = await choose(pool, ALL, limit=9)
    await put_back(pool, await begin(pool, ALL, **WHO), chosen[:1])
    await lead(pool, taken, "CLAIMED")
    assert await put_back(pool, await begin(pool, ALL, **WHO), chosen) == 1
    assert await states(pool) == {taken: "CLAIMED", other: "PENDING"}


async def test_only_a_replay_can_be_continued(pool: asyncpg.Pool) -> None:
    with pytest.raises(WorkerError, match="action 17 is no replay"):
        await load(pool, 17)
    by_pipeline = await pool.fetchval(
        "INSERT INTO operator_actions (actor, action, reason, selection, affected) VALUES"
        """ ('a', 'replay', '', '{"progress": {"finished": false, "as_given": {}}}', 0) RETURNING id"""
    )
    with pytest.raises(WorkerError, match="pipeline replay"):
        await load(pool, by_pipeline)


@pytest.mark.fault("S18")
async def test_a_killed_replay_resumed_publishes_each_event_once_more_and_new_ones_first(place: Site) -> None:
    """Without a worker it puts back the first ten and waits: there it is killed."""
    old = [str(await add_event(place.database, "DEAD")) for _ in range(25)]
    pace = ("--per-second", "10", "--ahead", "10", "--yes")
    who = ("--actor", "ann", "--reason", "a test")
    command = ("outbox", "replay", "--state", "DEAD", *who, *pace)
    affected = "SELECT affected = 10 FROM operator_actions WHERE action = 'replay'"
    async with place.worker(*command, name="replay") as first:
        await eventually(lambda: place.database.fetchval(affected), within=30, what="ten are put back")
        first.process.kill()
        await first.ended()
    new = await place.commit(3)
    action = await place.database.fetchval("SELECT id FROM operator_actions")
    async with (
        place.worker() as worker,
        place.worker("outbox", "replay", "--resume", str(action), *pace, name="again") as again,
    ):
        assert await again.ended(within=40) == 0, again.written
        await place.published()
        await worker.ready()
    assert "replayed 15 of 15" in again.written
    stored = await stored_messages(place.broker, place.target.stream)
    order = [headers["Nats-Msg-Id"] for *_, headers in stored]
    assert sorted(order) == sorted(old + new)
    assert max(map(order.index, new)) < min(map(order.index, old[20:]))
    assert await place.database.fetchval("SELECT affected FROM operator_actions") == 25


@pytest.mark.parametrize("stopped_by", ["its operator", "the database"])
async def test_a_stopped_replay_has_told_that_it_waits_and_prints_the_command_that_resumes_it(
    place: Site, stopped_by: str
) -> None:
    for _ in range(3):
        await add_event(place.database, "DEAD")
    command = ("outbox", "replay", "--state", "DEAD", "--actor", "ann", "--reason", "a test", "--ahead", "1")
    waits = "replay (waiting for workers to claim replayed events)"
    async with place.worker(*command, name="replay", database_timeout_seconds=1) as first:
        await eventually(lambda: waits in first.written, within=30, what="one is put back")
        if stopped_by == "its operator":
            first.send(signal.SIGINT)
            assert await first.ended() == 130
        else:
            async with place.database.transaction():
                await place.database.execute("LOCK TABLE outbox_events")
                assert await first.ended() == 1
    action = await place.database.fetchval("SELECT id FROM operator_actions")
    assert f"python -m sea_mq_worker outbox replay --resume {action}" in first.written
    go_on = ("outbox", "replay", "--resume", str(action), "--cap", "1", "--actor", "ann")
    async with place.worker(*go_on, name="again") as again:
        assert await again.ended() == 0, again.written
    assert "replayed 2 of 2" in again.written


async def test_a_replay_tells_when_a_published_event_goes_out_and_what_its_consumers_do(
    site_with: SiteWith,
) -> None:
    window = timedelta(seconds=8)
    async with site_with(stream={"duplicate_window": int(window.total_seconds()) * SECOND}) as place:
        [event] = await place.commit()
        async with place.worker():
            await place.published()
            published = (await place.row(event))["published_at"]
            why = ("--reason", "a consumer lost it", "--actor", "ann")
            async with place.worker("outbox", "replay", event, *why, "--json", name="replay") as first:
                assert await first.ended() == 0
            told = json.loads(first.written)
            due = datetime.fromisoformat(told["last_due_at"])
            assert (due, told["window_seconds"]) == (published + window, window.total_seconds())
            assert (await place.row(event))["state"] != "PUBLISHED"
            await place.published()
            assert due <= datetime.now(UTC) + timedelta(seconds=1) <= due + timedelta(seconds=8)
        assert (await place.copies())[event] == 2
        async with place.worker("outbox", "replay", event, *why, name="again") as again:
            assert await again.ended() == 0
    forgotten = r"goes out: the last from 20.* UTC on, once the stream has forgotten the ID"
    assert re.search(forgotten, again.written)
    assert "one that has processed an event skips it, because its inbox knows the ID" in again.written

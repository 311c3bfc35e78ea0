"""Large replays: they let new events pass, and go on where they were cut short."""

import json
import re
import signal
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import feed_replay
from sea_mq_worker.operators.tables import PostgresReplays
from sea_mq_worker.outbox.event import EventState
from tests.support.jetstream import SECOND, stored_messages
from tests.support.outboxes import PostgresWorld
from tests.support.rows import add_event
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

WHO = {"actor": "ann", "reason": "the stream lost them"}
DEAD = OutboxFilter(states=(EventState.DEAD,))
PACE: dict[str, Any] = {"per_second": 100_000}


@pytest.fixture
def replays(pool: asyncpg.Pool) -> PostgresReplays:
    return PostgresReplays(pool=pool)


async def claim(pool: asyncpg.Pool) -> list[UUID]:
    """Take all that is due, as a worker does."""
    claimed = await PostgresWorld(pool).relay().find_unpublished(batch_max=99)
    return [UUID(event.id) for event in claimed.events]


async def test_new_events_stand_before_the_rest_of_a_replay(
    replays: PostgresReplays, pool: asyncpg.Pool
) -> None:
    dead = [await add_event(pool, "DEAD") for _ in range(6)]
    replay = await replays.begin(DEAD, **WHO)
    taken: list[UUID] = []
    new = []
    async for step in feed_replay(replays, replay, await replays.choose(DEAD, limit=9), **PACE, ahead=2):
        if step.waiting:
            assert step.waiting == 2
            new.append(await add_event(pool))
            taken += await claim(pool)
    taken += await claim(pool)
    assert taken == [*dead[:2], new[0], *dead[2:4], new[1], *dead[4:]]


@pytest.mark.fault("S18")
async def test_a_killed_replay_resumed_publishes_each_event_once_more_and_new_ones_first(place: Site) -> None:
    """Without a worker it puts back the first ten and waits: there it is killed."""
    old = [str(await add_event(place.database, "DEAD")) for _ in range(25)]
    pace = ("--per-second", "10", "--ahead", "10", "--yes")
    who = ("--actor", "ann", "--reason", "a test")
    command = ("outbox", "replay", "--state", "DEAD", *who, *pace)
    affected = "SELECT affected = 10 FROM operator_actions WHERE action = 'replay'"
    async with place.worker(*command, name="replay") as replay:
        await eventually(lambda: place.database.fetchval(affected), within=30, what="ten are put back")
        replay.process.kill()
        await replay.ended()
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
async def test_a_stopped_replay_prints_the_command_that_resumes_it(place: Site, stopped_by: str) -> None:
    for _ in range(3):
        await add_event(place.database, "DEAD")
    command = ("outbox", "replay", "--state", "DEAD", "--actor", "ann", "--reason", "a test", "--ahead", "1")
    affected = "SELECT affected = 1 FROM operator_actions WHERE action = 'replay'"
    async with place.worker(*command, name="replay", database_timeout_seconds=1) as replay:
        await eventually(lambda: place.database.fetchval(affected), within=30, what="one is put back")
        if stopped_by == "its operator":
            replay.send(signal.SIGINT)
            assert await replay.ended() == 130
        else:
            async with place.database.transaction():
                await place.database.execute("LOCK TABLE outbox_events")
                assert await replay.ended() == 1
    action = await place.database.fetchval("SELECT id FROM operator_actions")
    assert f"python -m sea_mq_worker outbox replay --resume {action}" in replay.written
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
            async with place.worker("outbox", "replay", event, *why, "--json", name="replay") as replay:
                assert await replay.ended() == 0
            told = json.loads(replay.written)
            due = datetime.fromisoformat(told["last_due_at"])
            assert (due, told["window_seconds"]) == (published + window, window.total_seconds())
            assert (await place.row(event))["state"] != "PUBLISHED"
            await place.published()
            assert due <= datetime.now(UTC) + timedelta(seconds=1) <= due + timedelta(seconds=8)
        assert (await place.copies())[event] == 2
        async with place.worker("outbox", "replay", event, *why, name="again") as replay:
            assert await replay.ended() == 0
    assert re.search(
        r"goes out: the last from 20.* UTC on, once the stream has forgotten the ID", replay.written
    )
    assert "one that has processed an event skips it, because its inbox knows the ID" in replay.written

"""Large replays: they let new events pass, and go on where they were cut short."""

import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.adapters.postgres.operator.replays import PostgresReplays
from sea_mq_worker.adapters.postgres.outbox import PostgresOutboxAdapter
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import OutboxFilter
from tests.support.jetstream import stored_messages
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.site import Site, site
from tests.support.waiting import eventually

WHO = {"actor": "ann", "reason": "the stream lost them"}
DEAD = OutboxFilter(states=(EventState.DEAD,))
PACE: dict[str, Any] = {"per_second": 100_000}
END = """
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'test', publish_attempts = publish_attempts + 1
"""


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        yield pool


@pytest.fixture
def replays(pool: asyncpg.Pool) -> PostgresReplays:
    return PostgresReplays(pool=pool)


@pytest.fixture
async def place(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as made:
        yield made


async def claim(pool: asyncpg.Pool) -> list[UUID]:
    """Take all that is due, as a worker does."""
    relay = PostgresOutboxAdapter(
        pool=pool, worker="w", lease_seconds=60, ordered=False, hold_dead_keys=False, failures_max=5
    )
    return [UUID(event.id) for event in (await relay.find_unpublished(batch_max=99)).events]


async def test_new_events_stand_before_the_rest_of_a_replay(
    replays: PostgresReplays, pool: asyncpg.Pool
) -> None:
    dead = [await add_event(pool, "DEAD") for _ in range(6)]
    replay = await replays.begin(DEAD, **WHO)
    taken: list[UUID] = []
    new = []
    async for step in replays.feed(replay, await replays.choose(DEAD, limit=9), **PACE, ahead=2):
        if step.waiting:
            assert step.waiting == 2
            new.append(await add_event(pool))
            taken += await claim(pool)
    taken += await claim(pool)
    assert taken == [*dead[:2], new[0], *dead[2:4], new[1], *dead[4:]]


async def test_a_replay_waits_for_no_event_behind_a_failing_one_of_its_key(
    replays: PostgresReplays, pool: asyncpg.Pool
) -> None:
    for _ in range(3):
        await add_event(pool, "DEAD", ordering_key="k")
    replay = await replays.begin(DEAD, **WHO)
    steps = replays.feed(replay, await replays.choose(DEAD, limit=9), **PACE, ahead=1)
    assert (await anext(steps)).done == 1
    assert (await anext(steps)).waiting == 1
    await pool.execute(
        "UPDATE outbox_events SET publish_error = 'no answer', publish_attempts = 1 WHERE state = 'PENDING'"
    )
    assert [step.done async for step in steps] == [2, 3]


@pytest.mark.parametrize("state", [EventState.PUBLISHED, EventState.DEAD])
async def test_a_replay_that_was_cut_short_goes_on_with_what_it_has_not_done(
    replays: PostgresReplays, pool: asyncpg.Pool, state: EventState
) -> None:
    """What it had put back has ended again by now, and what was published later is none of it."""
    added = [await add_event(pool, state) for _ in range(4)]
    which = OutboxFilter(states=(EventState.PUBLISHED, EventState.DEAD), event_type="order.created")
    replay = await replays.begin(which, **WHO)
    steps = replays.feed(replay, await replays.choose(which, limit=9), **PACE, ahead=2)
    assert (await anext(steps)).replayed == 2
    await steps.aclose()
    await pool.execute("UPDATE outbox_events SET available_at = now() WHERE state = 'PENDING'")
    await pool.execute(f"{END} WHERE state = 'PENDING'")
    await pool.execute(
        "UPDATE outbox_events SET state = $1::text, claimed_at = NULL, claimed_by = NULL,"
        " published_at = CASE WHEN $1 = 'PUBLISHED' THEN clock_timestamp() END WHERE state = 'CLAIMED'",
        state,
    )
    await add_event(pool, "PUBLISHED")

    old = await replays.load(replay.id)
    assert (old.which, old.replayed) == (which, 2)
    left = await replays.choose(old.which, limit=9, goes_on=old)
    assert [one.id for one in left] == added[2:]
    [step] = [step async for step in replays.feed(old, left, **PACE, ahead=9)]
    assert (step.replayed, step.action) == (4, replay.id)
    with pytest.raises(WorkerError, match="is finished: it put back 4"):
        await replays.load(replay.id)


async def test_of_two_runs_of_a_replay_only_one_goes_on(replays: PostgresReplays, pool: asyncpg.Pool) -> None:
    for _ in range(3):
        await add_event(pool, "DEAD")
    replay = await replays.begin(DEAD, **WHO)
    chosen = await replays.choose(DEAD, limit=9)
    await anext(replays.feed(replay, chosen, **PACE, ahead=2))
    with pytest.raises(WorkerError, match="another run goes on"):
        await anext(replays.feed(replay, chosen[2:], **PACE, ahead=2))
    assert (await replays.load(replay.id)).replayed == 2
    assert [one.id for one in await replays.choose(DEAD, limit=9)] == [chosen[2].id]


async def test_an_event_that_is_taken_meanwhile_is_not_put_back(
    replays: PostgresReplays, pool: asyncpg.Pool
) -> None:
    await add_event(pool, "DEAD")
    chosen = await replays.choose(DEAD, limit=9)
    await pool.execute("UPDATE outbox_events SET state = 'PENDING'")
    assert await claim(pool) == [one.id for one in chosen]

    replay = await replays.begin(DEAD, **WHO)
    steps = [step async for step in replays.feed(replay, chosen, **PACE, ahead=9)]

    assert steps[-1].replayed == 0
    assert await pool.fetchval("SELECT state FROM outbox_events") == "CLAIMED"


async def test_only_a_replay_goes_on(replays: PostgresReplays, pool: asyncpg.Pool) -> None:
    with pytest.raises(WorkerError, match="audit --action replay"):
        await replays.load(17)
    by_pipeline = await pool.fetchval(
        "INSERT INTO operator_actions (actor, action, reason, selection, affected)"
        """ VALUES ('a', 'replay', '', '{"progress": {"finished": false, "as_given": {}}}', 0) RETURNING id"""
    )
    with pytest.raises(WorkerError, match="pipeline replay"):
        await replays.load(by_pipeline)


async def test_every_part_of_a_filter_survives(replays: PostgresReplays, pool: asyncpg.Pool) -> None:
    event = await add_event(pool, "DEAD", ordering_key="k", correlation_id=uuid.uuid4(), error="too large")
    row = await pool.fetchrow("SELECT correlation_id, created_at FROM outbox_events")
    which = OutboxFilter(
        states=(EventState.DEAD,), ids=(event,), event_type="order.created", ordering_key="k",
        aggregate_type="order", aggregate_id="o-1", correlation_id=row["correlation_id"],
        since=row["created_at"], until=None, error_like="LARGE",
    )  # fmt: skip
    loaded = await replays.load((await replays.begin(which, **WHO)).id)
    assert loaded.which == which
    assert [one.id for one in await replays.choose(loaded.which, limit=9, goes_on=loaded)] == [event]


@pytest.mark.fault("S18")
async def test_a_killed_replay_resumed_publishes_each_event_once_more_and_new_ones_first(place: Site) -> None:
    """Without a worker it puts back the first ten and waits: there it is killed."""
    old = await place.commit(25)
    await place.database.execute(END)
    await place.database.execute(
        "UPDATE outbox_events SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL"
    )
    pace = ("--rate", "10", "--ahead", "10", "--yes")
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
async def test_a_replay_that_is_stopped_says_how_it_goes_on(place: Site, stopped_by: str) -> None:
    await place.commit(3)
    await place.database.execute(END)
    await place.database.execute(
        "UPDATE outbox_events SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL"
    )
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

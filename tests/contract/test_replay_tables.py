"""The contract of ReplayTables, over PostgreSQL and the in-memory fake."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.operators.ports import Chosen, ReplayTables
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.tables import PostgresReplays
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.operators import InMemoryReplays
from sea_mq_worker.testing.outbox import OutboxTable
from tests.support.rows import add_event, opened
from tests.support.servers import Database

WHO: dict[str, Any] = {"actor": "ann", "reason": "the stream lost them"}
ALL = OutboxFilter()
CLAIM = """
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = publish_attempts + 1
 WHERE id = $1
"""
PUBLISH = """
UPDATE outbox_events
   SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = clock_timestamp()
 WHERE id = $1
"""


@dataclass(kw_only=True)
class PostgresWorld:
    pool: asyncpg.Pool

    @property
    def tables(self) -> ReplayTables:
        return self.replays()

    def replays(self, *, hold_dead_keys: bool = False) -> ReplayTables:
        return PostgresReplays(pool=self.pool, hold_dead_keys=hold_dead_keys)

    async def event(self, state: str = "DEAD", *, error: str | None = None, **given: Any) -> UUID:
        return await add_event(self.pool, state, error=error, **given)

    async def claim(self, event_id: UUID) -> None:
        await self.pool.execute(CLAIM, event_id)

    async def publish(self, event_id: UUID) -> None:
        """Publish a claimed event."""
        await self.pool.execute(PUBLISH, event_id)

    async def fail(self, event_id: UUID) -> None:
        """Note a failed attempt of a PENDING event."""
        await self.pool.execute(
            "UPDATE outbox_events SET publish_error = 'no answer', publish_attempts = 1 WHERE id = $1",
            event_id,
        )

    async def state(self, event_id: UUID) -> str:
        return str(await self.pool.fetchval("SELECT state FROM outbox_events WHERE id = $1", event_id))


class MemoryWorld:
    def __init__(self) -> None:
        self.now = 1000.0
        self.table = OutboxTable(self.clock)
        self.tables = self.replays()

    def replays(self, *, hold_dead_keys: bool = False) -> InMemoryReplays:
        return InMemoryReplays(self.table, hold_dead_keys)

    def clock(self) -> float:
        """Return another time at each call, like a clock of microseconds."""
        self.now += 0.001
        return self.now

    async def event(self, state: str = "DEAD", *, error: str | None = None, **given: Any) -> UUID:
        event_id = str(uuid.uuid4())
        self.table.add(event_id, ordering_key=given.pop("ordering_key", None))
        row = self.table.rows[event_id]
        row.state, row.error, row.attempts = EventState(state), error, int(state != "PENDING")
        row.published_at = self.clock() if state == "PUBLISHED" else None
        for name, value in given.items():
            setattr(row, name, str(value))
        return UUID(event_id)

    async def claim(self, event_id: UUID) -> None:
        row = self.table.rows[str(event_id)]
        row.state, row.claimed_at, row.claimed_by = EventState.CLAIMED, self.clock(), "w"
        row.attempts += 1

    async def publish(self, event_id: UUID) -> None:
        row = self.table.rows[str(event_id)]
        row.state, row.claimed_at, row.claimed_by = EventState.PUBLISHED, None, None
        row.published_at = self.clock()

    async def fail(self, event_id: UUID) -> None:
        row = self.table.rows[str(event_id)]
        row.error, row.attempts = "no answer", 1

    async def state(self, event_id: UUID) -> str:
        return self.table.rows[str(event_id)].state


World: TypeAlias = MemoryWorld | PostgresWorld


@pytest_asyncio.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        yield PostgresWorld(pool=pool)


async def chosen(world: World, which: OutboxFilter = ALL, *, limit: int | None = 9) -> list[Chosen]:
    return list(await world.tables.choose(which, limit=limit))


def ids(events: list[Chosen]) -> list[UUID]:
    return [event.id for event in events]


async def test_finished_events_that_match_are_chosen_in_their_order_up_to_a_limit(world: World) -> None:
    dead, published = await world.event(), await world.event("PUBLISHED")
    await world.event("PENDING")
    await world.event("CLAIMED")
    assert ids(await chosen(world)) == [dead, published]
    assert ids(await chosen(world, limit=1)) == [dead]
    assert ids(await chosen(world, OutboxFilter(states=(EventState.PUBLISHED,)), limit=None)) == [published]


async def test_every_part_of_a_filter_is_kept_with_the_record(world: World) -> None:
    correlation = uuid.uuid4()
    event = await world.event(ordering_key="k", correlation_id=correlation, error="too large")
    await world.event()
    which = OutboxFilter(
        states=(EventState.DEAD,), ids=(event,), event_type="order.created", ordering_key="k",
        aggregate_type="order", aggregate_id="o-1", correlation_id=correlation,
        since=EPOCH - timedelta(days=1), error_like="LARGE",
    )  # fmt: skip
    loaded = await world.tables.load((await world.tables.begin(which, **WHO)).id)
    assert (loaded.which, loaded.replayed, loaded.through) == (which, 0, 0)
    assert ids(list(await world.tables.choose(loaded.which, limit=9, resumed=loaded))) == [event]


async def test_an_interrupted_replay_continues_with_what_it_has_not_put_back(world: World) -> None:
    """An event that it had put back is published again by now, and so is one that is none of its own."""
    events = [await world.event() for _ in range(4)]
    begun = await world.tables.begin(ALL, **WHO)
    after = await world.tables.put_back(begun, (await chosen(world))[:2])
    assert after.replayed == 2
    await world.claim(events[1])
    await world.publish(events[1])
    later = await world.event("PUBLISHED")

    old = await world.tables.load(begun.id)
    assert (old.replayed, old.through) == (2, after.through)
    left = list(await world.tables.choose(old.which, limit=9, resumed=old))
    assert (ids(left), later in ids(left)) == (events[2:], False)
    done = await world.tables.put_back(old, left)
    assert done.replayed == 4
    await world.tables.finish(done)
    with pytest.raises(WorkerError, match="is finished: it put back 4"):
        await world.tables.load(begun.id)


async def test_of_two_runs_of_a_replay_only_one_continues(world: World) -> None:
    for _ in range(3):
        await world.event()
    begun, events = await world.tables.begin(ALL, **WHO), await chosen(world)
    await world.tables.put_back(begun, events[:2])
    with pytest.raises(WorkerError, match="another run continues"):
        await world.tables.put_back(begun, events[2:])
    assert (await world.tables.load(begun.id)).replayed == 2
    assert ids(await chosen(world)) == [events[2].id]


async def test_an_event_that_is_no_longer_finished_is_not_put_back(world: World) -> None:
    taken, other = await world.event(), await world.event()
    events = await chosen(world)
    first = await world.tables.begin(ALL, **WHO)
    await world.tables.put_back(first, events[:1])
    await world.claim(taken)
    second = await world.tables.put_back(await world.tables.begin(ALL, **WHO), events)
    assert second.replayed == 1
    assert (await world.state(taken), await world.state(other)) == ("CLAIMED", "PENDING")


async def test_an_event_is_waited_for_until_it_is_claimed_or_one_before_it_in_its_key_fails(
    world: World,
) -> None:
    head, behind = [await world.event(ordering_key="k") for _ in range(2)]
    free = await world.event()
    await world.tables.put_back(await world.tables.begin(ALL, **WHO), await chosen(world))

    async def waiting() -> set[UUID]:
        return set(await world.tables.not_taken([head, behind, free]))

    assert await waiting() == {head, behind, free}
    await world.claim(free)
    assert await waiting() == {head, behind}
    await world.fail(head)
    assert await waiting() == set()


async def test_an_event_behind_a_dead_one_is_not_waited_for_if_that_holds_its_key(world: World) -> None:
    await world.event(ordering_key="k")
    behind, free = await world.event("PUBLISHED", ordering_key="k"), await world.event("PUBLISHED")
    published = await chosen(world, OutboxFilter(states=(EventState.PUBLISHED,)))
    await world.tables.put_back(await world.tables.begin(ALL, **WHO), published)
    assert set(await world.tables.not_taken([behind, free])) == {behind, free}
    assert list(await world.replays(hold_dead_keys=True).not_taken([behind, free])) == [free]


async def test_only_a_replay_can_be_continued(world: World) -> None:
    with pytest.raises(WorkerError, match="action 17 is no replay"):
        await world.tables.load(17)
    with pytest.raises(ValueError, match="an actor and a reason"):
        await world.tables.begin(ALL, actor=" ", reason="x")


async def test_a_replay_of_the_pipeline_is_continued_by_the_pipeline(database: Database) -> None:
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        by_pipeline = await pool.fetchval(
            "INSERT INTO operator_actions (actor, action, reason, selection, affected) VALUES"
            """ ('a', 'replay', '', '{"progress": {"finished": false, "as_given": {}}}', 0) RETURNING id"""
        )
        with pytest.raises(WorkerError, match="pipeline replay"):
            await PostgresReplays(pool=pool).load(by_pipeline)

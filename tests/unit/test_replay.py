"""Replays in portions, on an in-memory outbox in virtual time."""

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from sea_mq_worker.domain.errors import StoreUnavailableError
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.replay_records import Chosen, Replay, ReplayResult
from sea_mq_worker.operations.replay import feed_replay, replay_matching
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable
from sea_mq_worker.testing.replays import InMemoryReplays
from tests.support.simulation import in_virtual_time

ALL = OutboxFilter()
WHO = {"actor": "ann", "reason": "fixed"}


class Replays(InMemoryReplays):
    """An outbox whose server goes away after some portions."""

    portions = 1000

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        self.portions -= 1
        if self.portions < 0:
            raise StoreUnavailableError("no connection")
        return await super().put_back(replay, portion)


class World:
    """Dead events, and a replay of all of them."""

    def __init__(self, count: int) -> None:
        self.clock = asyncio.get_running_loop().time
        table = OutboxTable(self.clock)
        for _ in range(count):
            event_id = str(uuid.uuid4())
            table.add(event_id)
            table.rows[event_id].state = EventState.DEAD
        self.rows: list[OutboxRow] = list(table.rows.values())
        self.tables = Replays(table)

    async def run(self, *, per_second: int = 1000, ahead: int = 1000) -> list[tuple[float, int, int]]:
        """Replay all; return the time, the number done and the number waited for at each step."""
        begun, chosen = await self.tables.begin(ALL, **WHO), await self.tables.choose(ALL, limit=None)
        steps = feed_replay(self.tables, begun, chosen, per_second=per_second, ahead=ahead)
        return [(self.clock(), step.done, step.waiting) async for step in steps]

    def states(self) -> list[str]:
        return [row.state for row in self.rows]


@in_virtual_time
async def test_a_replay_keeps_its_pace_from_portion_to_portion() -> None:
    world = World(7)
    assert await world.run(per_second=3) == [(0.0, 3, 0), (1.0, 6, 0), (2.0, 7, 0)]
    assert set(world.states()) == {"PENDING"}
    assert world.tables.finished == {1}


@in_virtual_time
async def test_a_replay_waits_while_as_many_as_it_may_are_not_claimed() -> None:
    world = World(6)

    async def work() -> None:
        await asyncio.sleep(1.2)
        for row in world.rows:
            if row.state is EventState.PENDING:
                row.state, row.attempts = EventState.CLAIMED, 1
        await asyncio.sleep(1.2)
        world.rows[2].state, world.rows[2].attempts = EventState.CLAIMED, 1
        await asyncio.sleep(1.0)
        for row in world.rows[3:]:
            row.state, row.attempts = EventState.CLAIMED, 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        steps = await world.run(per_second=100_000, ahead=2)
    done = [(round(at, 1), done) for at, done, waiting in steps if not waiting]
    assert done == [(0.0, 2), (1.5, 4), (3.5, 6)]
    assert {waiting for _, _, waiting in steps} == {0, 1, 2}


@in_virtual_time
async def test_a_replay_that_lost_its_server_continues_where_it_stopped() -> None:
    world = World(5)
    world.tables.portions = 2
    with pytest.raises(StoreUnavailableError):
        await world.run(per_second=2)
    assert world.states() == ["PENDING"] * 4 + ["DEAD"]
    world.tables.portions = 9
    old = await world.tables.load(1)
    left = await world.tables.choose(ALL, limit=None, resumed=old)
    steps = [step async for step in feed_replay(world.tables, old, left)]
    assert [(step.action, step.done, step.total, step.replayed) for step in steps] == [(1, 1, 1, 5)]
    assert world.tables.finished == {1}


@pytest.mark.fault("S18")
@in_virtual_time
async def test_a_replay_at_once_changes_nothing_in_a_dry_run_or_above_its_cap() -> None:
    world = World(3)
    for given in ({"cap": 2}, {"cap": 3, "dry_run": True}):
        result = await replay_matching(world.tables, ALL, **WHO, **given)  # type: ignore[arg-type]
        assert result == ReplayResult(matched=3, replayed=0)
    assert (world.tables.replays, set(world.states())) == ({}, {"DEAD"})
    result = await replay_matching(world.tables, ALL, **WHO, cap=3)
    assert result == ReplayResult(matched=3, replayed=3)
    assert await replay_matching(world.tables, ALL, **WHO, cap=3) == ReplayResult(matched=0, replayed=0)

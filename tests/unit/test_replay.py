"""Replays in portions, on an in-memory outbox in virtual time."""

import asyncio
import uuid

import pytest

from sea_mq_worker.operators.ports import ReplayResult
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import feed_replay, replay_matching
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.testing.operators import InMemoryReplays
from sea_mq_worker.testing.outbox import OutboxTable
from tests.support.simulation import in_virtual_time

ALL = OutboxFilter()
WHO = {"actor": "ann", "reason": "fixed"}


class World:
    """Dead events, and what replays them."""

    def __init__(self, count: int) -> None:
        self.clock = asyncio.get_running_loop().time
        self._events = OutboxTable(self.clock)
        for _ in range(count):
            event_id = str(uuid.uuid4())
            self._events.add(event_id)
            self._events.rows[event_id].state = EventState.DEAD
        self.tables = InMemoryReplays(self._events)

    def states(self) -> set[str]:
        return {row.state for row in self._events.rows.values()}


@in_virtual_time
async def test_a_replay_keeps_its_pace_from_portion_to_portion() -> None:
    world = World(7)
    begun, chosen = await world.tables.begin(ALL, **WHO), await world.tables.choose(ALL, limit=None)
    steps = feed_replay(world.tables, begun, chosen, per_second=3)
    assert [(world.clock(), step.done) async for step in steps] == [(0.0, 3), (1.0, 6), (2.0, 7)]
    assert world.states() == {"PENDING"}
    assert world.tables.finished == {1}


@pytest.mark.fault("S18")
@in_virtual_time
async def test_a_replay_at_once_changes_nothing_in_a_dry_run_or_above_its_cap() -> None:
    world = World(3)
    for given in ({"cap": 2}, {"cap": 3, "dry_run": True}):
        result = await replay_matching(world.tables, ALL, **WHO, **given)  # type: ignore[arg-type]
        assert result == ReplayResult(matched=3, replayed=0)
    assert (world.tables.replays, world.states()) == ({}, {"DEAD"})
    result = await replay_matching(world.tables, ALL, **WHO, cap=3)
    assert result == ReplayResult(matched=3, replayed=3)
    assert await replay_matching(world.tables, ALL, **WHO, cap=3) == ReplayResult(matched=0, replayed=0)

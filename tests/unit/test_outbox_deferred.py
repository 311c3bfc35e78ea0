"""When the published events of a claim are settled."""

import asyncio
from typing import Any

from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import LEASE, World


@in_virtual_time
async def test_the_published_events_of_small_claims_are_settled_together() -> None:
    world = World()
    settled = recorded(world)
    async with world.relaying():
        for event_id in ("a", "b", "c"):
            world.table.add(event_id)
            await eventually_stored(world, event_id)
        await world.published(3)
    assert settled == [["a", "b", "c"]]


@in_virtual_time
async def test_an_event_of_a_key_is_settled_before_the_next_is_claimed() -> None:
    world = World(ordered=True)
    settled = recorded(world)
    world.table.add("a1", ordering_key="a")
    async with world.relaying():
        await eventually_stored(world, "a1")
        world.table.add("a2", ordering_key="a")
        await world.published(2)
    assert settled == [["a1"], ["a2"]]


@in_virtual_time
async def test_a_stop_settles_what_was_deferred() -> None:
    world = World()
    world.table.add("a")
    began = world.clock()
    async with world.relaying():
        await eventually_stored(world, "a")
        assert world.states() == {"a": "CLAIMED"}
    assert world.states() == {"a": "PUBLISHED"}
    assert world.clock() - began < 0.05


@in_virtual_time
async def test_what_took_half_of_its_lease_to_publish_is_settled_at_once() -> None:
    world = World()
    publish = world.publisher.publish_batch

    async def slow(*args: Any, **given: Any) -> Any:
        outcomes = await publish(*args, **given)
        await asyncio.sleep(LEASE / 2)
        answered.append(world.clock())
        return outcomes

    answered: list[float] = []
    world.publisher.publish_batch = slow
    world.table.add("a")
    async with world.relaying():
        await world.published(1)
    assert answered == [world.row("a").published_at]


def recorded(world: World) -> list[list[str]]:
    """Return the ids of each settlement, as they come."""
    settled: list[list[str]] = []
    mark_published = world.outbox.mark_published_batch

    async def record(claim: Any, verdicts: Any) -> Any:
        settled.append([verdict.event.id for verdict in verdicts])
        return await mark_published(claim, verdicts)

    world.outbox.mark_published_batch = record
    return settled


async def eventually_stored(world: World, event_id: str) -> None:
    while event_id not in world.stored():  # noqa: ASYNC110 - the time is virtual
        await asyncio.sleep(0.001)

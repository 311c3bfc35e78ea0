"""A reaper gets through more rows than one search reads, in every form of the outbox."""

import pytest

from tests.support.outboxes import World, released

LEASE = 60.0
HOUR = 3600.0
WAITING = 9
LOOKS = 6
"""More than it takes to get through all that waits, two rows at a time."""


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_lease_that_runs_out_behind_the_last_look_is_ended(world: World, key: str | None) -> None:
    for number in range(WAITING):
        await world.add(key=key and f"{key}{number}")
    relay = world.relay(ordered=key is not None, lease_seconds=LEASE, look_max=2)
    claim = await relay.find_unpublished(batch_max=WAITING)
    await relay.release(claim, released(claim)[:-1])
    assert [await relay.reap() for _ in range(LOOKS)] == [(0, 0)] * LOOKS
    await world.set_clock_back(-2 * LEASE)
    assert sum([(await relay.reap()).leases for _ in range(LOOKS)]) == 1
    assert (await world.row(claim.events[-1].id)).state == "PENDING"


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_waits_for_a_time_to_come_is_reached_at_once(world: World, key: str | None) -> None:
    await world.add(key=key)
    await world.set_clock_back(HOUR)
    for number in range(WAITING):
        await world.add(key=key and f"{key}{number}")
    assert await world.relay(ordered=key is not None, look_max=2).reap() == (0, 1)

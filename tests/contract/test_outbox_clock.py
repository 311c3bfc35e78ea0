"""Traces of a clock that was ahead, in every form of the outbox."""

from dataclasses import replace

import pytest

from tests.support.outboxes import World, ids, postponed

HOUR = 3600.0


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_was_written_under_a_clock_that_was_ahead_is_due_unless_it_was_put_off(
    world: World, key: str | None
) -> None:
    written, later = await world.add(key=key), await world.add(delay_seconds=600)
    await world.set_clock_back(HOUR)
    after = await world.add(key=key)
    relay = world.relay(ordered=key is not None)
    assert await relay.reap() == (0, 1)
    assert ids(await relay.find_unpublished(batch_max=9)) == [written, after]
    assert await relay.reap() == (0, 0)
    assert ids(await world.relay().find_unpublished(batch_max=9)) == []
    assert (await world.row(later)).state == "PENDING"


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_lease_of_a_time_to_come_is_ended_and_spends_nothing(
    world: World, key: str | None, *, retried: bool
) -> None:
    event_id = await world.add(key=key)
    relay = world.relay(ordered=key is not None, lease_seconds=60.0)
    claim = await relay.find_unpublished(batch_max=1)
    if retried:
        await relay.increment_attempts_batch(claim, postponed(claim))
        await relay.find_unpublished(batch_max=1)
    before = await world.row(event_id)
    await world.set_clock_back(10.0)
    assert await relay.reap() == (0, 0)
    await world.set_clock_back(HOUR)
    assert await relay.reap() == (1, 0)
    assert await world.row(event_id) == replace(before, state="PENDING", claimed=False)
    [event] = (await relay.find_unpublished(batch_max=1)).events
    assert (event.id, event.attempted_seconds_ago < 0) == (event_id, True)


@pytest.mark.parametrize("keys", [(None, None), ("k", "l")])
async def test_a_retry_waits_no_longer_than_any_delay_after_the_clock_was_set_back(
    world: World, keys: tuple[str | None, ...]
) -> None:
    added = [await world.add(key=key) for key in keys]
    relay = world.relay(ordered=keys[0] is not None, delay_max_seconds=lambda: 300.0)
    claim = await relay.find_unpublished(batch_max=2)
    await relay.increment_attempts_batch(claim, postponed(claim, delay_seconds=200.0))
    assert await relay.reap() == (0, 0)
    assert await world.relay(delay_max_seconds=lambda: 100.0).reap() == (0, 2), (
        "put off while the clock was ahead"
    )
    again = await relay.find_unpublished(batch_max=2)
    await relay.increment_attempts_batch(again, postponed(again, delay_seconds=200.0))
    await world.set_clock_back(50.0)
    assert await relay.reap() == (0, 2), "first tried while the clock was ahead"
    assert ids(await relay.find_unpublished(batch_max=2)) == added

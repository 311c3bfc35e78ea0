"""The OutboxRepository contract: leases that end, in every form of the outbox."""

from dataclasses import replace

import pytest

from tests.support.outboxes import World, ids, postponed, published, released

# --- a reaper gets through more rows than one search reads

LEASE, HOUR = 60.0, 3600.0
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


# --- traces of a clock that was ahead


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


# --- what a worker that ended had claimed

GONE, OTHER = "9f3a00e1", "00c0ffee"


async def test_the_events_of_a_session_that_is_gone_are_due_at_once_and_have_failed_once(
    world: World,
) -> None:
    added = [await world.add(), await world.add(key="a")]
    for ordered in (False, True):
        await world.relay("dead", ordered=ordered, session=GONE).find_unpublished(batch_max=9)
    heir = world.relay("heir", session=OTHER)

    assert await heir.take_over(GONE) == 2

    for event_id in added:
        row = await world.row(event_id)
        assert (row.state, row.claimed, row.failures, row.attempts) == ("PENDING", False, 1, 1)
        assert "dead" in (row.error or "")
        assert GONE not in (row.error or "")
    assert ids(await heir.find_unpublished(batch_max=9)) == added[:1]
    assert ids(await world.relay(ordered=True).find_unpublished(batch_max=9)) == added[1:]
    assert await heir.take_over(GONE) == 0


async def test_the_events_of_a_session_that_lives_are_left_alone(world: World) -> None:
    await world.add()
    living = world.relay("living", session=GONE)
    claim = await living.find_unpublished(batch_max=9)

    async with world.session_held(GONE):
        assert await world.relay("heir", session=OTHER).take_over(GONE) == 0

    assert len(await living.mark_published_batch(claim, published(claim))) == 1


async def test_no_other_events_are_taken_over(world: World) -> None:
    """Neither those of another session, nor those of a worker that has no session."""
    for session in (OTHER, ""):
        await world.add()
        await world.relay(GONE, session=session).find_unpublished(batch_max=1)

    assert await world.relay("heir").take_over(GONE) == 0


async def test_an_event_whose_workers_end_again_and_again_is_dead_at_last(world: World) -> None:
    event_id = await world.add()
    for nth in range(1, 4):
        await world.make_due(event_id)
        worker = world.relay(f"w{nth}", session=f"0000000{nth}", failures_max=3)
        assert ids(await worker.find_unpublished(batch_max=9)) == [event_id]
        assert await worker.take_over(f"0000000{nth}") == 1
    row = await world.row(event_id)
    assert (row.state, row.failures) == ("DEAD", 3)

"""The OutboxRepository contract (PORT-047-001) on the order of a key, over the fake and over PostgreSQL."""

import pytest

from tests.support.outboxes import SHORT_SECONDS, World, died, ids, postponed, published, released


@pytest.mark.clause("event-model-15")
async def test_a_key_is_claimed_as_a_run_from_its_head(world: World) -> None:
    a1, b1, a2, a3 = [await world.add(key=key) for key in "abaa"]
    first, second = world.relay("w1", ordered=True), world.relay("w2", ordered=True)
    got = await first.find_unpublished(batch_max=3)
    assert ids(got) == [a1, b1, a2]
    assert ids(await second.find_unpublished(batch_max=3)) == []
    await first.mark_published_batch(got, published(got))
    assert ids(await first.find_unpublished(batch_max=3)) == [a3]


@pytest.mark.clause("event-model-15")
async def test_a_postponed_head_blocks_its_key_and_no_other(world: World) -> None:
    relay = world.relay(ordered=True)
    head = await world.add(key="a")
    claim = await relay.find_unpublished(batch_max=1)
    await relay.increment_attempts_batch(claim, postponed(claim, delay_seconds=SHORT_SECONDS))
    follower, other = await world.add(key="a"), await world.add(key="b")

    assert ids(await relay.find_unpublished(batch_max=9)) == [other]
    await world.pass_time(SHORT_SECONDS * 2)
    again = await relay.find_unpublished(batch_max=9)
    assert ids(again) == [head]
    await relay.mark_published_batch(again, published(again))
    assert ids(await relay.find_unpublished(batch_max=9)) == [follower]


async def test_a_released_rest_of_a_run_comes_again_in_order(world: World) -> None:
    relay = world.relay(ordered=True)
    added = [await world.add(key="a") for _ in range(3)]
    claim = await relay.find_unpublished(batch_max=9)
    await relay.increment_attempts_batch(claim, postponed(claim)[:1])
    await relay.release(claim, released(claim)[1:])
    assert ids(await relay.find_unpublished(batch_max=9)) == added[:1]


async def test_a_claim_follows_those_whose_events_are_published_before(world: World) -> None:
    a1, b1, a2, b2 = [await world.add(key=key) for key in "abab"]
    relay = world.relay(ordered=True)
    first = await relay.find_unpublished(batch_max=2)
    second = await relay.find_unpublished(batch_max=1, following=[first])
    third = await relay.find_unpublished(batch_max=2, following=[first, second])
    assert [ids(claim) for claim in (first, second, third)] == [[a1, b1], [a2], [b2]]


async def test_a_claim_follows_no_claim_that_it_is_not_given(world: World) -> None:
    relay, other = world.relay("w1", ordered=True), world.relay("w2", ordered=True)
    head, follower = [await world.add(key="a") for _ in range(2)]
    first = await relay.find_unpublished(batch_max=1)
    assert ids(await other.find_unpublished(batch_max=9)) == []
    await relay.increment_attempts_batch(first, postponed(first, delay_seconds=60.0))
    assert ids(await relay.find_unpublished(batch_max=9, following=[first])) == []
    await world.make_due(head)
    assert ids(await relay.find_unpublished(batch_max=9, following=[first])) == [head]
    assert (await world.row(follower)).attempts == 0


async def test_nothing_follows_an_event_that_has_failed_before(world: World) -> None:
    relay = world.relay(ordered=True)
    head, follower = [await world.add(key="a") for _ in range(2)]
    claim = await relay.find_unpublished(batch_max=1)
    await relay.increment_attempts_batch(claim, postponed(claim))
    again = await relay.find_unpublished(batch_max=9)
    assert ids(again) == [head]
    assert ids(await relay.find_unpublished(batch_max=9, following=[again])) == []
    await relay.mark_published_batch(again, published(again))
    assert ids(await relay.find_unpublished(batch_max=9)) == [follower]


@pytest.mark.clause("dead-head")
@pytest.mark.parametrize("hold", [False, True])
async def test_a_dead_head_holds_its_key_where_that_is_wanted(world: World, hold: bool) -> None:
    relay = world.relay(ordered=True, hold_dead_keys=hold)
    dead = await world.add(key="a")
    claim = await relay.find_unpublished(batch_max=1)
    await relay.increment_attempts_batch(claim, died(claim))
    follower, other = await world.add(key="a"), await world.add(key="b")

    assert ids(await relay.find_unpublished(batch_max=9)) == ([other] if hold else [follower, other])
    if hold:
        await world.replay(dead)
        assert ids(await relay.find_unpublished(batch_max=9)) == [dead, follower]


async def test_a_dead_event_does_not_hold_what_comes_before_it(world: World) -> None:
    relay = world.relay(ordered=True, hold_dead_keys=True)
    first, second = [await world.add(key="a") for _ in range(2)]
    claim = await relay.find_unpublished(batch_max=9)
    head, dead = postponed(claim)[0], died(claim)[1]
    await relay.increment_attempts_batch(claim, [head, dead])

    assert ids(await relay.find_unpublished(batch_max=9)) == [first]
    assert (await world.row(second)).state == "DEAD"


@pytest.mark.clause("event-model-15")
async def test_a_reaped_run_keeps_its_order(world: World) -> None:
    relay = world.relay(ordered=True, lease_seconds=SHORT_SECONDS)
    added = [await world.add(key="a") for _ in range(3)]
    await relay.find_unpublished(batch_max=9)
    await world.pass_time(SHORT_SECONDS * 2)
    assert (await relay.reap()).leases == 3
    await world.set_clock_back(60.0)  # no retry is due by chance
    for event_id in reversed(added):
        assert ids(await relay.find_unpublished(batch_max=9)) == []
        await world.make_due(event_id)
    seen = []
    for _ in added:
        claim = await relay.find_unpublished(batch_max=9)
        await relay.mark_published_batch(claim, published(claim))
        seen += ids(claim)
    assert seen == added

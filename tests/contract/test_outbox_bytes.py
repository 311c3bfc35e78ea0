"""The bytes of a claim, in every form of the outbox."""

import pytest

from sea_mq_worker.ports import OutboxRepository
from tests.support.outboxes import World, ids, postponed, published

LARGE = b'"' + b"x" * 100_000 + b'"'
"""Takes a hundredth of its size in a table that compresses."""


async def fail(relay: OutboxRepository) -> None:
    """Let all that is due be tried in vain, and be due again."""
    claim = await relay.find_unpublished(batch_max=9)
    await relay.increment_attempts_batch(claim, postponed(claim))


async def claims_of_two(relay: OutboxRepository) -> list[list[str]]:
    """Claim and publish as long as there is more, with room for two large events in each claim."""
    claims = [await relay.find_unpublished(batch_max=9, bytes_max=250_000)]
    assert claims[0].cut
    assert 200_000 < claims[0].bytes <= 250_000
    while claims[-1].more:
        await relay.mark_published_batch(claims[-1], published(claims[-1]))
        claims.append(await relay.find_unpublished(batch_max=9, bytes_max=250_000))
    return [ids(claim) for claim in claims]


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("keys", [[None], ["a", "b", "c", "d", "e"]])
async def test_a_claim_keeps_its_limit_of_bytes_and_the_next_one_continues(
    world: World, keys: list[str | None], *, retried: bool
) -> None:
    added = [await world.add(payload=LARGE, key=keys[number % len(keys)]) for number in range(5)]
    relay = world.relay(ordered=keys != [None])
    if retried:
        await fail(relay)
    assert await claims_of_two(relay) == [added[:2], added[2:4], added[4:]]


async def test_the_bytes_of_a_claim_bound_a_run_of_a_key(world: World) -> None:
    added = [await world.add(payload=LARGE, key="k") for _ in range(5)]
    assert await claims_of_two(world.relay(ordered=True)) == [added[:2], added[2:4], added[4:]]


@pytest.mark.parametrize("key", [None, "k"])
async def test_one_event_is_claimed_however_large(world: World, key: str | None) -> None:
    added = [await world.add(payload=LARGE, key=key) for _ in range(2)]
    claim = await world.relay(ordered=key is not None).find_unpublished(batch_max=9, bytes_max=10)
    assert ids(claim) == added[:1]
    assert claim.events[0].payload == LARGE


async def test_a_claim_that_is_full_overtakes_nothing_of_a_key(world: World) -> None:
    first, large, small = [await world.add(payload=body, key="a") for body in (b"{}", LARGE, b"{}")]
    relay = world.relay(ordered=True)
    claim = await relay.find_unpublished(batch_max=9, bytes_max=1000)
    assert ids(claim) == [first]
    await relay.mark_published_batch(claim, published(claim))
    claim = await relay.find_unpublished(batch_max=9, bytes_max=1000)
    assert ids(claim) == [large]
    await relay.mark_published_batch(claim, published(claim))
    assert ids(await relay.find_unpublished(batch_max=9, bytes_max=1000)) == [small]


@pytest.mark.parametrize(("key", "retried"), [(None, False), ("k", False), (None, True)])
async def test_an_event_that_is_too_large_to_be_read_comes_as_its_size(
    world: World, key: str | None, *, retried: bool
) -> None:
    small, large, other = [
        await world.add(payload=body, key=key, headers='{"x-a": "1"}', metadata='{"b": 2}')
        for body in (b"{}", LARGE, b"{}")
    ]
    relay = world.relay(ordered=key is not None)
    if retried:
        await fail(relay)
    claim = await relay.find_unpublished(batch_max=9, bytes_max=1000, event_bytes_max=50_000)
    assert ids(claim) == [small, large, other]
    assert claim.bytes < 1000
    without = claim.events[1]
    assert (without.payload, without.headers or "", without.metadata or "") == (b"", "", "")
    assert 100_000 < without.withheld_bytes < 100_100
    assert [(event.headers, event.withheld_bytes) for event in claim.events[::2]] == [('{"x-a": "1"}', 0)] * 2


async def test_retries_and_first_tries_share_the_bytes_of_a_claim(database_world: World) -> None:
    relay = database_world.relay()
    for _ in range(4):
        await database_world.add(payload=LARGE)
    failed = await relay.find_unpublished(batch_max=4)
    await relay.increment_attempts_batch(failed, postponed(failed))
    for _ in range(8):
        await database_world.add(payload=LARGE)
    claims = [await relay.find_unpublished(batch_max=100, bytes_max=450_000) for _ in range(2)]
    assert [len(set(ids(failed)) & set(ids(claim))) for claim in claims] == [1, 1]
    assert [len(claim.events) for claim in claims] == [4, 4]
    one_each = [await relay.find_unpublished(batch_max=100, bytes_max=10) for _ in range(2)]
    assert {ids(claim)[0] in ids(failed) for claim in one_each} == {True, False}

"""The OutboxRepository contract (PORT-047-001), over the in-memory fake and over PostgreSQL."""

import asyncio
from typing import Any

import pytest

from sea_mq_worker.outbox.event import Claim, combined
from sea_mq_worker.ports import OutboxRepository
from tests.support.outboxes import SHORT_SECONDS, Row, World, died, ids, postponed, published, released

HOUR_SECONDS = 3600.0


async def claimed(world: World, **options: Any) -> tuple[str, OutboxRepository, Claim]:
    """Add an event, and claim it."""
    event_id, relay = await world.add(), world.relay(**options)
    return event_id, relay, await relay.find_unpublished(batch_max=1)


# --- claiming


@pytest.mark.clause("event-model-24", "store-11", "PORT-047-001")
async def test_claims_the_longest_due_up_to_the_limit(world: World) -> None:
    added = [await world.add(delay_seconds=-float(seconds)) for seconds in range(5)]
    relay = world.relay()

    first = await relay.find_unpublished(batch_max=3)
    second = await relay.find_unpublished(batch_max=3)
    third = await relay.find_unpublished(batch_max=3)

    assert (ids(first), first.more) == (added[2:], True)
    assert (ids(second), second.more) == (added[:2], False)
    assert (ids(third), third.more) == ([], False)


@pytest.mark.clause("event-model-33", "event-model-26")
async def test_a_claimed_event_names_its_worker(world: World) -> None:
    event_id = await world.add()
    await world.relay().find_unpublished(batch_max=1)
    assert await world.row(event_id) == Row(
        state="CLAIMED",
        attempts=1,
        failures=0,
        error=None,
        claimed=True,
        published=False,
        stream="",
        stream_seq=0,
    )


@pytest.mark.clause("event-model-21", "CMD-050")
async def test_the_attempt_is_counted_by_the_claim(world: World) -> None:
    await world.add()
    relay = world.relay()
    counts = []
    for _ in range(3):
        claim = await relay.find_unpublished(batch_max=1)
        counts.append(claim.events[0].attempts)
        await relay.increment_attempts_batch(claim, postponed(claim, failed=False))
    assert counts == [1, 2, 3]


@pytest.mark.clause("event-model-24")
async def test_an_event_is_claimed_when_it_is_due_and_not_before(world: World) -> None:
    event_id = await world.add(delay_seconds=HOUR_SECONDS)
    relay = world.relay()
    assert ids(await relay.find_unpublished(batch_max=1)) == []
    await world.set_clock_back(-HOUR_SECONDS)
    assert ids(await relay.find_unpublished(batch_max=1)) == [event_id]


@pytest.mark.clause("lifecycle-23")
@pytest.mark.fault("P44")
async def test_claims_at_once_are_disjoint(world: World) -> None:
    added = [await world.add() for _ in range(30)]
    relays = [world.relay(f"w{n}") for n in range(6)]
    claims = await asyncio.gather(*(relay.find_unpublished(batch_max=5) for relay in relays))
    left = await world.relay().find_unpublished(batch_max=30)
    assert sorted([event for claim in [*claims, left] for event in ids(claim)]) == sorted(added)


@pytest.mark.clause("event-model-08")
async def test_no_digit_of_a_payload_is_lost(world: World) -> None:
    payload = b'{"n": 1.00000000000000000000000000000001}'
    await world.add(payload=payload)
    claim = await world.relay().find_unpublished(batch_max=1)
    assert claim.events[0].payload == payload


@pytest.mark.clause("event-model-24")
async def test_a_lane_sees_only_its_own_events(world: World) -> None:
    plain, keyed = await world.add(), await world.add(key="a")
    assert ids(await world.relay(ordered=False).find_unpublished(batch_max=9)) == [plain]
    assert ids(await world.relay(ordered=True).find_unpublished(batch_max=9)) == [keyed]


# --- settling


@pytest.mark.clause("event-model-30", "CMD-050", "PORT-047-001")
async def test_a_published_event_keeps_where_the_stream_has_it(world: World) -> None:
    event_id, relay, claim = await claimed(world)
    assert {*await relay.mark_published_batch(claim, published(claim))} == {event_id}
    assert await world.row(event_id) == Row(
        state="PUBLISHED", attempts=1, failures=0, error=None, claimed=False, published=True,
        stream="ORDERS", stream_seq=7,
    )  # fmt: skip


@pytest.mark.clause("event-model-33", "lifecycle-12", "CMD-050-precondition")
@pytest.mark.parametrize("end", ["mark_published_batch", "increment_attempts_batch"])
async def test_a_terminal_event_is_never_claimed_again(world: World, end: str) -> None:
    _, relay, claim = await claimed(world)
    await getattr(relay, end)(claim, published(claim) if end == "mark_published_batch" else died(claim))
    await world.pass_time(SHORT_SECONDS)
    assert ids(await relay.find_unpublished(batch_max=1)) == []


@pytest.mark.clause("event-model-23", "event-model-26", "lifecycle-08", "PORT-047-001")
@pytest.mark.parametrize(("failed", "failures"), [(True, 1), (False, 0)])
async def test_a_postponed_event_is_due_after_its_delay(world: World, failed: bool, failures: int) -> None:
    event_id, relay, claim = await claimed(world)

    await relay.increment_attempts_batch(claim, postponed(claim, delay_seconds=SHORT_SECONDS, failed=failed))
    early = await relay.find_unpublished(batch_max=1)
    row = await world.row(event_id)
    await world.pass_time(SHORT_SECONDS * 2)
    again = await relay.find_unpublished(batch_max=1)

    assert ids(early) == []
    assert (row.state, row.failures, row.error, row.claimed) == ("PENDING", failures, "no answer", False)
    assert (ids(again), again.events[0].failures) == ([event_id], failures)
    assert again.events[0].attempted_seconds_ago > SHORT_SECONDS


@pytest.mark.clause("event-model-23", "lifecycle-12")
@pytest.mark.parametrize(
    ("error", "noted"),
    [("x" * 5000, "x" * 2000), ("no\0 \ud800, never", "never")],
    ids=["long", "unstorable"],
)
async def test_a_dead_event_has_its_reason_as_far_as_it_can_be_noted(
    world: World, error: str, noted: str
) -> None:
    event_id, relay, claim = await claimed(world)
    assert await relay.increment_attempts_batch(claim, died(claim, error)) == {event_id}
    row = await world.row(event_id)
    assert (row.state, row.attempts, row.failures, row.claimed, row.published) == ("DEAD", 1, 1, False, False)
    assert (row.error or "").endswith(noted)
    assert len(row.error or "") <= 2000


async def test_an_event_is_as_old_as_it_has_been_due(world: World) -> None:
    """Neither a time that it was scheduled for nor a replay makes it late."""
    await world.add(delay_seconds=-3600)
    claim = await world.relay().find_unpublished(batch_max=1)
    assert 3600 <= claim.events[0].age_seconds < 7200


@pytest.mark.clause("lifecycle-08")
async def test_a_released_event_is_due_at_once_as_if_never_tried(world: World) -> None:
    event_id, relay, claim = await claimed(world)
    await world.pass_time(SHORT_SECONDS)
    assert await relay.release(claim, released(claim)) == {event_id}

    again = await relay.find_unpublished(batch_max=1)
    assert (ids(again), again.events[0].failures) == ([event_id], 0)
    assert again.events[0].attempted_seconds_ago == 0.0


async def test_a_released_event_that_was_tried_before_keeps_its_first_attempt(world: World) -> None:
    _, relay, claim = await claimed(world)
    await relay.increment_attempts_batch(claim, postponed(claim))
    await world.pass_time(SHORT_SECONDS)
    claim = await relay.find_unpublished(batch_max=1)
    await relay.release(claim, released(claim))

    again = await relay.find_unpublished(batch_max=1)
    assert again.events[0].attempted_seconds_ago >= SHORT_SECONDS


async def test_a_publication_forgets_the_earlier_error(world: World) -> None:
    event_id, relay, claim = await claimed(world)
    await relay.increment_attempts_batch(claim, postponed(claim))
    claim = await relay.find_unpublished(batch_max=1)
    await relay.mark_published_batch(claim, published(claim))
    assert (await world.row(event_id)).error is None


@pytest.mark.clause("event-model-29")
async def test_settling_again_changes_nothing(world: World) -> None:
    event_id, relay, claim = await claimed(world)
    await relay.mark_published_batch(claim, published(claim))
    before = await world.row(event_id)
    assert await relay.mark_published_batch(claim, []) == {}
    assert await relay.increment_attempts_batch(claim, died(claim)) == frozenset()
    assert await world.row(event_id) == before


async def test_claims_that_are_settled_together_keep_their_own_tokens(world: World) -> None:
    for _ in range(3):
        await world.add()
    relay = world.relay()
    first, second, other = [await relay.find_unpublished(batch_max=1) for _ in range(3)]
    await relay.release(second, released(second))
    again = await relay.find_unpublished(batch_max=1)
    assert ids(again) == ids(second)
    together = combined([first, second])
    verdicts = [*published(together), *published(other)]
    assert {*await relay.mark_published_batch(together, verdicts)} == set(ids(first))
    rest = combined([other, again])
    assert {*await relay.mark_published_batch(rest, published(rest))} == {*ids(other), *ids(again)}


@pytest.mark.clause("event-model-29")
@pytest.mark.parametrize("end", ["mark_published_batch", "increment_attempts_batch"])
async def test_one_claim_cannot_settle_another_ones_events(world: World, end: str) -> None:
    for _ in range(4):
        await world.add()
    relay = world.relay()
    first, second = [await relay.find_unpublished(batch_max=2) for _ in range(2)]
    verdicts = published if end == "mark_published_batch" else died
    assert {*await getattr(relay, end)(first, verdicts(first) + verdicts(second))} == set(ids(first))
    assert {*await getattr(relay, end)(second, verdicts(second))} == set(ids(second))


# --- leases


@pytest.mark.clause("lifecycle-24")
async def test_an_expired_lease_is_ended_and_its_event_comes_again(world: World) -> None:
    event_id = await world.add()
    dying = world.relay("dying", lease_seconds=60.0)
    await dying.find_unpublished(batch_max=1)
    assert (await dying.reap()).leases == 0
    await world.set_clock_back(-120.0)

    assert (await dying.reap()).leases == 1
    row = await world.row(event_id)
    assert (row.state, row.failures, row.claimed) == ("PENDING", 1, False)
    assert row.error is not None
    assert row.error.startswith("the lease of dying ran out after 12")


@pytest.mark.clause("lifecycle-12", "killing-row")
@pytest.mark.parametrize("key", [None, "a"])
async def test_leases_that_run_out_spend_the_events_life(world: World, key: str | None) -> None:
    event_id = await world.add(key=key)
    relay = world.relay(ordered=key is not None, lease_seconds=SHORT_SECONDS, failures_max=2)
    for failures, state in ((1, "PENDING"), (2, "DEAD")):
        await world.make_due(event_id)
        await relay.find_unpublished(batch_max=1)
        await world.pass_time(SHORT_SECONDS * 2)
        await relay.reap()
        row = await world.row(event_id)
        assert (row.state, row.failures) == (state, failures)


async def test_one_reaper_serves_both_lanes(world: World) -> None:
    await world.add()
    await world.add(key="a")
    for ordered in (False, True):
        await world.relay(ordered=ordered).find_unpublished(batch_max=1)
    await world.pass_time(SHORT_SECONDS * 2)
    assert (await world.relay(lease_seconds=SHORT_SECONDS).reap()).leases == 2


@pytest.mark.clause("event-model-29", "lifecycle-17")
async def test_a_worker_without_the_lease_can_change_nothing(world: World) -> None:
    event_id = await world.add()
    slow = world.relay("slow", lease_seconds=0.0)
    lost = await slow.find_unpublished(batch_max=1)
    await world.pass_time(0.001)
    await slow.reap()
    await world.make_due(event_id)
    quick = world.relay("quick")
    current = await quick.find_unpublished(batch_max=1)

    assert await slow.mark_published_batch(lost, published(lost)) == {}
    assert (await world.row(event_id)).state == "CLAIMED"
    assert {*await quick.mark_published_batch(current, published(current))} == {event_id}


@pytest.mark.clause("event-model-26", "lifecycle-24")
async def test_a_lease_holds_until_it_is_reaped(world: World) -> None:
    """A slow worker that nobody took over may still settle."""
    event_id, relay, claim = await claimed(world, lease_seconds=SHORT_SECONDS)
    await world.pass_time(SHORT_SECONDS * 2)
    assert ids(await world.relay("w2").find_unpublished(batch_max=1)) == []
    assert {*await relay.mark_published_batch(claim, published(claim))} == {event_id}


# --- retries beside first tries


async def retries_due(world: World, relay: OutboxRepository, number: int) -> list[str]:
    """Add events that have failed once and are due again."""
    added = [await world.add() for _ in range(number)]
    claim = await relay.find_unpublished(batch_max=number)
    await relay.increment_attempts_batch(claim, postponed(claim))
    return added


@pytest.mark.parametrize(("retries", "first_tries", "of_both"), [(20, 3, (5, 3)), (3, 20, (2, 6))])
async def test_neither_retries_nor_first_tries_take_all_places_of_a_claim(
    database_world: World, retries: int, first_tries: int, of_both: tuple[int, int]
) -> None:
    relay = database_world.relay()
    failed = await retries_due(database_world, relay, retries)
    good = [await database_world.add() for _ in range(first_tries)]
    claim = await relay.find_unpublished(batch_max=8)
    assert tuple(len({*ids(claim)} & {*which}) for which in (failed, good)) == of_both


@pytest.mark.clause("store-11")
async def test_claims_of_one_place_serve_both(database_world: World) -> None:
    relay = database_world.relay()
    retries = await retries_due(database_world, relay, 2)
    for _ in range(2):
        await database_world.add()
    claims = [await relay.find_unpublished(batch_max=1) for _ in range(2)]
    assert {ids(claim)[0] in retries for claim in claims} == {True, False}


# --- replay


@pytest.mark.clause("lifecycle-15")
async def test_a_replayed_event_starts_a_new_lifecycle_and_knows_its_earlier_copy(world: World) -> None:
    event_id, relay, claim = await claimed(world)
    assert claim.events[0].earlier_stream_seq == 0
    await relay.mark_published_batch(claim, published(claim))
    await world.replay(event_id)

    again = (await relay.find_unpublished(batch_max=1)).events[0]
    assert (again.id, again.attempts, again.earlier_stream_seq) == (event_id, 1, 7)
    assert again.attempted_seconds_ago == 0.0
    assert again.age_seconds >= 0.0

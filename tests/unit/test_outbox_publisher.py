"""The outbound loop on in-memory fakes, in virtual time."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sea_mq_worker.errors import (
    BrokerUnavailableError,
    RowsRefusedError,
    StoreTooSlowError,
)
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.event import Claim, EventState
from sea_mq_worker.runtime.breaker import Permit
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.sessions import InMemoryKeyShare
from sea_mq_worker.testing.stream import Fault
from tests.support.outbox_world import LEASE, World
from tests.support.simulation import Interrupted, in_virtual_time


@pytest.mark.clause("terms-04", "CMD-050", "EVT-047-001")
@in_virtual_time
async def test_events_reach_the_stream_and_their_rows_say_where() -> None:
    world = World()
    for event_id in ("a", "b", "c"):
        world.table.add(event_id)
    async with world.relaying():
        await world.published(3)
    assert world.stored() == ["a", "b", "c"]
    assert [(row.stream, row.stream_seq) for row in world.table.rows.values()] == [
        ("SEA_EVENTS", 1),
        ("SEA_EVENTS", 2),
        ("SEA_EVENTS", 3),
    ]
    fact = world.events.of("event_published")[0]
    assert (fact.outbox_id, fact.subject) == ("a", "sea.event.order.created.v1")
    recorded_at = EPOCH + timedelta(seconds=world.row("a").published_at or 0.0)
    assert fact.published_at == recorded_at


@pytest.mark.clause("outage-spends-nothing")
@in_virtual_time
async def test_without_a_connection_nothing_is_claimed() -> None:
    world = World()
    world.publisher.connected = False
    world.table.add("a")
    async with world.relaying():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(3600)
        assert world.row("a").attempts == 0
        world.publisher.connected = True
        await world.published(1)
    assert len(world.events.of("circuit_opened")) == 1
    assert world.row("a").failures == 0


@in_virtual_time
async def test_a_lease_does_not_run_while_the_other_lane_probes_the_broker() -> None:
    world = World()
    world.table.add("a")
    lane = world.lane()
    lane.broker_breaker.record_failure("down")
    await asyncio.sleep(1)
    assert await lane.broker_breaker.enter(world.stop) is Permit.PROBE
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await asyncio.sleep(2 * LEASE)
        lane.broker_breaker.record_success()
        await world.published(1)
        world.stop.set()
    assert world.row("a").attempts == 1
    assert world.events.of("leases_lost") == []


@pytest.mark.parametrize(("fault", "closes"), [(Fault.LOST, True), (Fault.BARRED, False)])
def test_an_outage_ends_for_a_worker_whose_events_others_have_published(fault: Fault, closes: bool) -> None:
    """It finds none to probe with. A stream that answers had lost its link, and had not refused an event."""

    @in_virtual_time
    async def run() -> None:
        world = World()
        world.table.add("a")
        world.faults["a"] = fault
        async with world.relaying():
            await world.events.seen("circuit_opened")
            world.table.rows.clear()
            await asyncio.sleep(60)
        assert bool(world.events.of("circuit_closed")) == closes

    run()


@pytest.mark.clause("outage-spends-nothing")
@in_virtual_time
async def test_a_silent_broker_is_probed_with_one_event_at_a_time() -> None:
    world = World(delay=0.001)
    ids = [f"e{number}" for number in range(10)]
    for event_id in ids:
        world.table.add(event_id)
        world.faults[event_id] = Fault.LOST
    async with world.relaying():
        await world.events.seen("event_postponed", count=10)
        await asyncio.sleep(5)
        first, *probes = [fact.claimed for fact in world.events.of("batch_relayed")]
        assert first == 10
        assert len(probes) > 2
        assert set(probes) == {1}
        assert {row.failures for row in world.table.rows.values()} == {0}
        world.faults.clear()
        await world.published(10)
    assert world.events.of("circuit_closed")
    assert sorted(world.stored()) == sorted(ids)


@pytest.mark.parametrize("keeps_order", [False, True])
@in_virtual_time
async def test_good_events_are_found_behind_many_that_the_server_does_not_take_now(keeps_order: bool) -> None:
    world = World(delay=1000.0, keeps_order=keeps_order)
    barred = [f"barred{number}" for number in range(200)]
    for event_id in barred:
        world.table.add(event_id)
        world.faults[event_id] = Fault.BARRED
    world.table.add("good")
    async with world.relaying():
        await world.events.seen("event_published", within=40.0)
        assert {world.row(event_id).failures for event_id in barred} == {0}
        world.faults.clear()
        await world.published(201)
    assert world.events.of("circuit_opened")[0].reason == "the server takes nothing like it"


@pytest.mark.parametrize("keeps_order", [False, True])
@in_virtual_time
async def test_a_refused_event_keeps_no_other_key_waiting(keeps_order: bool) -> None:
    world = World(ordered=True, keeps_order=keeps_order)
    ids = [f"e{number}" for number in range(10)]
    for number, event_id in enumerate(ids):
        world.table.add(event_id, ordering_key=str(number))
    world.faults |= {"e0": Fault.REFUSED, "e3": Fault.REFUSED, "e4": Fault.FAILED}
    async with world.relaying():
        await world.events.seen("batch_relayed")
    assert set(world.stored()) == set(ids) - {"e0", "e3", "e4"}
    assert [world.row(event_id).state for event_id in ("e0", "e3", "e4")] == ["DEAD", "DEAD", "PENDING"]
    assert {row.attempts for row in world.table.rows.values()} == {1}
    assert not world.events.of("circuit_opened")


@in_virtual_time
async def test_a_probe_that_finds_an_invalid_event_leaves_the_way_free() -> None:
    world = World()
    world.publisher.connected = False
    world.table.add("bad", event_type="no good")
    world.table.add("good")
    async with world.relaying():
        await world.events.seen("circuit_opened")
        world.publisher.connected = True
        await world.published(1)
    assert world.states() == {"bad": "DEAD", "good": "PUBLISHED"}


@in_virtual_time
async def test_a_settlement_whose_answer_was_lost_is_no_lost_lease() -> None:
    world = World()
    world.table.add("a")
    world.outbox.loses_answer_of = "mark_published_batch"
    async with world.relaying():
        await world.published(1)
    assert [fact.circuit for fact in world.events.of("circuit_opened")] == ["store"]
    assert world.events.of("leases_lost") == []
    assert world.sent == ["a"]
    assert world.states() == {"a": "PUBLISHED"}


@in_virtual_time
async def test_what_another_worker_took_over_is_a_lost_lease_though_its_settlement_was_repeated() -> None:
    world = World()
    world.table.add("a")

    def lose_database(_event_id: str) -> None:
        world.outbox.down, world.session_lost_at = True, world.clock()

    world.on_send = lose_database
    async with world.relaying():
        await asyncio.sleep(1)
        other = world.outbox_of("w2")
        assert await other.take_over(session="") == 1
        assert (await other.find_unpublished()).events
        world.outbox.down = False
        assert (await world.events.seen("leases_lost")).count == 1
    assert world.events.of("event_published") == []


@in_virtual_time
async def test_what_was_settled_before_the_lease_ended_is_reported_though_the_rest_was_lost() -> None:
    world = World()
    for event_id in ("bad", "a", "b", "c"):
        world.table.add(event_id)
    mark_published = world.outbox.mark_published_batch

    async def refuse(claim: Any, verdicts: Any) -> Any:
        ids = [verdict.event.id for verdict in verdicts]
        if "bad" in ids:
            raise RowsRefusedError("a trigger of the table")
        world.outbox.down = ids == ["a"] or world.outbox.down
        return await mark_published(claim, verdicts)

    world.outbox.mark_published_batch = refuse
    async with world.relaying():
        lost = await world.events.seen("leases_lost", within=2 * LEASE)
    assert world.states() == {"bad": "CLAIMED", "a": "CLAIMED", "b": "PUBLISHED", "c": "PUBLISHED"}
    assert [fact.outbox_id for fact in world.events.of("event_published")] == ["b", "c"]
    assert len(world.events.of("row_refused")) == 1
    assert lost.count == 1


# --- unknown outcomes, pauses and searches


@in_virtual_time
async def test_no_other_worker_gets_the_head_of_a_key_while_this_one_holds_what_follows() -> None:
    world = World(ordered=True, keeps_order=True)
    for event_id in ("a1", "a2"):
        world.table.add(event_id, ordering_key="a")
    world.faults["a1"] = Fault.FAILED
    postpone = world.outbox.increment_attempts_batch
    before: dict[str, str] = {}

    async def noted(*args: Any) -> Any:
        before.update(world.states())
        world.faults.clear()
        return await postpone(*args)

    world.outbox.increment_attempts_batch = noted
    async with world.relaying():
        await world.published(2)
    assert before == {"a1": "CLAIMED", "a2": "PENDING"}
    assert world.stored() == ["a1", "a2"]


@pytest.mark.parametrize("window", [10.0, 3600.0], ids=["searched for", "known as a duplicate"])
@in_virtual_time
async def test_a_replay_whose_acknowledgement_was_lost_is_stored_once_in_a_recreated_stream(
    window: float,
) -> None:
    world = World(window=window)
    world.table.add("a")
    row = world.row("a")
    row.state, row.published_at, row.stream_seq = EventState.PUBLISHED, world.clock(), 5000
    world.table.replay("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.events.seen("event_postponed")
        world.faults.clear()
        await world.published(1)
    assert world.stored() == ["a"]
    assert (row.stream_seq, len(world.events.of("event_postponed"))) == (1, 1)


@in_virtual_time
async def test_a_settlement_that_outlasts_its_lease_is_given_up_and_stored_only_once() -> None:
    world = World()
    world.table.add("a")

    def lose_database(_event_id: str) -> None:
        world.outbox.down = len(world.sent) == 1

    world.on_send = lose_database
    async with world.relaying():
        lost = await world.events.seen("leases_lost", within=2 * LEASE)
        world.outbox.down = False
        await asyncio.sleep(1)
        assert (await world.outbox.reap()).leases == 1
        await world.published(1)
    assert (lost.side, lost.count) == ("outbox", 1)
    assert world.sent == ["a", "a"]
    assert world.stored() == ["a"]


@pytest.mark.clause("CMD-050-idempotency")
@in_virtual_time
async def test_a_possibly_published_event_waits_while_the_stream_cannot_be_searched() -> None:
    world = World(window=10.0, delay=60.0)
    searching = Interrupted(world.publisher, BrokerUnavailableError("no leader"))
    searching.down = True
    find, world.publisher.find = world.publisher.find, searching.find
    world.table.add("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.events.seen("event_postponed", lambda fact: fact.error == "no leader", within=600.0)
        assert "no leader" not in [fact.reason for fact in world.events.of("circuit_opened")]
        world.table.add("b")
        await world.published(1)
        assert world.states() == {"a": "PENDING", "b": "PUBLISHED"}
        await world.events.seen("search_unfinished", within=6000.0)
        world.publisher.find = find
        await world.published(2)
    assert world.sent == ["a", "b"]
    assert world.row("a").failures == 0


@pytest.mark.parametrize("change", ["the stream's window", "the database's clock"])
@in_virtual_time
async def test_a_repeat_is_searched_for_after_a_change_of(change: str) -> None:
    world = World(window=10.0 if "clock" in change else 3600.0)
    world.table.add("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.events.seen("event_postponed")
        world.faults.clear()
        world.row("a").available_at = world.clock() + 20.0
        if "clock" in change:
            world.row("a").first_attempt_at = world.clock() + 600.0
        world.stream.duplicate_window_seconds = 10.0
        await world.published(1)
    assert world.stored() == ["a"]


@in_virtual_time
async def test_a_window_that_was_shortened_while_no_answer_came_lets_no_second_copy_in() -> None:
    world = World(window=3600.0, delay=60.0)
    world.table.add("a")
    world.publisher.hears = False
    async with world.relaying():
        await world.events.seen("event_postponed")
        world.stream.duplicate_window_seconds = 1.0
        await world.events.seen("event_postponed", count=2, within=600.0)
        world.publisher.hears = True
        await world.published(1)
    assert world.stored() == ["a"]


@pytest.mark.parametrize("fault", [Fault.ACK_LOST, Fault.LOST], ids=["stored", "not stored"])
@in_virtual_time
async def test_a_search_longer_than_a_claim_continues_and_delays_no_event(fault: Fault) -> None:
    world = World(window=10.0, delay=60.0, ordered=True)
    for number in range(40):
        world.stream.store("sea.event.order.created.v1", b"{}", {"Nats-Msg-Id": f"other {number}"})
    world.table.add("a", ordering_key="k")
    world.table.add("behind", ordering_key="k")
    world.faults["a"] = fault
    world.publisher.find_max = 7
    async with world.relaying():
        await world.events.seen("event_postponed")
        del world.faults["a"]
        await world.events.seen("event_postponed", lambda fact: "searched" in fact.error, within=600.0)
        for number in range(5):
            world.table.add(f"new {number}", ordering_key=str(number))
            await world.published(number + 1)
        await world.published(7)
    [opened] = world.events.of("circuit_opened")
    assert opened.reason.startswith("no acknowledgement")
    events = [name for name in world.stored() if name in {"a", "behind"}]
    assert events == ["a", "behind"]
    assert world.row("a").failures == 0


@in_virtual_time
async def test_a_connection_that_comes_back_ends_the_pause_though_nothing_waits() -> None:
    world = World()
    world.publisher.connected = False
    async with world.relaying():
        await world.events.seen("circuit_opened")
        await asyncio.sleep(600)
        assert world.events.of("circuit_closed") == []
        world.publisher.connected = True
        await world.events.seen("circuit_closed", within=600.0)


@in_virtual_time
async def test_a_stream_that_refused_stays_paused_until_it_takes_something() -> None:
    world = World()
    lane = world.lane()
    lane.broker_breaker.record_failure("the stream is full", refused=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await asyncio.sleep(600)
        assert world.events.of("circuit_closed") == []
        world.table.add("a")
        await world.published(1)
        world.stop.set()


@in_virtual_time
async def test_a_probe_whose_only_good_news_is_an_event_that_was_found_gives_others_their_turn() -> None:
    world = World(window=10.0)
    for event_id in ("barred", "barred too"):
        world.table.add(event_id)
        world.faults[event_id] = Fault.BARRED
    world.table.add("doubtful")
    world.faults["doubtful"] = Fault.ACK_LOST
    async with world.relaying():
        await world.published(1)
        world.faults.clear()
        await world.published(3)
    assert world.stored() == ["doubtful", "barred", "barred too"]


# --- large events, and claims that take long


@in_virtual_time
async def test_a_claim_that_cannot_be_read_in_time_is_asked_for_in_half_the_size() -> None:
    world = World()
    for number in range(40):
        world.table.add(str(number))
    find, asked = world.outbox.find_unpublished, []

    async def find_few(*, batch_max: int, **limits: int) -> Claim:
        asked.append(batch_max)
        if batch_max > 3 and len(asked) < 20:
            raise StoreTooSlowError("too slow")
        found: Claim = await find(batch_max=batch_max, **limits)
        return found

    world.outbox.find_unpublished = find_few
    async with world.relaying():
        await world.published(40)
    assert asked[:8] == [10, 5, 2, 4, 2, 4, 2, 4]
    assert asked[-1] == 10, "it grows again"


@in_virtual_time
async def test_a_claim_that_took_longer_to_read_than_to_publish_is_published() -> None:
    world = World()
    world.table.add("a")
    find = world.outbox.find_unpublished

    async def find_slowly(**limits: int) -> Claim:
        found: Claim = await find(**limits)
        await asyncio.sleep(15)
        return found

    world.outbox.find_unpublished = find_slowly
    async with world.relaying():
        await world.published(1)
    assert world.row("a").attempts == 1


@in_virtual_time
async def test_what_can_never_be_sent_is_dead_although_its_time_is_over_and_the_rest_is_given_back() -> None:
    world = World()
    world.table.add("wildcard", event_type="*")
    world.table.add("large", payload=b"x" * (2**20 - 100))  # fits without its headers
    world.table.add("good")
    find, claims = world.outbox.find_unpublished, []

    async def find_too_late(**limits: int) -> Claim:
        found: Claim = await find(**limits)
        claims.append(found)
        if len(claims) == 1:
            await asyncio.sleep(LEASE - 1)
        return found

    world.outbox.find_unpublished = find_too_late
    async with world.relaying():
        await world.published(1)
    assert world.states() == {"wildcard": "DEAD", "large": "DEAD", "good": "PUBLISHED"}
    assert [len(claim.events) for claim in claims if claim.events] == [3, 1]
    assert world.sent == ["good"]


@in_virtual_time
async def test_an_event_released_repeatedly_is_logged_at_a_bounded_rate() -> None:
    world = World()
    world.table.add("a")

    def lost(_claimed_at: float) -> bool:
        if world.row("a").attempts == 70:
            world.stop.set()
        return True

    await replace(world.lane(), session_lost_since=lost).run(world.stop)
    reported = [notice.text for notice in world.events.notices]
    assert [re.findall(r"claimed (\d+) times", text) for text in reported] == [["16"], ["32"], ["64"]]


@pytest.mark.parametrize("batches_max", [1, 8])
@in_virtual_time
async def test_all_claims_in_hand_share_their_room(batches_max: int) -> None:
    """However many there may be, no more than four of 1 MiB are in hand."""
    world = World()
    for number in range(64):
        world.table.add(str(number), payload=b"x" * 250_000)
    in_hand: list[int] = []
    publish_batch = world.publisher.publish_batch

    async def publish_slowly(messages: Sequence[OutboundMessage], **options: Any) -> Any:
        claimed = [row for row in world.table.rows.values() if row.state is EventState.CLAIMED]
        in_hand.append(sum(len(row.payload) for row in claimed))
        await asyncio.sleep(1)
        return await publish_batch(messages, **options)

    world.publisher.publish_batch = publish_slowly
    lane = replace(world.lane(), batches_max=batches_max)
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await world.published(64)
        world.stop.set()
    assert max(in_hand) == min(batches_max, 4) * 1_000_000


# --- when a claim is settled


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
async def test_small_claims_of_a_key_are_settled_together() -> None:
    world = World(ordered=True)
    settled = recorded(world)
    async with world.relaying():
        for event_id in ("a1", "a2", "a3"):
            world.table.add(event_id, ordering_key="a")
            await eventually_stored(world, event_id)
        await world.published(3)
    assert settled == [["a1", "a2", "a3"]]


@in_virtual_time
async def test_a_claim_with_a_repeat_is_settled_at_once_because_later_events_of_its_key_wait_for_that() -> (
    None
):
    world = World(ordered=True)
    settled = recorded(world)
    world.faults["a1"] = Fault.FAILED
    world.table.add("a1", ordering_key="a")
    world.table.add("a2", ordering_key="a")
    async with world.relaying():
        await world.events.seen("event_postponed", count=1)
        world.faults.clear()
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


# --- claims that follow one another


def held(world: World, event_id: str) -> asyncio.Event:
    """Keep back the acknowledgements of an event's first batch until the returned event is set."""
    publish, gate = world.publisher.publish_batch, asyncio.Event()

    async def wait(messages: Sequence[OutboundMessage], **given: Any) -> Any:
        outcomes = await publish(messages, **given)
        if any(message.id == event_id for message in messages):
            await gate.wait()
        return outcomes

    world.publisher.publish_batch = wait
    return gate


@pytest.mark.clause("event-model-15")
@pytest.mark.parametrize("fault", [Fault.NONE, Fault.FAILED, Fault.LOST, Fault.ACK_LOST, Fault.REFUSED])
@pytest.mark.parametrize("hold", [False, True])
def test_a_later_claim_of_a_key_waits_for_the_acknowledgement_of_the_earlier_one(
    fault: Fault, hold: bool
) -> None:
    @in_virtual_time
    async def run() -> None:
        world = World(ordered=True, hold_dead_keys=hold)
        gate = held(world, "a1")
        world.faults["a1"] = fault
        world.table.add("a1", ordering_key="a")
        lane = replace(world.lane(), batches_max=3)
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            group.create_task(lane.run(world.stop))
            for event_id, key in (("a2", "a"), ("b1", "b")):
                while world.sent != ["a1"] or "PENDING" in world.states().values():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                world.table.add(event_id, ordering_key=key)
            await eventually_stored(world, "b1")
            assert (world.sent, world.states()["a2"]) == (["a1", "b1"], "CLAIMED")
            world.faults.clear()
            gate.set()
            if not (hold and fault is Fault.REFUSED):
                await eventually_stored(world, "a2")
            await asyncio.sleep(30)
            world.stop.set()
        stored = [name for name in dict.fromkeys(world.stored()) if name != "b1"]
        expected = {Fault.REFUSED: [] if hold else ["a2"]}.get(fault, ["a1", "a2"])
        assert stored == expected
        assert len(world.sent) - len(set(world.sent)) == (fault in {Fault.FAILED, Fault.LOST, Fault.ACK_LOST})

    run()


# --- shares of several workers


@in_virtual_time
async def test_workers_divide_the_keys_and_one_that_stops_leaves_its_own_at_once() -> None:
    serving = dict[str, float]()
    first, second = World(ordered=True), World(ordered=True)
    second.table = first.table
    for name, world in (("w1", first), ("w2", second)):
        world.outbox = world.outbox_of(name)
        world.share = InMemoryKeyShare(serving, name, first.clock)
    ids = [f"e{number}" for number in range(40)]
    async with second.relaying():
        async with first.relaying():
            for event_id in ids[:20]:
                first.table.add(event_id, ordering_key=event_id)
            await asyncio.sleep(5)
            assert [bool(world.stored()) for world in (first, second)] == [True, True]
            assert sorted(first.stored() + second.stored()) == sorted(ids[:20])
        assert serving.keys() == {"w2"}
        for event_id in ids[20:]:
            first.table.add(event_id, ordering_key=event_id)
        await asyncio.sleep(5)
    assert sorted(first.stored() + second.stored()) == sorted(ids)
    assert serving == {}


@in_virtual_time
async def test_a_worker_that_cannot_publish_leaves_the_keys_to_others_and_probes_now_and_then() -> None:
    serving = dict[str, float]()
    sick, other = World(ordered=True), InMemoryKeyShare(serving, "other", lambda: 0.0)
    sick.share = InMemoryKeyShare(serving, "sick", lambda: 0.0)
    for number in range(20):
        sick.table.add(f"e{number}", ordering_key=f"e{number}")
        sick.faults[f"e{number}"] = Fault.LOST
    async with sick.relaying():
        await sick.events.seen("batch_relayed", count=3, within=600.0)
        await sick.events.seen("circuit_opened")
        assert await other.take(serves=True) == (0, 1)
        await asyncio.sleep(60.0)
        probes = len(sick.sent)
        await asyncio.sleep(600.0)
        assert 10 <= len(sick.sent) - probes <= 20
        assert serving.keys() == {"other"}
        sick.faults.clear()
        await sick.events.seen("circuit_closed", within=600.0)
        await asyncio.sleep(5)
        assert serving.keys() == {"other", "sick"}

"""A search for a doubtful event that cannot be made, or takes more than one claim."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from sea_mq_worker.domain.errors import BrokerUnavailableError
from sea_mq_worker.domain.facts import BatchRelayed, CircuitOpened, EventPostponed, Noticed
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult
from sea_mq_worker.testing.publisher import Fault
from tests.support.simulation import Interrupted, in_virtual_time
from tests.unit.test_outbox_publisher import LEASE, World


@pytest.mark.clause("delivery: no second copy after the duplicate window where that can be told")
@in_virtual_time
async def test_a_possibly_published_event_waits_while_the_stream_cannot_be_searched() -> None:
    world = World(window=10.0, delay=60.0)
    searching = Interrupted(world.publisher, BrokerUnavailableError("no leader"))
    searching.down = True
    find, world.publisher.find = world.publisher.find, searching.find
    world.table.add("a")
    world.faults["a"] = Fault.ACK_LOST
    async with world.relaying():
        await world.observer.seen(EventPostponed, lambda fact: fact.error == "no leader", within=600.0)
        assert "no leader" not in [fact.reason for fact in world.observer.of(CircuitOpened)]
        world.table.add("b")
        await world.published(1)
        assert world.states() == {"a": "PENDING", "b": "PUBLISHED"}
        await world.observer.seen(Noticed, lambda fact: fact.event == "search_unfinished", within=6000.0)
        world.publisher.find = find
        await world.published(2)
    assert world.sent == ["a", "b"]
    assert world.row("a").failures == 0


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
        await world.observer.seen(EventPostponed)
        del world.faults["a"]
        await world.observer.seen(EventPostponed, lambda fact: "searched" in fact.error, within=600.0)
        for number in range(5):
            world.table.add(f"new {number}", ordering_key=str(number))
            await world.published(number + 1)
        await world.published(7)
    assert [fact.reason for fact in world.observer.of(CircuitOpened)] == ["no acknowledgement"]
    events = [name for name in world.stored() if name in {"a", "behind"}]
    assert events == ["a", "behind"]
    assert world.row("a").failures == 0


@in_virtual_time
async def test_a_worker_that_stalled_in_its_search_sends_nothing() -> None:
    """Its claim may be another worker's by then."""
    world = World(window=10.0, delay=60.0)
    world.table.add("a")
    world.faults["a"] = Fault.LOST
    find = world.publisher.find

    async def stall(wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        await asyncio.sleep(LEASE - 20.0)
        return dict(await find(wanted))

    async with world.relaying():
        await world.observer.seen(EventPostponed)
        world.publisher.find = stall
        await world.observer.seen(BatchRelayed, lambda fact: fact.released == 1, within=600.0)
        assert world.sent == ["a"]
        del world.faults["a"]
        world.publisher.find = find
        await world.published(1)
    assert world.sent == ["a", "a"]

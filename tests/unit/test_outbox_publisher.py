"""The outbound loop on in-memory fakes, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.publisher import OutboxPublisher
from sea_mq_worker.runtime.breaker import Permit
from sea_mq_worker.runtime.waiting import PollingWakeup
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxRow, OutboxTable
from sea_mq_worker.testing.stream import Fault, InMemoryPublisher, InMemoryStream
from sea_mq_worker.worker import publisher_lanes
from tests.support.loop_world import LoopWorld
from tests.support.simulation import Interrupted, in_virtual_time

LEASE = 60.0


class World(LoopWorld):
    """A relay's lane with everything around it.

    Attributes:
        faults: what goes wrong with a message, by event id.
        on_send: called with the event id of each message as it is sent.
    """

    def __init__(
        self,
        *,
        ordered: bool = False,
        hold_dead_keys: bool = False,
        keeps_order: bool = False,
        window: float = 3600.0,
        delay: float = 1.0,
    ) -> None:
        super().__init__(
            outbox_backoff_seconds=delay,
            outbox_batch_max=10,
            outbox_batches_max=1,
            outbox_bytes_max=2**22,
            outbox_dead_key="hold" if hold_dead_keys else "continue",
            outbox_failures_max=3,
            outbox_lease_seconds=LEASE,
            outbox_publish_timeout_seconds=10.0,
            database_timeout_seconds=30.0,
        )
        self.table = OutboxTable(self.clock)
        self.stream = InMemoryStream(name="SEA_EVENTS", clock=self.clock, duplicate_window_seconds=window)
        self.sent: list[str] = []
        self.faults: dict[str, Fault] = {}
        self.on_send: Callable[[str], None] = lambda _event_id: None
        fake = InMemoryPublisher(
            stream=self.stream, clock=self.clock, faults=self._meet, keeps_order=keeps_order
        )
        self.publisher: Any = fake
        self.outbox: Any = Interrupted(
            InMemoryOutbox(
                table=self.table,
                worker="w1",
                lease_seconds=LEASE,
                ordered=ordered,
                hold_dead_keys=hold_dead_keys,
                failures_max=3,
                random=lambda: 0.5,
            ),
            StoreUnavailableError("the database is away"),
        )
        self._ordered = ordered
        self.turn: Any = None

    def row(self, event_id: str) -> OutboxRow:
        return self.table.rows[event_id]

    def states(self) -> dict[str, str]:
        return {row.id: row.state.value for row in self.table.rows.values()}

    def stored(self) -> list[str]:
        return [entry.headers["Nats-Msg-Id"] for entry in self.stream.entries()]

    async def published(self, count: int) -> None:
        await self.events.seen("event_published", count=count, within=600.0)

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        """Run the lane for the length of a block, then stop it gracefully."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lane().run(self.stop))
            yield
            self.stop.set()

    def lane(self) -> OutboxPublisher:
        parts = self.parts()
        make = publisher_lanes(parts, self.publisher, parts.breaker("store"))
        lane = make(self.outbox, PollingWakeup(), keyed=self._ordered, turn=self.turn)
        return replace(lane, batch_bytes_max=2**20)

    def _meet(self, message: OutboundMessage) -> Fault:
        self.sent.append(message.id)
        self.on_send(message.id)
        return self.faults.get(message.id, Fault.NONE)


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

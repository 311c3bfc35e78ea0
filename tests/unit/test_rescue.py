"""The loop that rescues what the server has given up on, on twins, in virtual time."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sea_mq_worker.adapters.memory.consumer import InMemoryConsumer
from sea_mq_worker.adapters.memory.inbox import InboxTable, InMemoryInbox
from sea_mq_worker.adapters.memory.observer import RecordingObserver
from sea_mq_worker.adapters.memory.publisher import InMemoryPublisher
from sea_mq_worker.adapters.memory.stranded import InMemoryStrandedMessages
from sea_mq_worker.adapters.memory.stream import InMemoryStream
from sea_mq_worker.application.burial import Burial
from sea_mq_worker.application.gate import Gate
from sea_mq_worker.application.reception import InHand, Reception
from sea_mq_worker.application.rescue import Rescuer
from sea_mq_worker.domain.dead_letters import dead_letter_message
from sea_mq_worker.domain.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.domain.facts import GatePaused, GateResumed, MessageDeadLettered
from sea_mq_worker.domain.messages import DeadLetter
from sea_mq_worker.domain.receipts import Run
from sea_mq_worker.domain.retry import Backoff
from tests.support.simulation import Interrupted, in_virtual_time

LEASE = 60.0
SUBJECT = "vibespro.event.vibe_created.v1"


class World:
    """A Rescuer with everything around it."""

    def __init__(self, *, dead_letter_window: float = 3600.0) -> None:
        self.clock = asyncio.get_running_loop().time
        self.stop = asyncio.Event()
        self.observer = RecordingObserver()
        self.upstream = InMemoryStream(name="VIBESPRO_EVENTS", clock=self.clock)
        self.consumer = InMemoryConsumer(
            stream=self.upstream, name="sea__from_vibespro", clock=self.clock, max_deliver=1
        )
        twin = InMemoryStrandedMessages(consumer=self.consumer, clock=self.clock)
        self.stranded: Any = Interrupted(twin, BrokerUnavailableError("no leader"))
        self.dead_letters = InMemoryStream(
            name="SEA_DLQ", clock=self.clock, duplicate_window_seconds=dead_letter_window
        )
        self.dlq = InMemoryPublisher(stream=self.dead_letters, clock=self.clock)
        self.table = InboxTable(self.clock)
        self.inbox: Any = Interrupted(
            InMemoryInbox(table=self.table, worker="w1"), StoreUnavailableError("the database is away")
        )
        self.reception = Reception(
            inbox=self.inbox, store_gate=self._gate("store"), observer=self.observer, lease_seconds=LEASE
        )

    async def give_up(self, *, body: bytes = b"{}", message_id: str = "") -> tuple[str, InHand]:
        """Let the server give up a message after its last delivery; return its id and that delivery."""
        message_id = message_id or str(uuid.uuid4())
        self.upstream.store(SUBJECT, body, {"Nats-Msg-Id": message_id})
        [message] = await self.consumer.fetch(1)
        await self.consumer.nak(message, delay_seconds=0)
        await self.consumer.fetch(1)
        assert self.consumer.given_up
        return message_id, self.reception.take(message, received_at=self.clock())

    async def lease(self, item: InHand) -> Run:
        """Lease a message as the worker did that had the last delivery."""
        [receipt] = await self.reception.record([item], self.stop)
        assert isinstance(receipt, Run)
        return receipt

    def buried(self) -> list[tuple[str, str]]:
        headers = [entry.headers for entry in self.dead_letters.entries()]
        return [(found["Dlq-Message-Id"], found["Dlq-Reason"]) for found in headers]

    async def settled(self) -> None:
        """Let enough time pass for several rounds; nothing may be left to rescue."""
        await asyncio.sleep(600)
        assert self.consumer.given_up == {}

    @asynccontextmanager
    async def rescuing(self) -> AsyncIterator[None]:
        """Run the loop for the length of a block, then stop it gracefully."""
        burial = Burial(
            context="sea",
            inbox=self.inbox,
            publisher=self.dlq,
            observer=self.observer,
            gate=self._gate("dead letters"),
            store_gate=self.reception.store_gate,
            clock=self.clock,
            lease_seconds=self.reception.lease_seconds,
        )
        rescuer = Rescuer(
            stranded=self.stranded,
            reception=self.reception,
            burial=burial,
            broker_gate=self._gate("stranded"),
            clock=self.clock,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(rescuer.run(self.stop))
            yield
            self.stop.set()

    def _gate(self, name: str) -> Gate:
        backoff = Backoff(base_seconds=0.2, cap_seconds=2.0, random=lambda: 1.0)
        return Gate(name=name, backoff=backoff, observer=self.observer, clock=self.clock)


@pytest.mark.clause("EVT-047-002")
@in_virtual_time
async def test_a_message_that_was_given_up_is_dead_lettered_once() -> None:
    world = World()
    message_id, _ = await world.give_up()
    async with world.rescuing():
        fact = await world.observer.seen(MessageDeadLettered)
        await asyncio.sleep(1)
        assert world.consumer.given_up == {}
        await world.settled()
    assert (fact.message_id, fact.reason, fact.attempts) == (message_id, "EXHAUSTED", 1)
    assert world.buried() == [(message_id, "EXHAUSTED")]
    assert world.table.rows[message_id].dead_lettered_at is not None


@in_virtual_time
async def test_a_message_without_an_id_keeps_the_reason_that_is_its_own() -> None:
    world = World()
    _, item = await world.give_up(message_id="42")
    async with world.rescuing():
        await world.observer.seen(MessageDeadLettered)
    assert world.buried() == [(item.entry.message_id, "INVALID_MESSAGE_ID")]


@in_virtual_time
async def test_the_body_of_a_message_that_was_given_up_is_not_looked_at() -> None:
    world = World()
    message_id, _ = await world.give_up(body=b"{")
    async with world.rescuing():
        await world.observer.seen(MessageDeadLettered)
    assert world.buried() == [(message_id, "EXHAUSTED")]


@pytest.mark.clause("POL-047-003")
@in_virtual_time
async def test_a_message_that_was_processed_at_its_last_delivery_is_only_forgotten() -> None:
    world = World()
    _, item = await world.give_up()
    run = await world.lease(item)
    await world.inbox.mark_processed([run.lease])
    async with world.rescuing():
        await world.settled()
    assert world.buried() == []


@in_virtual_time
async def test_a_message_whose_last_delivery_killed_its_worker_waits_for_the_lease_to_end() -> None:
    world = World()
    message_id, item = await world.give_up()
    await world.lease(item)
    async with world.rescuing():
        await asyncio.sleep(LEASE / 2)
        assert world.buried() == []
        fact = await world.observer.seen(MessageDeadLettered, within=600.0)
        await world.settled()
    assert fact.attempts == 1
    assert world.buried() == [(message_id, "EXHAUSTED")]


@pytest.mark.clause("CMD-052")
@in_virtual_time
async def test_a_dead_letter_that_a_dead_worker_had_begun_is_found_and_not_repeated() -> None:
    world = World(dead_letter_window=10.0)
    message_id, item = await world.give_up()
    run = await world.lease(item)
    await world.inbox.begin_dead_letter(run.lease, reason="EXHAUSTED", detail="")
    letter = DeadLetter(
        message_id=message_id,
        original_subject=SUBJECT,
        reason="EXHAUSTED",
        attempts=1,
        detail="",
        source=item.message,
    )
    message = dead_letter_message(letter, context="sea")
    await world.dlq.publish(message.subject, message.payload, message.headers)
    async with world.rescuing():
        await world.observer.seen(MessageDeadLettered, within=600.0)
        await world.settled()
    assert world.buried() == [(message_id, "EXHAUSTED")]


@pytest.mark.parametrize("lost", ["inbox", "stranded", "dead letters"])
@in_virtual_time
async def test_an_outage_delays_the_rescue_and_loses_nothing(lost: str) -> None:
    world = World()
    message_id, _ = await world.give_up()

    def set_lost(*, away: bool) -> None:
        match lost:
            case "inbox":
                world.inbox.down = away
            case "stranded":
                world.stranded.down = away
            case _:
                world.dlq.connected = not away

    set_lost(away=True)
    async with world.rescuing():
        await world.observer.seen(GatePaused)
        await asyncio.sleep(LEASE / 2)
        set_lost(away=False)
        await world.observer.seen(GateResumed)
        await world.observer.seen(MessageDeadLettered)
        await world.settled()
    assert world.buried() == [(message_id, "EXHAUSTED")]

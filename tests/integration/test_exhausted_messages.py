"""Messages that the server gave up, found by advisory and by sweep, and messages that left the stream."""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.undelivered import NatsExhaustedMessages
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.testing.events import RecordingEvents
from tests.support.jetstream import connected, consumer_info, create_consumer, create_stream, store

WAIT = 0.2


@dataclass(kw_only=True)
class World:
    """One consumer that gives up after a single delivery, and the stream of its advisories."""

    connection: NatsConnection
    stream: str
    events: RecordingEvents = field(default_factory=RecordingEvents)

    @property
    def advisories(self) -> str:
        return f"{self.stream}_ADVISORIES"

    def consumer(self, name: str = "durable") -> NatsJetStreamConsumer:
        return NatsJetStreamConsumer(
            connection=self.connection, stream=self.stream, durable=name, wait_seconds=WAIT
        )

    def exhausted(self, *names: str, sweep_seconds: float = 0.0) -> NatsExhaustedMessages:
        return NatsExhaustedMessages(
            connection=self.connection,
            stream=self.advisories,
            durable="keeper",
            consumers=[(self.stream, name) for name in names or ("durable",)],
            events=self.events,
            wait_seconds=WAIT,
            sweep_seconds=sweep_seconds,
        )

    async def add(self, *bodies: bytes) -> None:
        for body in bodies:
            await store(self.connection, f"{self.stream.lower()}.event.made.v1", body)

    async def give_up(self, *bodies: bytes, name: str = "durable") -> None:
        """Let the server give up messages; it notices at the next pull."""
        await self.add(*bodies)
        for message in await self.consumer(name).fetch(len(bodies)):
            await self.consumer(name).nak(message, delay_seconds=0.0)
        assert list(await self.consumer(name).fetch(1)) == []

    async def pending_advisories(self) -> int:
        info = await consumer_info(self.connection, self.advisories, "keeper")
        return int(info["num_pending"]) + int(info["num_ack_pending"])


@pytest_asyncio.fixture
async def world(nats_url: str, names: str) -> AsyncIterator[World]:
    async with connected(nats_url) as connection:
        world = World(connection=connection, stream=names.upper())
        advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{world.stream}.*"
        await create_stream(connection, world.stream, f"{names}.>")
        await create_stream(connection, world.advisories, advisory, retention="workqueue")
        for name in ("durable", "other"):
            await create_consumer(
                connection, world.stream, name, filter_subject=f"{names}.event.>", max_deliver=1
            )
        await create_consumer(connection, world.advisories, "keeper")
        yield world


@pytest.mark.clause("durable-consumer-max-deliver")
async def test_an_advisory_leads_to_the_message_until_it_is_settled(world: World) -> None:
    await world.give_up(b"a", b"b")
    exhausted = world.exhausted(sweep_seconds=60.0)
    found = await exhausted.fetch()
    assert {(message.payload, message.deliveries) for message in found} == {(b"a", 1), (b"b", 1)}
    for message in found:
        await exhausted.ack(message)
    assert list(await exhausted.fetch()) == []
    assert await world.pending_advisories() == 0


async def test_advisories_of_others_are_left_to_them(world: World) -> None:
    await world.give_up(b"a", name="other")
    assert list(await world.exhausted(sweep_seconds=60.0).fetch()) == []
    assert await world.pending_advisories() == 1


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_message_that_left_its_stream_is_reported_and_not_requested_again(
    world: World, is_recreated: bool
) -> None:
    await world.give_up(b"a")
    if is_recreated:
        await api(world.connection, f"STREAM.DELETE.{world.stream}")
        await create_stream(world.connection, world.stream, f"{world.stream.lower()}.>")
        await create_consumer(world.connection, world.stream, "durable")
        await world.add(b"another")
    else:
        await api(world.connection, f"STREAM.PURGE.{world.stream}")
    assert list(await world.exhausted().fetch()) == []
    [lost] = world.events.of("exhausted_message_lost")
    assert f"message 1 of stream {world.stream}" in lost.text
    assert await world.pending_advisories() == 0


async def test_a_paused_consumer_is_reported_once(world: World) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await api(world.connection, f"CONSUMER.PAUSE.{world.stream}.durable", {"pause_until": until})
    exhausted = world.exhausted()
    for _ in range(2):
        assert list(await exhausted.fetch()) == []
    assert [event.key for event in world.events.emitted] == ["consumer_paused"]


async def test_an_unreadable_advisory_is_reported_and_acknowledged(world: World) -> None:
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{world.stream}.durable"
    named = {"stream": world.stream, "consumer": "durable", "stream_seq": 1, "deliveries": 1}
    wrong = [{"stream": [1]}, *({"stream_seq": seq} for seq in (0, 2**64, math.inf, "1"))]
    bodies = [b"{", b"[]", b"[" * 100_000, *(json.dumps(named | one).encode() for one in wrong)]
    for body in bodies:
        await store(world.connection, subject, body)
    assert list(await world.exhausted().fetch()) == []
    assert [event.key for event in world.events.emitted] == ["advisory_unreadable"] * len(bodies)
    assert await world.pending_advisories() == 0


@pytest.mark.clause("durable-consumer-max-deliver")
async def test_a_sweep_finds_what_left_no_advisory(world: World) -> None:
    await store(world.connection, f"{world.stream.lower()}.unrelated")
    await world.give_up(b"a", b"b")
    await api(world.connection, f"STREAM.PURGE.{world.advisories}")
    exhausted = world.exhausted()
    first, second = await exhausted.fetch()
    assert [first.payload, second.payload] == [b"a", b"b"]
    assert (first.stream, first.consumer, first.seq) == (world.stream, "durable", 2)
    await exhausted.ack(first)
    assert list(await exhausted.fetch()) == [second]
    await exhausted.ack(second)
    assert list(await exhausted.fetch()) == []


async def test_a_sweep_begins_anew_with_a_durable_that_was_made_anew(world: World) -> None:
    await world.give_up(b"a")
    exhausted = world.exhausted()
    [first] = await exhausted.fetch()
    await exhausted.ack(first)
    assert list(await exhausted.fetch()) == []
    await api(world.connection, f"CONSUMER.DELETE.{world.stream}.durable")
    wanted = f"{world.stream.lower()}.event.>"
    await create_consumer(world.connection, world.stream, "durable", filter_subject=wanted, max_deliver=1)
    [delivered] = await world.consumer().fetch(1)
    await world.consumer().nak(delivered, delay_seconds=0.0)
    assert list(await world.consumer().fetch(1)) == []
    await api(world.connection, f"STREAM.PURGE.{world.advisories}")
    [again] = await exhausted.fetch()
    assert again.payload == b"a"


async def test_a_sweep_asks_for_nothing_that_its_consumer_does_not_want(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.give_up(b"a")
    for _ in range(20):
        await store(world.connection, f"{world.stream.lower()}.unrelated")
    await world.give_up(b"b")
    await api(world.connection, f"STREAM.PURGE.{world.advisories}")
    asked: list[str] = []
    request = world.connection.request

    async def counted(subject: str, *args: Any, **given: Any) -> bytes:
        asked.append(subject)
        return await request(subject, *args, **given)

    monkeypatch.setattr(world.connection, "request", counted)
    assert [message.payload for message in await world.exhausted().fetch()] == [b"a", b"b"]
    assert sum("STREAM.MSG.GET" in subject for subject in asked) == 3


async def test_a_sweep_waits_while_deliveries_are_unanswered(world: World) -> None:
    await world.give_up(b"a")
    await api(world.connection, f"STREAM.PURGE.{world.advisories}")
    await world.add(b"b")
    await world.consumer().fetch(1)
    assert list(await world.exhausted().fetch()) == []


async def test_a_missing_advisory_consumer_is_named(world: World) -> None:
    await api(world.connection, f"CONSUMER.DELETE.{world.advisories}.keeper")
    with pytest.raises(ContractError, match=f"keeper of stream {world.advisories}"):
        await world.exhausted().start()

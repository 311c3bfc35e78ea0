"""The contract of JetStreamConsumer (PORT-047-004), over the server and the in-memory fake.

Times are short instead of faked, because the server keeps its own; a fetch that comes back empty is the
proof that for its whole wait nothing was delivered.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.undelivered import NatsExhaustedMessages
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.ports import ExhaustedMessages, JetStreamConsumer
from sea_mq_worker.testing.consumer import InMemoryConsumer, InMemoryExhaustedMessages
from sea_mq_worker.testing.events import RecordingEvents
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.jetstream import SECOND, connected, create_consumer, create_stream, store
from tests.support.waiting import eventually

ACK_WAIT = 1.5
WAIT = 0.3
FETCHES = 6
"""So many that find nothing take longer than ACK_WAIT."""
MAX_DELIVER = 3
MAX_ACK_PENDING = 5


@dataclass(kw_only=True)
class World:
    """A consumer over a stream that the test fills."""

    consumer: JetStreamConsumer
    other: JetStreamConsumer
    """Another worker's view of the same durable."""
    exhausted: ExhaustedMessages
    store: Callable[[str, bytes, dict[str, str]], Awaitable[object]]
    subject: str
    held: list[InboundMessage] = field(default_factory=list)

    async def add(self, *bodies: str) -> None:
        for body in bodies:
            await self.store(self.subject, body.encode(), {"Nats-Msg-Id": body})

    async def fetch(self, batch: int = 10, *, within: float = 15.0) -> Sequence[InboundMessage]:
        """Fetch until something comes."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if found := await self.consumer.fetch(batch):
                return found
        raise AssertionError(f"nothing was delivered within {within} s")


@pytest.fixture
def wait() -> float:
    """How long a fetch waits."""
    return WAIT


@pytest_asyncio.fixture(params=["memory", "nats"])
async def world(
    request: pytest.FixtureRequest, nats_url: str, names: str, wait: float
) -> AsyncIterator[World]:
    if request.param == "memory":
        yield _memory(names, wait)
        return
    stream, subject, durable = names.upper(), f"{names}.event.made.v1", f"{names}__from"
    advisories, keeper = f"{stream}_ADVISORIES", f"{names}__max_deliveries"
    advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{durable}"
    async with connected(nats_url) as connection:
        await create_stream(connection, stream, f"{names}.event.>")
        await create_stream(connection, advisories, advisory)
        limits = {"max_deliver": MAX_DELIVER, "max_ack_pending": MAX_ACK_PENDING}
        await create_consumer(connection, stream, durable, ack_wait=int(ACK_WAIT * SECOND), **limits)
        await create_consumer(connection, advisories, keeper)
        consumer, other = (
            NatsJetStreamConsumer(connection=connection, stream=stream, durable=durable, wait_seconds=wait)
            for _ in range(2)
        )
        exhausted = NatsExhaustedMessages(
            connection=connection,
            stream=advisories,
            durable=keeper,
            consumers=[(stream, durable)],
            events=RecordingEvents(),
            wait_seconds=wait,
        )

        async def put(subject: str, payload: bytes, headers: dict[str, str]) -> object:
            return await store(connection, subject, payload, headers)

        yield World(consumer=consumer, other=other, exhausted=exhausted, store=put, subject=subject)
        await consumer.close()
        await other.close()
        await exhausted.close()


def _memory(names: str, wait: float) -> World:
    stream = InMemoryStream(name=names.upper(), clock=time.monotonic)
    consumer = InMemoryConsumer(
        stream=stream,
        name=f"{names}__from",
        clock=time.monotonic,
        ack_wait_seconds=ACK_WAIT,
        max_deliver=MAX_DELIVER,
        max_ack_pending=MAX_ACK_PENDING,
        wait_seconds=wait,
    )

    async def put(subject: str, payload: bytes, headers: dict[str, str]) -> object:
        return stream.store(subject, payload, headers)

    exhausted = InMemoryExhaustedMessages(consumer=consumer, clock=time.monotonic, wait_seconds=wait)
    return World(
        consumer=consumer, other=consumer, exhausted=exhausted, store=put, subject=f"{names}.event.made.v1"
    )


def bodies(messages: Sequence[InboundMessage]) -> list[str]:
    return [message.payload.decode() for message in messages]


async def test_a_delivery_carries_the_message_and_where_it_is_stored(world: World, names: str) -> None:
    await world.add("a", "b")
    first, second = await world.fetch()
    assert (first.stream, first.seq, first.consumer) == (names.upper(), 1, f"{names}__from")
    assert (first.subject, first.payload, first.headers) == (world.subject, b"a", {"Nats-Msg-Id": "a"})
    assert (first.deliveries, second.seq) == (1, 2)
    assert first.stored_at.utcoffset() is not None
    assert first.stored_at <= second.stored_at


async def test_nothing_there_is_an_empty_answer_after_a_bounded_wait(world: World) -> None:
    before = time.monotonic()
    assert list(await world.consumer.fetch(5)) == []
    assert WAIT * 0.8 <= time.monotonic() - before < WAIT + 10


@pytest.mark.parametrize("wait", [30.0])
async def test_a_waiting_fetch_returns_with_the_first_message(world: World, wait: float) -> None:
    waiting = asyncio.create_task(world.consumer.fetch(5))
    await asyncio.sleep(0)
    await world.add("a")
    before = time.monotonic()
    assert bodies(await waiting) == ["a"]
    assert time.monotonic() - before < wait / 2


@pytest.mark.clause("PORT-047-004")
async def test_no_more_than_asked_for(world: World) -> None:
    await world.add("a", "b", "c")
    assert bodies(await world.fetch(2)) == ["a", "b"]
    assert bodies(await world.fetch(2)) == ["c"]


async def test_no_more_bytes_come_than_were_asked_for_but_a_larger_message_comes_alone(world: World) -> None:
    for number, size in enumerate((400, 400, 3000, 400, 400)):
        await world.store(world.subject, b"x" * size, {"Nats-Msg-Id": str(number)})
    fetched = [await world.consumer.fetch(5, bytes_max=bytes_max) for bytes_max in (2000, 2000, 0, -1)]
    sizes = [[len(message.payload) for message in messages] for messages in fetched]
    assert sizes == [[400, 400], [3000], [400], [400]]


@pytest.mark.clause("PORT-047-004")
async def test_an_acknowledged_message_never_comes_back(world: World) -> None:
    await world.add("a")
    await world.consumer.ack((await world.fetch())[0])
    for _ in range(FETCHES):
        assert list(await world.consumer.fetch(5)) == []


@pytest.mark.clause("POL-047-007")
async def test_an_unacknowledged_message_is_delivered_again_after_ack_wait(world: World) -> None:
    await world.add("a")
    first = (await world.fetch())[0]
    assert list(await world.consumer.fetch(5)) == []
    again = (await world.fetch())[0]
    assert (again.seq, again.payload, again.deliveries) == (first.seq, first.payload, 2)
    assert again.stored_at == first.stored_at


async def test_a_message_in_progress_is_not_delivered_again(world: World) -> None:
    await world.add("a")
    message = (await world.fetch())[0]
    for _ in range(FETCHES):
        assert list(await world.consumer.fetch(5)) == []
        await world.consumer.in_progress(message)
    assert (await world.fetch())[0].deliveries == 2


@pytest.mark.clause("POL-047-007", "PORT-047-004")
async def test_a_refused_message_comes_back_after_its_delay_and_not_sooner(world: World) -> None:
    await world.add("a")
    delay = WAIT * 1.5
    await world.consumer.nak((await world.fetch())[0], delay_seconds=delay)
    assert list(await world.consumer.fetch(5)) == []
    again = await world.fetch(within=ACK_WAIT)
    assert (bodies(again), again[0].deliveries) == (["a"], 2)


async def test_a_message_that_was_put_off_can_be_had_sooner(world: World) -> None:
    await world.add("a")
    message = (await world.fetch())[0]
    await world.consumer.nak(message, delay_seconds=60.0)
    assert list(await world.consumer.fetch(5)) == []
    await world.consumer.nak(message, delay_seconds=0.1)
    assert bodies(await world.fetch(within=10.0)) == ["a"]


async def test_what_waits_for_a_place_is_read_ahead_and_delivered_all_the_same(world: World) -> None:
    await world.add(*"abcdefgh")
    assert await world.consumer.ahead(0, 10) is None, "it has room"
    held = await world.fetch()
    read = await world.consumer.ahead(0, 10)
    assert (bodies(read), [message.seq for message in read]) == ([*"fgh"], [6, 7, 8])
    assert bodies(await world.consumer.ahead(6, 1)) == ["g"]
    assert await world.consumer.ahead(8, 10) == []
    for message in read:
        await world.consumer.ack(message)
    await world.consumer.ack(held[0])
    assert "f" in bodies(await world.fetch())


async def test_a_late_acknowledgement_settles_a_later_delivery(world: World) -> None:
    await world.add("a")
    first = (await world.fetch())[0]
    assert (await world.fetch())[0].deliveries == 2
    await world.consumer.ack(first)
    for _ in range(FETCHES):
        assert list(await world.consumer.fetch(5)) == []


@pytest.mark.clause("durable-consumer")
async def test_unsettled_messages_are_bounded_and_an_acknowledgement_makes_room(world: World) -> None:
    await world.add(*"abcdefg")
    held = await world.fetch()
    assert bodies(held) == [*"abcde"]
    assert list(await world.consumer.fetch(5)) == []
    await world.consumer.ack(held[0])
    assert "f" in bodies(await world.fetch())


async def test_a_batch_is_acknowledged_at_once_and_only_what_is_in_it(world: World) -> None:
    await world.add(*"abcdefgh")
    held = await world.fetch()
    [read] = await world.consumer.ahead(0, 1)
    await world.consumer.ack_batch([*held[1:], read])
    await world.consumer.ack_batch([])
    seen: list[str] = []
    while not {"a", *"fgh"} <= set(seen):
        seen += bodies(await world.fetch())
    assert set(seen) == {"a", *"fgh"}


@pytest.mark.parametrize("wait", [30.0])
async def test_another_worker_that_waits_for_messages_is_seen_also_behind_max_ack_pending(
    world: World, wait: float
) -> None:
    await world.add(*"abcde")
    held = await world.fetch()
    while len(held) < MAX_ACK_PENDING:
        held = [*held, *await world.fetch()]
    pulls = getattr(world.consumer, "_pulls", None)
    await eventually(lambda: not (pulls and pulls.request), what="its own request is over")
    assert not await world.consumer.is_shared()
    waiting = asyncio.create_task(world.other.fetch(1))
    await eventually(world.consumer.is_shared, what="the other worker waits")
    await world.consumer.nak(held[0], delay_seconds=0.1)
    assert bodies(await waiting) == ["a"]
    assert await world.consumer.is_shared(), "it has got a message since the last look"
    assert not await world.consumer.is_shared()


async def test_what_will_not_be_delivered_again_is_read_back(world: World) -> None:
    await world.add("a", "b")
    held = await world.fetch(2)
    assert await world.consumer.find_undeliverable([1, 2]) == {}
    await world.consumer.ack(held[0])
    await world.add("c")

    async def acknowledged() -> Mapping[int, InboundMessage | None]:
        found = await world.consumer.find_undeliverable([1, 2, 3, 9])
        return found if 1 in found else {}

    found = await eventually(acknowledged, what="the acknowledgement has arrived")
    assert (set(found), found[9]) == ({1, 9}, None)
    message = found[1]
    assert message is not None
    assert (message.payload, message.headers) == (b"a", held[0].headers)
    assert (message.subject, message.stored_at) == (held[0].subject, held[0].stored_at)
    await world.consumer.ack(message)
    await world.consumer.nak(message, delay_seconds=0.0)
    await world.consumer.in_progress(message)


@pytest.mark.clause("durable-consumer-max-deliver")
async def test_a_message_at_max_deliver_is_exhausted_until_it_is_settled(world: World) -> None:
    await world.add("a")
    given: list[InboundMessage] = []
    for _ in range(MAX_DELIVER):
        given += await world.fetch()
        await world.consumer.nak(given[-1], delay_seconds=0.0)
    assert [message.deliveries for message in given] == [1, 2, 3]
    message = given[0]
    assert list(await world.consumer.fetch(5)) == []
    exhausted = (await world.exhausted.fetch())[0]
    assert (exhausted.seq, exhausted.payload, exhausted.headers) == (1, b"a", {"Nats-Msg-Id": "a"})
    assert (exhausted.stream, exhausted.consumer, exhausted.subject) == (
        message.stream,
        message.consumer,
        message.subject,
    )
    assert (exhausted.stored_at, exhausted.deliveries) == (message.stored_at, MAX_DELIVER)
    await world.exhausted.ack(exhausted)
    assert list(await world.exhausted.fetch()) == []


async def test_a_delivery_is_given_back_by_its_reply_subject_alone(world: World) -> None:
    await world.add("a")
    [first] = await world.fetch()
    began = time.monotonic()
    await world.consumer.give_back(first.reply, delay_seconds=0.1)
    [again] = await world.fetch()
    assert (again.seq, again.deliveries) == (first.seq, 2)
    assert time.monotonic() - began < ACK_WAIT

"""SDS-047's calls work on each port as the specification writes them, over fakes and adapters."""

import uuid
from collections.abc import AsyncIterator

import pytest

from sea_mq_worker.inbox.http import HttpEventHandler
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.message import Accepted, AlreadySettled, InboxMessage, Lease, LeasedElsewhere
from sea_mq_worker.nats.headers import NatsMsgId
from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.ports import JetStreamConsumer, JetStreamPublisher
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.handler import InMemoryHandler
from sea_mq_worker.testing.stream import InMemoryPublisher, InMemoryStream
from tests.support import inboxes
from tests.support.handlers import answer, handler_server
from tests.support.jetstream import SECOND, connected, create_consumer, create_stream
from tests.support.outboxes import SHORT_SECONDS, World, ids

Broker = tuple[JetStreamPublisher, JetStreamConsumer, str]
inbox_world = inboxes.world


# --- OutboxRepository: find_unpublished(), mark_published(id), increment_attempts(id, error)


@pytest.mark.clause("PORT-047-001")
async def test_what_was_found_is_marked_by_its_id(world: World) -> None:
    first, second = await world.add(), await world.add()
    outbox = world.relay()
    assert ids(await outbox.find_unpublished()) == [first, second]
    assert await outbox.mark_published(first)
    assert await outbox.mark_published(second, stored=Stored("ORDERS", 7))
    rows = [await world.row(one) for one in (first, second)]
    assert [(row.state, row.attempts, row.stream, row.stream_seq) for row in rows] == [
        ("PUBLISHED", 1, "", 0),
        ("PUBLISHED", 1, "ORDERS", 7),
    ]
    assert not await outbox.mark_published(first)


@pytest.mark.clause("PORT-047-001")
async def test_an_attempt_that_failed_is_counted_by_its_id_until_the_event_is_dead(world: World) -> None:
    event_id = await world.add()
    outbox = world.relay(failures_max=2)
    await outbox.find_unpublished()
    assert await outbox.increment_attempts(event_id, "no answer")
    row = await world.row(event_id)
    assert (row.state, row.attempts, row.failures, row.error) == ("PENDING", 1, 1, "no answer")
    await outbox.find_unpublished()
    assert await outbox.increment_attempts(event_id, "no answer")
    assert (await world.row(event_id)).state == "DEAD"
    assert not await outbox.increment_attempts(event_id, "no answer")


@pytest.mark.clause("CMD-050")
async def test_an_event_that_nobody_claimed_is_claimed_and_marked(world: World) -> None:
    plain, keyed = await world.add(), await world.add(key="a")
    outbox = world.relay()
    assert await outbox.mark_published(plain)
    assert await outbox.increment_attempts(keyed, "no answer", delay_seconds=60.0)
    assert [(await world.row(one)).attempts for one in (plain, keyed)] == [1, 1]
    assert not await outbox.mark_published(keyed)


@pytest.mark.clause("PORT-047-001")
async def test_what_another_worker_claimed_or_nobody_knows_is_left_alone(world: World) -> None:
    event_id = await world.add()
    await world.relay("w1").find_unpublished()
    other = world.relay("w2")
    before = await world.row(event_id)
    for unknown in (event_id, str(uuid.uuid4())):
        assert not await other.mark_published(unknown)
        assert not await other.increment_attempts(unknown, "no answer")
    assert await world.row(event_id) == before


@pytest.mark.clause("PORT-047-001")
async def test_a_claim_that_another_worker_took_over_marks_nothing(world: World) -> None:
    event_id = await world.add()
    slow, quick = world.relay("w1", lease_seconds=SHORT_SECONDS), world.relay("w2")
    await slow.find_unpublished()
    await world.pass_time(2 * SHORT_SECONDS)
    await slow.reap()
    await world.make_due(event_id)
    await quick.find_unpublished()
    assert not await slow.mark_published(event_id)
    assert await quick.mark_published(event_id)


# --- InboxRepository: insert(msg), mark_processed(id), record_error(id, error)


def message() -> InboxMessage:
    return InboxMessage(str(uuid.uuid4()), "vibespro.event.vibe_created.v1")


@pytest.mark.clause("PORT-047-002")
async def test_a_message_is_recorded_failed_and_processed_by_its_id(inbox_world: inboxes.World) -> None:
    inbox, msg = inbox_world.inbox(), message()
    first = await inbox.insert(msg)
    assert isinstance(first, Lease)
    assert await inbox.insert(msg) == LeasedElsewhere()
    assert await inbox.record_error(msg.message_id, "503")
    assert not await inbox.mark_processed(msg.message_id)
    again = await inbox.insert(msg._replace(content_hash=b"known now"))
    assert isinstance(again, Lease)
    assert again.attempts == 2
    assert await inbox.mark_processed(msg.message_id)
    assert await inbox.insert(msg) == AlreadySettled()
    assert not await inbox.record_error(msg.message_id, "late")


@pytest.mark.clause("PORT-047-002")
async def test_a_message_that_another_worker_leased_is_left_alone(inbox_world: inboxes.World) -> None:
    msg, other = message(), inbox_world.inbox()
    first = inbox_world.inbox()
    await first.insert(msg)
    assert not await other.mark_processed(msg.message_id)
    assert not await other.record_error(msg.message_id, "503")
    assert await first.mark_processed(msg.message_id)


# --- JetStreamPublisher: publish(subject, payload, headers)
# --- JetStreamConsumer: fetch(batch), ack(msg), nak(msg)


@pytest.fixture
def memory_broker(names: str) -> Broker:
    stream = InMemoryStream(name=names, clock=lambda: 0.0)
    consumer = InMemoryConsumer(stream=stream, name="d", clock=lambda: 0.0)
    return InMemoryPublisher(stream=stream, clock=lambda: 0.0), consumer, names


@pytest.fixture
async def nats_broker(nats_url: str, names: str) -> AsyncIterator[Broker]:
    async with connected(nats_url) as connection:
        await create_stream(connection, names, f"{names}.>")
        await create_consumer(connection, names, "d", ack_wait=120 * SECOND)
        publisher = NatsJetStreamPublisher(connection=connection, stream=names)
        consumer = NatsJetStreamConsumer(connection=connection, stream=names, durable="d")
        await publisher.start()
        await consumer.start()
        yield publisher, consumer, names


@pytest.fixture(params=["memory", "nats"])
def broker(request: pytest.FixtureRequest) -> Broker:
    made: Broker = request.getfixturevalue(f"{request.param}_broker")
    return made


@pytest.mark.clause("PORT-047-003", "PORT-047-004")
async def test_a_message_is_published_fetched_refused_and_acknowledged(broker: Broker) -> None:
    publisher, consumer, names = broker
    headers = {"Nats-Msg-Id": str(uuid.uuid4())}
    stored = await publisher.publish(f"{names}.event.made.v1", b'{"total": 1}', headers)
    assert stored == Stored(names, 1)
    [msg] = await consumer.fetch(5)
    assert (msg.payload, NatsMsgId.of({"nats-msg-id": msg.headers["Nats-Msg-Id"]}).value) == (
        b'{"total": 1}',
        headers["Nats-Msg-Id"],
    )
    await consumer.nak(msg)
    [again] = await consumer.fetch(5)
    assert (again.seq, again.deliveries) == (1, 2)
    await consumer.ack(again)


# --- EventHandler: handle(event_type, payload)


@pytest.mark.clause("PORT-047-005")
@pytest.mark.parametrize("kind", ["memory", "http"])
async def test_a_handler_is_called_with_type_and_payload(kind: str) -> None:
    async with handler_server(answer(200)) as server:
        real = HttpEventHandler(url=server.url, timeout_seconds=5, concurrency=1)
        handler = real if kind == "http" else InMemoryHandler()
        assert await handler.handle("vibe_created", b'{"vibe": "calm"}') == Accepted(200)
        await real.close()
        if isinstance(handler, InMemoryHandler):
            [request] = handler.requests
            assert (request.event_type, request.payload) == ("vibe_created", b'{"vibe": "calm"}')
        else:
            [call] = server.calls
            assert (call.json["event_type"], call.json["payload"]) == ("vibe_created", {"vibe": "calm"})

"""Faults of a consumer: missing, deleted, forbidden, restarted, cancelled."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import BrokerUnavailableError, ContractError, LimitsError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer, PullEnd, PullSubscription
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.operators.definitions import Definition, apply, check
from tests.support.jetstream import SECOND, connected, consumer_info, create_consumer, create_stream, store
from tests.support.proxy import proxied
from tests.support.traffic import Traffic
from tests.support.waiting import eventually

STREAM, DURABLE = "FAULTS", "durable"
WAIT_SECONDS, SOON_SECONDS = 30.0, 15.0
"""How long a fetch waits, and what is well before that."""
SUBJECT = "faults.event.made.v1"


async def bound(connection: NatsConnection, stream: str, **config: Any) -> NatsJetStreamConsumer:
    """Create stream and durable, and bind to them."""
    await create_stream(connection, stream, f"{stream.lower()}.event.>")
    await create_consumer(connection, stream, DURABLE, **config)
    return consumer_of(connection, stream)


def consumer_of(
    connection: NatsConnection, stream: str, *, wait_seconds: float = WAIT_SECONDS
) -> NatsJetStreamConsumer:
    return NatsJetStreamConsumer(
        connection=connection, stream=stream, durable=DURABLE, wait_seconds=wait_seconds
    )


@pytest.fixture
def stream(names: str) -> str:
    return names.upper()


async def waiting(connection: NatsConnection, stream: str) -> None:
    """Wait until a pull request has reached the server."""

    async def asked() -> bool:
        return bool((await consumer_info(connection, stream, DURABLE))["num_waiting"])

    await eventually(asked, what="a waiting pull request")


async def test_a_missing_consumer_is_named_with_what_to_do(connection: NatsConnection, stream: str) -> None:
    await create_stream(connection, stream, f"{stream.lower()}.event.>")
    consumer = consumer_of(connection, stream)
    with pytest.raises(ContractError, match=rf"{DURABLE} of stream {stream}.*streams apply"):
        await consumer.start()
    with pytest.raises(ContractError, match="does not exist"):
        await consumer.fetch(1)


@pytest.mark.clause("durable-consumer")
@pytest.mark.parametrize("unfit", [{"ack_policy": "none"}, {"headers_only": True}])
async def test_a_consumer_that_omits_bodies_or_acknowledgements_is_refused(
    connection: NatsConnection, stream: str, unfit: dict[str, Any]
) -> None:
    consumer = await bound(connection, stream, **unfit)
    with pytest.raises(ContractError, match=f"{next(iter(unfit))} is .*: it must be a pull consumer"):
        await consumer.start()


async def test_a_consumer_that_was_made_anew_meanwhile_breaks_no_contract(
    connection: NatsConnection, nats_url: str, stream: str
) -> None:
    await bound(connection, stream)
    async with proxied(nats_url) as (proxy, url), connected(url) as own:
        consumer = consumer_of(own, stream)
        fetching = asyncio.create_task(consumer.fetch(1))
        await waiting(connection, stream)
        proxy.stall()  # the consumer hears of its end when it is there again
        await api(connection, f"CONSUMER.DELETE.{stream}.{DURABLE}")
        await create_consumer(connection, stream, DURABLE)
        proxy.heal()
        with pytest.raises(BrokerUnavailableError, match="Consumer Deleted"):
            await asyncio.wait_for(fetching, SOON_SECONDS)
        await store(connection, f"{stream.lower()}.event.made.v1")
        assert [message.seq for message in await consumer.fetch(1)] == [1]


async def test_an_interruption_is_told_without_asking_for_the_consumer(
    connection: NatsConnection, stream: str
) -> None:
    """In a cluster that changes leaders, the answer would take seconds."""
    consumer = await bound(connection, stream, max_waiting=1)
    inbox = connection.client.new_inbox()
    await connection.client.subscribe(inbox)
    await connection.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{DURABLE}", b"1", reply=inbox)
    asked = await connection.client.subscribe(f"$JS.API.CONSUMER.INFO.{stream}.{DURABLE}")
    with pytest.raises(BrokerUnavailableError, match="Exceeded MaxWaiting"):
        await consumer.fetch(1)
    await connection.client.flush()
    assert asked.pending_msgs == 0


async def test_a_pull_request_without_a_leader_is_told_on_one_line(connection: NatsConnection) -> None:
    pulls = PullSubscription(connection, "nobody.listens", give_back=_unwanted)
    pulled = await pulls.fetch(1, wait_seconds=SOON_SECONDS)
    assert (pulled.ended.result(), pulled.status) == (PullEnd.REFUSED, "503")


async def test_a_consumer_with_limits_of_requests_is_asked_for_less(
    connection: NatsConnection, stream: str
) -> None:
    limits = {"max_batch": 2, "max_expires": SECOND // 5, "max_bytes": 2000}
    consumer = await bound(connection, stream, **limits)
    for size in (900, 10, 10, 3000):
        await store(connection, f"{stream.lower()}.event.made.v1", b"x" * size)
    with pytest.raises(BrokerUnavailableError, match="Exceeded MaxRequest"):
        await consumer.fetch(3)  # nobody has looked at the limits yet
    assert [[message.seq for message in await consumer.fetch(3)] for _ in range(3)] == [[1, 2], [3], [4]]
    assert await consumer.fetch(3) == []


@pytest.mark.parametrize(
    ("unfit", "named"),
    [
        ({"max_expires": SECOND // 100}, "max_expires"),
        ({"priority_policy": "overflow", "priority_groups": ["g"]}, "priority_policy is overflow"),
    ],
)
async def test_a_consumer_that_lets_no_request_through_is_named_and_can_be_mended(
    connection: NatsConnection, stream: str, unfit: dict[str, Any], named: str
) -> None:
    await create_stream(connection, stream, f"{stream.lower()}.event.>")
    named_only = {"durable_name": DURABLE, "name": DURABLE}
    file = Definition(stream=stream, durable=DURABLE, config=named_only)
    await create_consumer(connection, stream, DURABLE, **unfit)
    consumer = consumer_of(connection, stream)
    with pytest.raises(ContractError, match=named):
        await consumer.start()
    assert {difference.field for difference in await check(connection, [file])} == set(unfit)
    await apply(connection, [file])
    await store(connection, f"{stream.lower()}.event.made.v1")
    assert [message.seq for message in await consumer.fetch(1)] == [1]


async def test_limits_that_the_settings_contradict_later_end_the_fetching(
    connection: NatsConnection, stream: str
) -> None:
    await bound(connection, stream, ack_wait=60 * SECOND)

    consumer = NatsJetStreamConsumer(
        connection=connection, stream=stream, durable=DURABLE, wait_seconds=0.2, handler_timeout_seconds=30.0
    )
    await consumer.start()
    assert await consumer.fetch(1) == []
    config = (await consumer_info(connection, stream, DURABLE))["config"]
    for seconds in (20, 40):
        update = {
            "stream_name": stream,
            "config": config | {"ack_wait": seconds * SECOND},
            "action": "update",
        }
        await api(connection, f"CONSUMER.CREATE.{stream}.{DURABLE}", update)
        await consumer.look()
        if seconds == 20:
            with pytest.raises(LimitsError, match="must be below 20, ack_wait"):
                await consumer.fetch(1)
    assert await consumer.fetch(1) == []


async def test_a_full_max_ack_pending_does_not_hold_back_what_came(
    connection: NatsConnection, stream: str
) -> None:
    consumer = await bound(connection, stream, max_ack_pending=2)
    for _ in range(3):
        await store(connection, f"{stream.lower()}.event.made.v1")
    before = time.monotonic()
    assert [message.seq for message in await consumer.fetch(50)] == [1, 2]
    assert time.monotonic() - before < SOON_SECONDS
    assert not await consumer.is_shared(), "the open request is its own"


async def test_an_answer_that_comes_after_a_pause_of_the_process_is_no_refusal(
    connection: NatsConnection, stream: str
) -> None:
    await bound(connection, stream)
    consumer = consumer_of(connection, stream, wait_seconds=0.2)
    fetching = asyncio.create_task(consumer.fetch(1))
    await asyncio.sleep(0.05)
    time.sleep(1.5)  # noqa: ASYNC251 - the whole process pauses until request and patience are over
    with contextlib.suppress(BrokerUnavailableError):
        assert await fetching == []
    await store(connection, f"{stream.lower()}.event.made.v1")
    assert [message.seq for message in await consumer.fetch(1)] == [1]


def test_a_broken_socket_disturbs_no_request_that_ends(nats_url: str, names: str) -> None:
    async def end_a_request_on_a_closed_socket() -> None:
        async with connected(nats_url) as connection:
            await bound(connection, names.upper())
            inbox = PullSubscription(connection, "nobody.listens", give_back=_unwanted)
            await inbox.fetch(1, wait_seconds=SOON_SECONDS)
            transport: Any = connection.client._transport
            transport._io_writer.transport.abort()
            assert connection.is_connected, "nobody has noticed yet"
            await inbox.close()

    with asyncio.Runner(
        loop_factory=uvloop.new_event_loop
    ) as runner:  # the worker's loop raises, asyncio's not
        runner.run(end_a_request_on_a_closed_socket())


async def _unwanted(_msgs: object, _delay: float) -> None:
    raise AssertionError


async def test_a_cancelled_fetch_leaves_no_request_behind(connection: NatsConnection, stream: str) -> None:
    consumer = await bound(connection, stream)
    fetching = asyncio.create_task(consumer.fetch(5))
    await waiting(connection, stream)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert (await consumer_info(connection, stream, DURABLE))["num_waiting"] == 0
    await store(connection, f"{stream.lower()}.event.made.v1")
    assert [(message.seq, message.deliveries) for message in await consumer.fetch(5)] == [(1, 1)]


async def test_no_message_is_delivered_to_nobody(
    nats_url: str, connection: NatsConnection, stream: str
) -> None:
    await bound(connection, stream, ack_wait=120 * SECOND, max_ack_pending=50)
    await Traffic(lambda: connected(nats_url), stream, DURABLE).run(
        connection, f"{stream.lower()}.event.made.v1", 2000
    )


async def test_a_message_that_comes_between_two_fetches_is_taken_by_the_next(
    connection: NatsConnection, stream: str
) -> None:
    consumer = await bound(connection, stream)
    subject = f"{stream.lower()}.event.made.v1"
    await store(connection, subject)
    await consumer.ack((await consumer.fetch(1))[0])
    request = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{DURABLE}"
    await connection.client.publish(request, b"1", reply=f"{consumer._pulls._inbox}.stale")
    await waiting(connection, stream)
    await store(connection, subject)

    async def delivered() -> bool:
        info = await consumer_info(connection, stream, DURABLE)
        return bool(info["delivered"]["consumer_seq"] == 2)

    await eventually(delivered)
    assert [(message.seq, message.deliveries) for message in await consumer.fetch(1)] == [(2, 1)]


async def test_messages_that_no_fetch_takes_are_given_back(connection: NatsConnection, stream: str) -> None:
    """As while the handler's circuit is open; the request goes on, because max_ack_pending was reached."""
    consumer = await bound(connection, stream, max_ack_pending=2, ack_wait=120 * SECOND)
    for _ in range(3):
        await store(connection, f"{stream.lower()}.event.made.v1")
    first, second = await consumer.fetch(50)
    await consumer.ack_batch([first, second])
    other = consumer_of(connection, stream, wait_seconds=1.0)

    async def taken() -> list[tuple[int, int]]:
        return [(message.seq, message.deliveries) for message in await other.fetch(5)]

    assert await eventually(taken, within=15.0, what="another consumer has it") == [(3, 2)]


@pytest.mark.clause("POL-047-007")
async def test_no_acknowledgement_is_on_the_wire_when_a_message_is_refused(
    connection: NatsConnection, stream: str
) -> None:
    consumer = await bound(connection, stream)
    seen = await connection.client.subscribe(f"$JS.ACK.{stream}.>")
    await store(connection, f"{stream.lower()}.event.made.v1")
    message = (await consumer.fetch(1))[0]
    await consumer.in_progress(message)
    await consumer.nak(message, delay_seconds=2.5)
    await consumer.ack(message)
    verbs = [(await seen.next_msg()).data for _ in range(3)]
    assert verbs[0] == b"+WPI"
    assert verbs[1].startswith(b"-NAK ")
    assert json.loads(verbs[1][5:]) == {"delay": 2_500_000_000}
    assert verbs[2] == b"+ACK"


async def test_a_forbidden_pull_is_named(tmp_path: Path) -> None:
    everything = {"publish": ">", "subscribe": ">"}
    no_pulls = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}, "subscribe": ">"}
    users = [
        {"user": "admin", "password": "a", "permissions": everything},
        {"user": "worker", "password": "w", "permissions": no_pulls},
    ]
    async with EmbeddedNats(tmp_path, config={"authorization": {"users": users}}) as server:
        async with connected(server.url, user="admin", password="a") as admin:
            await bound(admin, STREAM)
        async with connected(server.url, user="worker", password="w") as connection:
            with pytest.raises(ContractError, match=r"no permission.*MSG\.NEXT\.FAULTS\.durable"):
                await asyncio.wait_for(consumer_of(connection, STREAM).fetch(1), SOON_SECONDS)


async def test_no_more_than_a_few_megabytes_come_at_once_but_one_message_of_any_size(tmp_path: Path) -> None:
    """As when max_payload was lowered since the message was stored."""
    large = b"x" * (5 * 2**20)
    generous = EmbeddedNats(tmp_path, config={"max_payload": 8 * 2**20})
    async with generous, connected(generous.url) as connection:
        await bound(connection, STREAM)
        for body in (b"first", large, *[b"y" * (2**20 - 100)] * 6):
            await store(connection, SUBJECT, body)
    async with EmbeddedNats(tmp_path) as strict, connected(strict.url) as connection:
        consumer = consumer_of(connection, STREAM, wait_seconds=0.5)
        sizes: list[list[int]] = []
        while sum(map(len, sizes)) < 8:
            messages = await consumer.fetch(50)
            sizes.append([len(message.payload) for message in messages])
            for message in messages:
                assert message.deliveries == 1
                await consumer.ack(message)
    assert [len(large)] in sizes
    assert max(sum(batch) for batch in sizes if batch != [len(large)]) <= 4 * 2**20


async def test_a_restart_ends_the_wait_and_the_next_fetch_delivers(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    async with server, connected(server.url) as connection:
        consumer = await bound(connection, STREAM)
        await store(connection, SUBJECT)
        held = (await consumer.fetch(1))[0]
        fetching = asyncio.create_task(consumer.fetch(1))
        await waiting(connection, STREAM)
        await server.kill()
        with pytest.raises(BrokerUnavailableError):
            await asyncio.wait_for(fetching, SOON_SECONDS)
        with pytest.raises(BrokerUnavailableError, match="down"):
            await consumer.fetch(1)
        await consumer.ack(held)
        await server.start()
        await eventually(lambda: connection.is_connected, what="the connection is back")
        await store(connection, SUBJECT)
        assert [message.seq for message in await consumer.fetch(1)] == [2]
        info = await consumer_info(connection, STREAM, DURABLE)
        assert info["num_ack_pending"] == 2, "the acknowledgement while down must not be sent later"

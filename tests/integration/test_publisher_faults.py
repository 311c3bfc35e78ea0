"""The publisher in trouble on a real server: it gives up no event and keeps no dead connection."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop
from nats.aio.msg import Msg

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.message import PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from tests.contract.test_jetstream_publisher import again, message, stored
from tests.support.jetstream import connected, create_stream, stored_messages
from tests.support.proxy import TcpProxy, proxied
from tests.support.waiting import eventually

Mode = Literal["auto", "pipeline", "atomic"]
BATCHES = {"allow_atomic": True}
MODES: tuple[Mode, ...] = ("pipeline", "atomic")
FORGED = (
    b'{"stream":"S","seq":"x"}', b'{"stream":"S","seq":null}', b'{"error":"text"}', b"[" * 100_000,
    b'{"stream":"S","seq":1,"batch":"b","count":{}}',
)  # fmt: skip
every_mode = pytest.mark.parametrize("mode", MODES)


async def started(connection: NatsConnection, stream: str, mode: Mode = "auto") -> NatsJetStreamPublisher:
    publisher = NatsJetStreamPublisher(connection=connection, stream=stream, mode=mode)
    await publisher.start()
    return publisher


async def created(
    connection: NatsConnection, stream: str, mode: Mode = "auto", **config: Any
) -> NatsJetStreamPublisher:
    """Create a stream that allows every mode, and bind a publisher to it."""
    await create_stream(connection, stream, f"{stream}.>", **{**BATCHES, **config})
    return await started(connection, stream, mode)


async def update(connection: NatsConnection, stream: str, **change: Any) -> None:
    config = (await api(connection, f"STREAM.INFO.{stream}"))["config"]
    await api(connection, f"STREAM.UPDATE.{stream}", config | change)


def kinds(outcomes: list[PublishOutcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


async def test_a_missing_stream_is_named_at_the_start_with_what_to_do(
    connection: NatsConnection, names: str
) -> None:
    with pytest.raises(ContractError, match=f"{names}.*streams apply"):
        await started(connection, names)


async def test_a_mode_that_the_stream_does_not_allow_is_refused_at_the_start(
    connection: NatsConnection, names: str
) -> None:
    await create_stream(connection, names, f"{names}.>")
    with pytest.raises(ContractError, match="allow_atomic"):
        await started(connection, names, "atomic")


@pytest.mark.fault("S07")
@every_mode
async def test_an_acknowledgement_of_another_stream_is_not_believed(
    connection: NatsConnection, names: str, mode: Mode
) -> None:
    """S07: the subjects belong to a stream that the publisher is not bound to."""
    await create_stream(connection, names, f"{names}.>", **BATCHES)
    other = f"{names}other"
    await create_stream(connection, other, f"{other}.>", **BATCHES)
    publisher = await started(connection, names, mode)

    outcomes = list(await publisher.publish_batch([message(other) for _ in range(3)], timeout_seconds=2))

    assert isinstance(outcomes[0], Unknown)
    assert other in outcomes[0].reason
    assert "streams check" in outcomes[0].reason
    assert not any(isinstance(outcome, Stored) for outcome in outcomes)


@every_mode
async def test_answers_that_a_subscriber_makes_up_end_no_call(
    connection: NatsConnection, names: str, mode: Mode
) -> None:
    publisher = await created(connection, names, mode)
    elsewhere = f"{names}-elsewhere"

    async def answer(msg: Msg) -> None:
        for forged in FORGED:
            await connection.client.publish(msg.reply, forged)

    await connection.client.subscribe(f"{elsewhere}.>", cb=answer)

    outcomes = await publisher.publish_batch([message(elsewhere) for _ in range(3)], timeout_seconds=1)

    assert not any(isinstance(outcome, Stored | Rejected) for outcome in outcomes)


@every_mode
async def test_a_server_that_reports_the_stream_and_stores_nothing_is_named(
    connection: NatsConnection, names: str, mode: Mode
) -> None:
    """As with a full disk: nats-server logs the error, and answers no publish."""
    publisher = await created(connection, names, mode)
    elsewhere = f"{names}-elsewhere"
    await connection.client.subscribe(f"{elsewhere}.>")
    batch = [message(elsewhere) for _ in range(3)]

    first = await publisher.publish_batch(batch, timeout_seconds=0.2)
    second = await publisher.publish_batch(batch, timeout_seconds=1)

    assert first[0] == Unknown("the deadline passed without an acknowledgement")
    assert isinstance(second[0], Unknown)
    assert "such as a full disk" in second[0].reason


async def test_a_server_without_storage_is_named(tmp_path: Path) -> None:
    limits = {"jetstream": {"max_file_store": 2**20}}
    async with EmbeddedNats(tmp_path, config=limits) as server, connected(server.url) as own:
        publisher = await created(own, "SEA")
        large = [message("SEA", b"x" * 400_000) for _ in range(5)]

        outcomes = await publisher.publish_batch(large, timeout_seconds=5)

    assert isinstance(outcomes[-1], Unknown)
    assert "nats-server has used up its max_file_store" in outcomes[-1].reason


@every_mode
@pytest.mark.parametrize("place", [0, 20, 49], ids=["first", "middle", "last"])
async def test_what_the_stream_finds_too_large_is_refused_alone(
    connection: NatsConnection, names: str, mode: Mode, place: int
) -> None:
    """P20, P25: the server's own answer for one row, wherever in the batch it is."""
    publisher = await created(connection, names, mode, max_msg_size=1000)
    batch = [message(names) for _ in range(50)]
    batch[place] = batch[place]._replace(payload=b"x" * 2000)

    outcomes = list(await publisher.publish_batch(batch, timeout_seconds=5))

    assert isinstance(outcomes[place], Rejected)
    assert "10054" in outcomes[place].reason
    stored(outcomes[:place])
    if publisher.keeps_order:
        assert kinds(outcomes[place + 1 :]) == [Unsent] * (49 - place)
    else:
        stored(outcomes[place + 1 :])
    rows = await stored_messages(connection, names)
    assert [row[3]["Nats-Msg-Id"] for row in rows] == [
        each.id for each, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Stored)
    ]


@pytest.mark.clause("lifecycle-27")
async def test_where_order_is_kept_a_stop_in_one_chunk_stops_the_next(
    connection: NatsConnection, names: str
) -> None:
    publisher = await created(connection, names, "atomic", max_msg_size=1000)
    batch = [message(names) for _ in range(1500)]
    batch[300] = batch[300]._replace(payload=b"x" * 2000)

    outcomes = list(await publisher.publish_batch(batch, timeout_seconds=20))

    assert kinds(outcomes) == [Stored] * 300 + [Rejected] + [Unsent] * 1199
    assert (await api(connection, f"STREAM.INFO.{names}"))["state"]["messages"] == 300


@every_mode
async def test_a_forbidden_subject_is_explained_long_before_the_deadline(tmp_path: Path, mode: Mode) -> None:
    """P18."""
    allowed = ["sea.event.open.>", "$JS.API.STREAM.INFO.SEA"]
    users = [
        {"user": "worker", "password": "w", "permissions": {"publish": allowed, "subscribe": "_INBOX.>"}},
        {"user": "admin", "password": "a"},
    ]
    async with (
        EmbeddedNats(tmp_path, config={"authorization": {"users": users}}) as server,
        connected(server.url, user="admin", password="a") as admin,
        connected(server.url, user="worker", password="w") as own,
    ):
        await create_stream(admin, "SEA", "sea.>", **BATCHES)
        publisher = await started(own, "SEA", mode)
        begun = time.monotonic()
        batch = [message("sea")._replace(subject="sea.event.Closed.v1") for _ in range(3)]

        outcomes = list(await publisher.publish_batch(batch, timeout_seconds=30))

        assert time.monotonic() - begun < 20.0
        assert isinstance(outcomes[0], Unknown)
        assert "permission" in outcomes[0].reason
        open_ones = [message("sea")._replace(subject="sea.event.open.v1") for _ in range(3)]
        stored(list(await publisher.publish_batch(open_ones, timeout_seconds=5)))


class TestBrokenLinks:
    """A link that stalls or breaks in the middle of a batch."""

    @pytest.fixture
    async def link(self, nats_url: str) -> AsyncIterator[tuple[TcpProxy, NatsConnection]]:
        async with proxied(nats_url) as (proxy, url), connected(url) as connection:
            yield proxy, connection

    @every_mode
    async def test_a_break_ends_the_wait_at_once(
        self, link: tuple[TcpProxy, NatsConnection], names: str, mode: Mode
    ) -> None:
        proxy, connection = link
        publisher = await created(connection, names, mode)
        batch = [message(names) for _ in range(200)]
        proxy.drop_to_client()
        begun = time.monotonic()
        running = asyncio.create_task(publisher.publish_batch(batch, timeout_seconds=60))
        await asyncio.sleep(0)
        proxy.heal()

        outcomes = list(await running)

        assert time.monotonic() - begun < 40.0
        assert not any(isinstance(outcome, Rejected) for outcome in outcomes)
        await eventually(lambda: publisher.connected)
        final = stored(list(await publisher.publish_batch(again(batch), timeout_seconds=10)))
        assert sorted(outcome.seq for outcome in final) == list(range(1, 201))

    @every_mode
    async def test_a_stalled_link_costs_the_deadline_and_no_more(
        self, link: tuple[TcpProxy, NatsConnection], names: str, mode: Mode
    ) -> None:
        """P09."""
        proxy, connection = link
        publisher = await created(connection, names, mode)
        proxy.stall()
        begun = time.monotonic()
        for _ in range(4):
            large = [message(names, b"x" * 500_000) for _ in range(40)]
            outcomes = await publisher.publish_batch(large, timeout_seconds=0.3)
            assert not any(isinstance(outcome, Stored | Rejected) for outcome in outcomes)
        assert time.monotonic() - begun < 15.0
        assert connection.client.pending_data_size < 10 * 1024 * 1024

    async def test_what_a_lost_connection_has_not_sent_is_never_sent(
        self, link: tuple[TcpProxy, NatsConnection], names: str
    ) -> None:
        """After a long outage it might be a second copy of what another worker has sent meanwhile."""
        proxy, connection = link
        publisher = await created(connection, names, "pipeline")
        proxy.stall()
        while connection.client.pending_data_size < 900_000:  # the kernel takes the first bytes
            await publisher.publish_batch([message(names, b"x" * 900_000)] * 4, timeout_seconds=0.1)
        proxy.cut()
        await eventually(lambda: not connection.is_connected)
        proxy.heal()
        await eventually(lambda: connection.is_connected)
        await connection.client.flush()
        assert await stored_messages(connection, names) == []

    @every_mode
    async def test_a_cancelled_call_ends_even_while_the_link_takes_no_more(
        self, link: tuple[TcpProxy, NatsConnection], names: str, mode: Mode
    ) -> None:
        """A task that is cancelled inside nats-py's publish would swallow it and run on."""
        proxy, connection = link
        publisher = await created(connection, names, mode)
        proxy.stall()
        for _ in range(3):
            large = [message(names, b"x" * 500_000) for _ in range(40)]
            running = asyncio.create_task(publisher.publish_batch(large, timeout_seconds=60))
            await asyncio.wait({running}, timeout=0.2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 20)


@every_mode
def test_a_socket_that_breaks_in_any_turn_of_the_loop_raises_nothing(
    nats_url: str, names: str, mode: Mode
) -> None:
    async def break_in_turn(turn: int) -> None:
        async with connected(nats_url) as connection:
            publisher = await (created if turn == 0 else started)(connection, names, mode)
            transport: Any = connection.client._transport
            _in_turn(turn, transport._io_writer.transport.abort)
            outcomes = await publisher.publish_batch([message(names) for _ in range(900)], timeout_seconds=2)
            assert not any(isinstance(outcome, Rejected) for outcome in outcomes)

    # the worker's loop raises, asyncio's not
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for turn in range(5):
            runner.run(break_in_turn(turn))


def _in_turn(turn: int, do: Callable[[], object]) -> None:
    if turn:
        asyncio.get_running_loop().call_soon(_in_turn, turn - 1, do)
    else:
        do()


@pytest.mark.clause("event-model-19", "publisher-one-attempt")
@pytest.mark.fault("S06")
async def test_subscribers_see_the_message_exactly_as_it_was_given(
    connection: NatsConnection, names: str
) -> None:
    """Seen by a plain subscription, once for each message: a publish makes one attempt."""
    publisher = await created(connection, names, "pipeline")
    subscription = await connection.client.subscribe(f"{names}.>")
    body = json.dumps({"z": 1, "a": "é\u2028", "n": 10**30}, indent=1).encode()
    own = {"ce-partitionkey": "tenant-7", "X-Own": "a=b; c:d", "x-OWN-2": "ß"}
    sent = [message(names, body, **own), message(names, b"\x00\xff", **own)]

    await publisher.publish_batch(sent, timeout_seconds=5)

    seen = [await subscription.next_msg(5) for _ in sent]
    assert [(m.subject, m.data, m.headers) for m in seen] == [
        (m.subject, m.payload, dict(m.headers)) for m in sent
    ]
    await connection.client.flush()
    assert subscription.pending_msgs == 0

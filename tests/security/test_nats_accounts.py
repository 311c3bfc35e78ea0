"""deploy/nats-accounts.conf: each user can do its work and no more, and contexts are kept apart."""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.nats.connection import NatsConnection, api, connect
from sea_mq_worker.nats.info import consumer_info
from sea_mq_worker.nats.message import SearchedId, Stored
from sea_mq_worker.operators.dead_letters import open_dead_letters
from sea_mq_worker.operators.definitions import AWAITED, Applied, apply_topology, check_topology
from sea_mq_worker.operators.streams import deliveries, locate
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import read_seqs
from tests.support.builders import enqueueable
from tests.support.configured_nats import ConfiguredNats
from tests.support.handlers import Call, answer, handler_server
from tests.support.jetstream import store
from tests.support.servers import Database
from tests.support.site import FAST, Effects
from tests.support.traffic import Traffic
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess, deployment, running

FILE = Path(__file__).parents[2] / "deploy" / "nats-accounts.conf"
USERS = (
    *("sea_worker", "sea_operator", "sea_dlq_reader", "sea_pipeline", "sea_topology"),
    *("vibespro_worker", "vibespro_topology"),
)
ENDED = """
SELECT count(*) = 3 FROM inbox_messages WHERE processed_at IS NOT NULL OR dead_lettered_at IS NOT NULL
"""
PUBLISHED = "SELECT count(*) = 4 FROM outbox_events WHERE state = 'PUBLISHED'"
MAX_DELIVER = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConfiguredNats]:
    """A server with the shipped file, the streams made by the users that may."""
    passwords = {f"{user.upper()}_PASSWORD": f"secret-of-{user}" for user in USERS}
    folder = tmp_path_factory.mktemp("permissions")
    async with ConfiguredNats(folder, included=FILE, environment=passwords) as started:
        await apply_topology(settings(started, "vibespro_topology"), streams=["VIBESPRO_EVENTS"])
        await apply_topology(settings(started, "sea_topology"))
        yield started


def settings(server: ConfiguredNats, user: str) -> Settings:
    url = server.url.replace("nats://", f"nats://{user}:secret-of-{user}@")
    return Settings(
        nats_url=SecretStr(url), nats_inbox_prefix=f"_INBOX_{user}", stream_replicas=1, stream_max_bytes=2**26
    )


@asynccontextmanager
async def user_of(
    server: ConfiguredNats, user: str, reported: list[str] | None = None
) -> AsyncIterator[NatsConnection]:
    connection = await connect(
        urls=server.url,
        name="test",
        on_event=lambda event, text: (reported if reported is not None else []).append(f"{event} {text}"),
        user=user,
        password=f"secret-of-{user}",
        inbox_prefix=f"_INBOX_{user}",
    )
    try:
        yield connection
    finally:
        await connection.close()


def worker(
    server: ConfiguredNats, database: Database, handler_url: str, log: Path, **given: object
) -> AbstractAsyncContextManager[WorkerProcess]:
    """Run the worker of the context sea as the user that is meant for it."""
    login = server.url.replace("nats://", "nats://sea_worker:secret-of-sea_worker@")
    target = deployment(
        context="sea", consumers="VIBESPRO_EVENTS/sea__from_vibespro", database_url=database.dsn,
        nats_url=login, nats_inbox_prefix="_INBOX_sea_worker", handler_url=handler_url,
        stream_replicas=1, stream_max_bytes=2**26, **{**FAST, **given},
    )  # fmt: skip
    return running(target, log)


async def give_up(server: ConfiguredNats) -> None:
    """Hand a message out until the server gives it up, as workers that die of it do."""
    async with user_of(server, "sea_worker") as connection:
        consumer = NatsJetStreamConsumer(
            connection=connection, stream="VIBESPRO_EVENTS", durable="sea__from_vibespro", wait_seconds=0.5
        )
        for _ in range(MAX_DELIVER):
            for message in await consumer.fetch(1):
                await consumer.nak(message, delay_seconds=0.0)
        await consumer.fetch(1)
        await consumer.close()


async def test_no_message_is_delivered_to_nobody(server: ConfiguredNats) -> None:
    """Across accounts the server does not notice that nobody listens to a reply."""
    traffic = Traffic(lambda: user_of(server, "sea_worker"), "VIBESPRO_EVENTS", "sea__from_vibespro")
    async with user_of(server, "vibespro_worker") as producer:
        await traffic.run(producer, "vibespro.event.made.v1", 3000)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_workers_handle_each_of_many_messages_soon(
    server: ConfiguredNats, database: Database, tmp_path: Path
) -> None:
    """Well before ack_wait, which is two minutes."""
    count, sent, waits = 50_000, dict[str, float](), dict[str, float]()

    async def take(call: Call, writer: asyncio.StreamWriter) -> None:
        waits.setdefault(call.message_id, time.monotonic() - sent[call.message_id])
        await answer(200)(call, writer)

    async with (
        user_of(server, "vibespro_worker") as upstream,
        user_of(server, "sea_worker") as asking,
        handler_server(take) as handler,
        worker(server, database, handler.url, tmp_path / "1", inbox_lease_seconds=30) as first,
        worker(server, database, handler.url, tmp_path / "2", inbox_lease_seconds=30) as second,
    ):
        await first.ready()
        await second.ready()
        for number in range(count):
            message_id = str(uuid.uuid4())
            sent[message_id] = time.monotonic()
            await upstream.client.publish(
                "vibespro.event.made.v1", b"{}", headers={"Nats-Msg-Id": message_id}
            )
            if number % 40 == 0:
                await asyncio.sleep(0.1)
        await eventually(lambda: len(waits) == count, within=120.0, what="every message was handled")

        async def unsettled() -> int:
            return (await consumer_info(asking, "VIBESPRO_EVENTS", "sea__from_vibespro")).ack_pending

        await eventually(unsettled, until=lambda left: left == 0, within=5.0, what="nothing is pending")
    assert max(waits.values()) < 30.0


@pytest.mark.parametrize("mode", ["auto", "atomic"])
async def test_the_worker_needs_no_more(
    mode: str, server: ConfiguredNats, database: Database, tmp_path: Path
) -> None:
    """Events out, messages in, a dead letter, and one that the server gave up before its first attempt."""
    effects = Effects()
    ids = [str(uuid.uuid4()) for _ in range(3)]
    async with user_of(server, "vibespro_worker") as upstream:
        await store(upstream, "vibespro.event.made.v1", b"{}", headers={"Nats-Msg-Id": ids[0]})
        await give_up(server)
        await store(upstream, "vibespro.event.made.v1", b"{}", headers={"Nats-Msg-Id": ids[1]})
        await store(upstream, "vibespro.event.made.v1", b"no json", headers={"Nats-Msg-Id": ids[2]})
    own = await asyncpg.connect(database.dsn)
    async with own.transaction():
        await enqueue(own, *(enqueueable(ordering_key=key) for key in ("k", "k", None, None)))
    async with (
        handler_server(effects.take) as handler,
        worker(server, database, handler.url, tmp_path / "log", outbox_publish_mode=mode) as running_worker,
    ):
        await running_worker.ready()
        await eventually(lambda: own.fetchval(ENDED), within=30, what="three messages have ended")
        await eventually(lambda: own.fetchval(PUBLISHED), within=20, what="four events are published")
        reported = running_worker.events()
    reasons = await own.fetch("SELECT dead_letter_reason FROM inbox_messages ORDER BY 1 NULLS LAST")
    await own.close()
    assert not {"nats_denied", "streams_not_compared", "streams_differ", "circuit_opened"} & set(reported)
    assert [row[0] for row in reasons] == ["INVALID_PAYLOAD", None, None]
    assert set(effects.taken) == {ids[0], ids[1]}


async def test_the_worker_may_look_for_an_id(server: ConfiguredNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not delete consumers, not even its own short-lived one: the server does, after a while."""
    monkeypatch.setitem(api.__kwdefaults__, "timeout_seconds", 60.0)
    message_id = str(uuid.uuid4())
    async with user_of(server, "sea_worker") as connection:
        publisher = NatsJetStreamPublisher(connection=connection, stream="SEA_EVENTS", mode="pipeline")
        await publisher.start()
        stored = await publisher.publish("sea.event.made.v1", b"{}", {"Nats-Msg-Id": message_id})
        async with asyncio.timeout(20.0):  # the denial is no silence to be waited out
            found = await publisher.find([SearchedId(message_id, 60.0, "sea.event.made.v1")])
    assert isinstance(stored, Stored)
    assert found == {message_id: stored._replace(duplicate=True)}


async def test_operators_see_streams_and_dead_letters(server: ConfiguredNats) -> None:
    own = settings(server, "sea_operator")
    assert await check_topology(own) == []
    async with user_of(server, "sea_worker") as connection:
        seq = await store(
            connection, "sea.dlq.vibespro.event.made.v1", b"{}", headers={"Dlq-Reason": "REJECTED"}
        )
    async with open_dead_letters(settings(server, "sea_dlq_reader")) as letters:
        assert (await letters.show(seq)).reason == "REJECTED"
        with pytest.raises(ContractError, match=r"no permission to publish to .*MSG\.DELETE"):
            await letters.remove(seq)
    async with open_dead_letters(own) as letters:
        await letters.remove(seq)


async def test_operators_see_where_an_event_is(server: ConfiguredNats) -> None:
    message_id = str(uuid.uuid4())
    async with user_of(server, "sea_worker") as connection:
        seq = await store(connection, "sea.event.made.v1", b"{}", headers={"Nats-Msg-Id": message_id})
    async with user_of(server, "sea_operator") as connection:
        found = await locate(connection, "SEA_EVENTS", seq, message_id)
        assert found
        assert await deliveries(connection, found) == ()


async def test_the_pipeline_reads_its_own_contexts_stream_without_a_consumer(
    server: ConfiguredNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with user_of(server, "sea_worker") as connection:
        seq = await store(connection, "sea.event.made.v1", b"{}", headers={"Nats-Msg-Id": str(uuid.uuid4())})
    own = settings(server, "sea_pipeline")
    monkeypatch.setenv("SEA_MQ_NATS_URL", own.nats_url.get_secret_value())
    monkeypatch.setenv("SEA_MQ_NATS_INBOX_PREFIX", own.nats_inbox_prefix)
    assert await read_seqs("SEA_EVENTS") == list(range(1, seq + 1))


async def test_applying_the_definitions_again_changes_nothing(server: ConfiguredNats) -> None:
    assert await apply_topology(settings(server, "sea_topology")) == Applied()


async def test_a_durable_in_another_contexts_stream_is_created_by_its_owner_who_is_named(
    tmp_path: Path,
) -> None:
    """So says the document: nobody grants another context the right to create it."""
    passwords = {f"{user.upper()}_PASSWORD": f"secret-of-{user}" for user in USERS}
    async with ConfiguredNats(tmp_path, included=FILE, environment=passwords) as new:
        theirs = settings(new, "vibespro_topology")
        await apply_topology(theirs.model_copy(update={"consumers": ()}), streams=["VIBESPRO_EVENTS"])
        applied = await apply_topology(settings(new, "sea_topology"))
        assert len(applied.changes) == 4, "all else"
        [left] = applied.differences
        assert left.field == AWAITED
        assert "whose user creates it: `streams apply" in str(left)
        assert "grant" not in str(left)
        await apply_topology(theirs, streams=["VIBESPRO_EVENTS"])
        assert await apply_topology(settings(new, "sea_topology")) == Applied()


API = "$JS.API."
DENIED = {
    "sea_worker": (
        *("$JS.API.STREAM.CREATE.OTHER", "$JS.API.STREAM.LIST", "$SYS.REQ.SERVER.PING", "sea.other"),
        *(f"{API}STREAM.{verb}.SEA_EVENTS" for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")),
        *(f"{API}STREAM.{verb}.SEA_DLQ" for verb in ("PURGE", "MSG.DELETE", "MSG.GET")),
        "$JS.API.CONSUMER.CREATE.VIBESPRO_EVENTS.other",
        "$JS.API.CONSUMER.CREATE.VIBESPRO_EVENTS.sea__from_vibespro.vibespro.event.>",
        "$JS.API.CONSUMER.DELETE.VIBESPRO_EVENTS.sea__from_vibespro",
        "$JS.API.CONSUMER.DELETE.SEA_EVENTS.other",
        "$JS.API.CONSUMER.MSG.NEXT.VIBESPRO_EVENTS.other",
        "$JS.ACK.VIBESPRO_EVENTS.other.1.1.1.1.0",
        *("vibespro.event.made.v1", "other.event.made.v1", "_INBOX_sea_operator.x"),
    ),
    "sea_operator": (
        *("sea.event.made.v1", "sea.dlq.x"),
        *(f"{API}STREAM.{which}" for which in ("PURGE.SEA_DLQ", "DELETE.SEA_DLQ", "MSG.DELETE.SEA_EVENTS")),
        *(f"{API}CONSUMER.{verb}.SEA_EVENTS.x" for verb in ("CREATE", "DELETE")),
    ),
    "sea_dlq_reader": (
        *("sea.dlq.x", "$JS.API.STREAM.MSG.GET.SEA_EVENTS", "$JS.API.CONSUMER.CREATE.SEA_DLQ.x"),
    ),
    "sea_pipeline": (
        *("sea.event.made.v1", "$JS.API.CONSUMER.CREATE.SEA_EVENTS.x", "$JS.API.STREAM.PURGE.SEA_EVENTS"),
        *("$JS.API.DIRECT.GET.SEA_DLQ", "$JS.API.STREAM.MSG.DELETE.SEA_EVENTS"),
        "$JS.API.STREAM.MSG.GET.SEA_DLQ",
    ),
    "sea_topology": (
        *("sea.event.made.v1", "$JS.API.STREAM.DELETE.SEA_EVENTS", "$JS.API.STREAM.PURGE.SEA_EVENTS"),
        *("$JS.API.STREAM.UPDATE.VIBESPRO_EVENTS", "$JS.API.STREAM.MSG.GET.SEA_DLQ"),
        "$JS.API.CONSUMER.CREATE.VIBESPRO_EVENTS.other.vibespro.event.>",
        "$JS.API.CONSUMER.CREATE.VIBESPRO_EVENTS.sea__from_vibespro.vibespro.event.>",
    ),
    "vibespro_worker": (
        *("sea.event.made.v1", "sea.dlq.vibespro.event.made.v1", "$JS.API.STREAM.MSG.GET.SEA_DLQ"),
        "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.VIBESPRO_EVENTS.sea__from_vibespro",
        "$JS.API.CONSUMER.MSG.NEXT.VIBESPRO_EVENTS.sea__from_vibespro",
    ),
}
EARS = (">", "sea.event.>", "sea.dlq.>", "vibespro.event.>", "_INBOX.>", "$JS.ACK.>", "$JS.API.>")


@pytest.mark.fault("S13")
@pytest.mark.parametrize("user", DENIED)
async def test_what_a_user_does_not_need_is_denied(user: str, server: ConfiguredNats) -> None:
    """Nobody listens to anything but its own answers, so that no acknowledgement can be forged."""
    reported: list[str] = []
    others = [f"_INBOX_{other}.>" for other in USERS if other != user]
    async with user_of(server, user, reported) as connection:
        for subject in DENIED[user]:
            with pytest.raises(ContractError, match="no permission"):
                await connection.request(subject, b"{}", timeout_seconds=2.0)
        for subject in (*EARS, *others):
            await connection.client.subscribe(subject)
        wanted = {f"denied {subject.lower()}" for subject in (*DENIED[user], *EARS, *others)}
        await eventually(lambda: wanted <= set(reported), what="every subject is denied")


@pytest.mark.fault("S13")
def test_an_export_is_for_one_account_and_its_own_consumer() -> None:
    exports = re.findall(r'\{\s*(?:service|stream): "([^"]+)"([^}]*)\}', FILE.read_text())
    assert len(exports) > 5
    for subject, rest in exports:
        assert "accounts: [SEA]" in rest, subject
        assert re.search(r"STREAM\.(INFO|MSG\.GET)\.VIBESPRO_EVENTS$|\.sea__from_vibespro\b", subject), (
            subject
        )


async def next_seq(server: ConfiguredNats) -> int:
    """Publish for the other context; what was stored before it has a lower sequence."""
    async with user_of(server, "vibespro_worker") as connection:
        return await store(connection, "vibespro.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})


ASKED = {
    "sea_worker": (
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.INFO.SEA_EVENTS",
        "$JS.API.STREAM.INFO.VIBESPRO_EVENTS",
        "$JS.API.STREAM.MSG.GET.VIBESPRO_EVENTS",
        "$JS.API.CONSUMER.INFO.VIBESPRO_EVENTS.sea__from_vibespro",
        "$JS.API.CONSUMER.MSG.NEXT.VIBESPRO_EVENTS.sea__from_vibespro",
        "$JS.ACK.VIBESPRO_EVENTS.sea__from_vibespro.1.1.1.1.0",
    ),
    "sea_operator": ("$JS.API.STREAM.MSG.GET.SEA_DLQ", "$JS.API.STREAM.MSG.GET.VIBESPRO_EVENTS"),
    "sea_dlq_reader": ("$JS.API.STREAM.INFO.SEA_DLQ",),
}


@pytest.mark.fault("S19")
@pytest.mark.parametrize("user", ASKED)
async def test_an_answer_cannot_be_stored_in_another_contexts_stream(
    user: str, server: ConfiguredNats
) -> None:
    """Whoever may ask for something names the subject where the answer goes; nobody judges it."""
    before = await next_seq(server)
    async with user_of(server, user) as connection:
        for subject in ASKED[user]:
            await connection.client.publish(subject, b'{"seq": 1}', reply="vibespro.event.forged.v1")
            await connection.client.publish(subject, b"+NXT", reply="vibespro.event.forged.v1")
        answered = "$JS.API.STREAM.INFO.SEA_DLQ"  # after all that was asked before
        await connection.request(answered, b"", timeout_seconds=10.0)
    assert await next_seq(server) == before + 1


async def test_an_inbox_that_the_user_may_not_listen_to_is_named_at_once(server: ConfiguredNats) -> None:
    own = settings(server, "sea_operator").model_copy(update={"nats_inbox_prefix": "_INBOX"})
    with pytest.raises(ContractError, match=r"no answer through to _INBOX\.>; set SEA_MQ_NATS_INBOX_PREFIX"):
        await check_topology(own)

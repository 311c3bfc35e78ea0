"""A leaf node with a JetStream of its own: the worker uses only the domain that its settings name."""

import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.dev.servers import EmbeddedNats, free_port
from sea_mq_worker.doctor import examine
from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.nats.connection import api
from sea_mq_worker.nats.info import stream_info
from sea_mq_worker.nats.message import SearchedId, Stored
from sea_mq_worker.operators.definitions import apply_topology, check_topology
from sea_mq_worker.outbox.scan import find_messages
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import read_seqs
from tests.support.builders import enqueueable
from tests.support.handlers import handler_server
from tests.support.jetstream import connected, create_consumer, create_stream, store
from tests.support.servers import Database
from tests.support.site import FAST, Effects
from tests.support.waiting import eventually
from tests.support.worker import apply_streams, deployment, running

PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"


@dataclass(frozen=True, slots=True)
class Edge:
    """A hub and a leaf, with a JetStream each."""

    hub: EmbeddedNats
    leaf: EmbeddedNats


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    port = free_port()
    folder = tmp_path_factory.mktemp("edge")
    hub = {
        "server_name": "hub",
        "jetstream": {"domain": "hub"},
        "leafnodes": {"host": "127.0.0.1", "port": port},
    }
    leaf = {
        "server_name": "leaf",
        "jetstream": {"domain": "edge"},
        "leafnodes": {"remotes": [{"url": f"nats://127.0.0.1:{port}"}]},
    }
    async with (
        EmbeddedNats(folder / "hub", config=hub) as far,
        EmbeddedNats(folder / "leaf", config=leaf) as near,
    ):

        async def joined() -> bool:
            async with connected(near.url, domain="hub") as connection:
                try:
                    return bool(await api(connection, "INFO", timeout_seconds=1))
                except BrokerUnavailableError:
                    return False

        await eventually(joined, within=20, what="the leaf has joined its hub")
        yield Edge(far, near)


def named(edge: Edge, names: str, **given: Any) -> Settings:
    own = {"stream_replicas": 1, "stream_max_bytes": 2**24, "consumers": "", "context": names}
    return Settings.model_validate({"nats_url": edge.leaf.url, **own, **given})


@pytest.mark.fault("P51")
@pytest.mark.parametrize("mode", ["pipeline", "atomic"])
async def test_a_worker_at_a_leaf_works_with_the_streams_of_its_hub(
    mode: str, edge: Edge, database: Database, names: str, tmp_path: Path
) -> None:
    effects = Effects()
    async with handler_server(effects.take) as handler, connected(edge.hub.url) as hub:
        target = deployment(
            context=names,
            database_url=database.dsn,
            nats_url=edge.leaf.url,
            handler_url=handler.url,
            nats_jetstream_domain="hub",
            outbox_publish_mode=mode,
            **FAST,
        )
        await apply_streams(target, tmp_path / "streams")
        message_id = str(uuid.uuid4())
        await store(hub, f"{target.upstream}.event.made.v1", b"{}", headers={"Nats-Msg-Id": message_id})
        database_connection = await asyncpg.connect(database.dsn)
        async with database_connection.transaction():
            for _ in range(20):
                await enqueue(database_connection, enqueueable())
        async with running(target, tmp_path / "log") as worker:
            await worker.ready()
            await eventually(lambda: effects.taken == {message_id: 1}, within=20)
            await eventually(
                lambda: database_connection.fetchval(PUBLISHED), within=20, what="all is published"
            )
            await worker.stopped()
        await database_connection.close()
        assert (await stream_info(hub, target.stream)).messages == 20
        async with connected(edge.leaf.url) as leaf:
            assert (await api(leaf, "STREAM.NAMES")).get("streams") is None


async def test_a_delivery_a_search_and_a_stream_of_another_domain_are_read(
    edge: Edge, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(edge.leaf.url, domain="hub") as far:
        await create_stream(far, names, f"{names}.>", allow_direct=True)
        await create_consumer(far, names, "taker")
        sent = str(uuid.uuid4())
        await store(far, f"{names}.made", b"{}", headers={"Nats-Msg-Id": sent})
        consumer = NatsJetStreamConsumer(connection=far, stream=names, durable="taker")
        await consumer.start()
        [message] = await consumer.fetch(1)
        assert (message.stream, message.seq, message.consumer, message.deliveries) == (names, 1, "taker", 1)
        await consumer.ack(message)
        ack = await far.client.request(f"{names}.made", b"{}")
        assert ack.data == f'{{"stream":"{names}","domain":"hub","seq":2}}'.encode()
        wanted = [SearchedId(sent, since_seconds=60, subject=f"{names}.made")]
        found = await find_messages(far, names, wanted, timeout_seconds=10)
        assert found[sent] == Stored(names, 1, duplicate=True)
        monkeypatch.setenv("SEA_MQ_NATS_URL", edge.leaf.url)
        monkeypatch.setenv("SEA_MQ_NATS_JETSTREAM_DOMAIN", "hub")
        assert await read_seqs(names) == [1, 2]
        await api(far, f"STREAM.DELETE.{names}")


@pytest.mark.fault("P51")
async def test_apply_at_a_leaf_makes_no_stream_unless_the_settings_name_the_domain_and_check_says_so(
    edge: Edge, names: str
) -> None:
    said = "does not exist in the JetStream domain edge .* set SEA_MQ_NATS_JETSTREAM_DOMAIN to the domain"
    for dry_run in (True, False):
        with pytest.raises(ContractError, match=said):
            await apply_topology(named(edge, names), dry_run=dry_run)
    with pytest.raises(ContractError, match=said):
        await check_topology(named(edge, names))
    findings = {one.slug: one for one in (await examine(named(edge, names))).findings}
    assert re.search(said, findings["broker_refuses"].what)
    assert "topology_differs" not in findings
    async with connected(edge.leaf.url) as leaf:
        with pytest.raises(ContractError, match=said):
            await stream_info(leaf, f"{names.upper()}_EVENTS")
    for domain in ("hub", "edge"):
        assert await check_topology(named(edge, names, nats_jetstream_domain=domain))
        await apply_topology(named(edge, names, nats_jetstream_domain=domain))
        assert not await check_topology(named(edge, names, nats_jetstream_domain=domain))
        async with connected(edge.leaf.url, domain=domain) as connection:
            for stream in (await api(connection, "STREAM.NAMES"))["streams"]:
                await api(connection, f"STREAM.DELETE.{stream}")


async def test_a_domain_that_nobody_serves_is_named(edge: Edge) -> None:
    async with connected(edge.leaf.url, domain="hbu") as connection:
        with pytest.raises(BrokerUnavailableError, match="no JetStream of the domain hbu"):
            await api(connection, "INFO")

"""Each service under examples/ is started as its first lines say, and driven."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from sea_mq_worker.dev.servers import free_port
from sea_mq_worker.nats.connection import api
from sea_mq_worker.nats.subjects import durable_consumer
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings
from tests.integration.test_migrations import run_psql
from tests.support import servers
from tests.support.builders import enqueueable
from tests.support.documents import ROOT
from tests.support.jetstream import connected
from tests.support.pipeline_settings import values_of
from tests.support.servers import Database, PostgresAddress
from tests.support.waiting import answered, eventually
from tests.support.worker import Deployment, deployment, running

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def service(example: str, *command: str, log: Path, **environment: str) -> AsyncIterator[Process]:
    """Run a service of an example in its folder; its output goes to ``log``."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, cwd=EXAMPLES / example,
            env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 30)


@asynccontextmanager
async def website(
    example: str, *command: str, log: Path, port: int = 0, **environment: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Run a service that answers HTTP, and connect to it."""
    port = port or free_port()
    async with (
        service(example, *command, "--port", str(port), log=log, **environment) as process,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        await answered(str(http.base_url), by=process)
        yield http


def target_of(context: str, database_url: str, nats_url: str, **others: str) -> Deployment:
    """Name the servers of a context with a stream of its own, and no inbox unless ``others`` has one."""
    own = {"handler_url": "", "consumers": "", "stream_replicas": 1, "stream_max_bytes": 2**26} | others
    return deployment(context=context, database_url=database_url, nats_url=nats_url, **own)


@asynccontextmanager
async def worker(target: Deployment, log: Path) -> AsyncIterator[None]:
    """Create the streams and run the worker of a context."""
    given = Settings.model_validate(values_of(target))
    await apply_topology(given, streams=defined_streams(given))
    async with running(target, log) as process:
        await process.ready()
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A database with a worker that publishes its outbox, for the producers among the examples."""

    target: Deployment
    folder: Path

    @property
    def settings(self) -> Mapping[str, str]:
        return self.target.environment

    async def published(self, event_type: str) -> dict[str, Any]:
        """Wait for the only event of a type in the stream; return its payload."""
        subject = f"{self.target.context}.event.{event_type}.v1"
        async with connected(self.settings["SEA_MQ_NATS_URL"]) as connection:
            info = f"STREAM.INFO.{self.target.stream}"
            await eventually(
                lambda: api(connection, info, {"subjects_filter": subject}),
                until=lambda now: now["state"].get("subjects") == {subject: 1},
            )
            last = {"last_by_subj": subject}
            found = await api(connection, f"STREAM.MSG.GET.{self.target.stream}", last)
        payload: dict[str, Any] = json.loads(base64.b64decode(found["message"]["data"]))
        return payload


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(
    postgres_server: PostgresAddress,
    template_database: Database,
    nats_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    async with servers.scratch_database(
        postgres_server, prefix="test_", template=template_database.name
    ) as database:
        target = target_of(servers.unique("shop"), database.dsn, nats_url)
        async with worker(target, folder / "worker.log"):
            yield Shop(target=target, folder=folder)


@pytest.mark.parametrize(
    ("example", "command", "event_type"),
    [
        ("flask_psycopg2", ("flask", "--app", "service", "run"), "flask_order.placed"),
        ("django_service", ("uvicorn", "service:application"), "django_order.placed"),
    ],
)
async def test_an_order_of_a_web_service_is_published(
    shop: Shop, example: str, command: tuple[str, ...], event_type: str
) -> None:
    async with website(example, *command, log=shop.folder / f"{example}.log", **shop.settings) as http:
        answer = await http.post("/orders", json={"item": "book"})
    assert (answer.status_code, answer.json()) == (201, {"order": 1})
    assert await shop.published(event_type) == {"order": 1, "item": "book"}


async def test_an_order_of_plain_sql_is_published(shop: Shop) -> None:
    file = str(EXAMPLES / "plain_sql" / "order.sql")
    await run_psql(shop.settings["SEA_MQ_DATABASE_URL"], "-v", "item=book", "-f", file)
    assert await shop.published("sql_order.placed") == {"order": 1, "item": "book"}


async def test_faststream_reads_the_events_of_the_stream(shop: Shop) -> None:
    connection = await asyncpg.connect(shop.settings["SEA_MQ_DATABASE_URL"])
    async with connection.transaction():
        await enqueue(connection, enqueueable(event_type="read.by.faststream"))
    await connection.close()
    log = shop.folder / "faststream.log"
    async with service("faststream_consumer", "faststream", "run", "service:app", log=log, **shop.settings):
        await eventually(lambda: "read.by.faststream" in log.read_text(), within=30, what=log.name)


async def test_two_services_talk_both_ways(
    postgres_server: PostgresAddress, template_database: Database, nats_url: str, tmp_path: Path
) -> None:
    contexts = {name: servers.unique(name) for name in ("orders", "stock")}
    ports = {name: free_port() for name in contexts}
    async with AsyncExitStack() as stack:
        https = {}
        for name, other in (("stock", "orders"), ("orders", "stock")):
            database = await stack.enter_async_context(
                servers.scratch_database(postgres_server, prefix="test_", template=template_database.name)
            )
            target = target_of(
                contexts[name], database.dsn, nats_url,
                consumers="/".join(durable_consumer(contexts[name], contexts[other])),
                handler_url=f"http://127.0.0.1:{ports[name]}/handle",
            )  # fmt: skip
            command, log = ("uvicorn", f"{name}:app"), tmp_path / f"{name}.log"
            site = website("two_contexts", *command, log=log, port=ports[name], **target.environment)
            https[name] = await stack.enter_async_context(site)
            await stack.enter_async_context(worker(target, tmp_path / f"{name}.worker.log"))
        for order, state in ((1, "reserved"), (2, "refused")):
            assert (await https["orders"].post("/orders", json={"item": "book"})).json() == {"order": order}
            await eventually(
                partial(https["orders"].get, f"/orders/{order}"),
                until=lambda found, state=state: found.json() == {"state": state},
            )

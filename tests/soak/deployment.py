"""The deployment: servers, a handler, and workers, each with its own proxies."""

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.postgres.migrations import migrate
from tests.soak import change_log
from tests.soak.schedule import SIDES, WORKERS
from tests.soak.service import Service
from tests.soak.workers import Worker
from tests.support.handlers import HandlerServer, handler_server
from tests.support.jetstream import SECOND, connected
from tests.support.kept_process import KeptProcess, Life
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import QUICK, database_connection
from tests.support.site import FAST, FAST_CONSUMER
from tests.support.worker import Deployment, apply_streams, deployment

CONTEXT = "sea"
SECRET = "canary-secret-7f3a"
PAYLOAD_CANARY = "canary-payload-91c2"
WINDOW_SECONDS = 20
MAX_PAYLOAD = 65_536
STOP_SECONDS = 12.0
"""Limit of a graceful stop, which takes much less."""
_ROOT = Path(__file__).parents[2]
_SKEWS = {"w2": 3600}
"""Error of a worker's clock, in seconds."""
_MODES = {"w1": "auto", "w2": "auto", "w3": "pipeline"}


@dataclass
class Stage:
    """The objects of a soak. ``direct`` has no proxies, and a superuser's rights."""

    folder: Path
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    nats_config: dict[str, Any]
    direct: Deployment
    service: Service
    handler: HandlerServer
    broker: NatsConnection
    workers: dict[str, Worker]
    producer_url: str
    to_producers: TcpProxy
    pardoned: set[int] = field(default_factory=set)
    """Sequences of dead letters that an operator has tried to redrive."""

    @property
    def ledger(self) -> Path:
        """The file in which the producers record their transactions."""
        return self.folder / "ledger"

    def lives(self) -> list[Life]:
        """Return each run of each worker."""
        return [life for worker in self.workers.values() for life in worker.process.lives]

    @asynccontextmanager
    async def database(self) -> AsyncIterator[asyncpg.Connection]:
        """Connect as a superuser during the block."""
        connection = await asyncpg.connect(self.postgres.dsn, timeout=3, command_timeout=30)
        try:
            yield connection
        finally:
            connection.terminate()

    async def apply_streams(self) -> None:
        """Create missing streams and consumers."""
        await apply_streams(
            self.direct,
            self.folder / "streams",
            consumer=FAST_CONSUMER,
            stream={"duplicate_window": WINDOW_SECONDS * SECOND},
        )

    def permit(self, permissions: Mapping[str, Any]) -> None:
        """Change the workers' permissions by a reload of the broker."""
        user = self.nats_config["authorization"]["users"][1]
        user.pop("permissions", None)
        if permissions:
            user["permissions"] = dict(permissions)
        file = self.nats.folder / "nats-server.conf"
        config = json.loads(file.read_text()) | self.nats_config
        file.write_text(json.dumps(config))
        os.kill(self.nats.pid, signal.SIGHUP)


@asynccontextmanager
async def stage(folder: Path, *, seed: int, bug: str = "") -> AsyncIterator[Stage]:
    """Start everything; plant ``bug`` in each worker."""
    config: dict[str, Any] = {
        "max_payload": MAX_PAYLOAD,
        "authorization": {
            "users": [
                {"user": "admin", "password": SECRET},
                {"user": "worker", "password": SECRET},
            ]
        },
    }
    service = Service(random.Random(seed))
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sea-mq-soak-")))
        postgres = await stack.enter_async_context(EmbeddedPostgres(home / "postgres", settings=QUICK))
        nats = await stack.enter_async_context(EmbeddedNats(home / "nats", config=config))
        await migrate(postgres.dsn)
        async with database_connection(postgres.dsn) as connection:
            await change_log.install(connection, password=SECRET)
        handler = await stack.enter_async_context(handler_server(service.take))
        broker = await stack.enter_async_context(connected(nats.url, user="admin", password=SECRET))
        to_producers, producer_url = await stack.enter_async_context(proxied(postgres.dsn))
        made = Stage(
            folder=folder,
            postgres=postgres,
            nats=nats,
            nats_config=config,
            direct=_deployment(postgres.dsn, _with_user(nats.url, "admin"), handler.url),
            service=service,
            handler=handler,
            broker=broker,
            workers={},
            producer_url=producer_url,
            to_producers=to_producers,
        )
        await made.apply_streams()
        for name in WORKERS:
            made.workers[name] = worker = await _worker(stack, made, name, bug)
            await stack.enter_async_context(worker.process)
        yield made


async def _worker(stack: AsyncExitStack, made: Stage, name: str, bug: str) -> Worker:
    urls = {
        "database": made.postgres.dsn.replace("postgres:", f"{name}:", 1).replace(
            (made.postgres.folder / "password").read_text(), SECRET
        ),
        "broker": _with_user(made.nats.url, "worker"),
        "handler": f"{made.handler.url}/{name}",
    }
    ends = {side: await stack.enter_async_context(proxied(urls[side])) for side in SIDES}
    target = _deployment(
        *(ends[side][1] for side in SIDES), worker_name=name, outbox_publish_mode=_MODES[name]
    )
    own = {variable: value for variable, value in os.environ.items() if not variable.startswith("SEA_MQ_")}
    environment = {
        **own,
        **target.environment,
        "PYTHONPATH": f"{Path(__file__).parent / 'plants'}{os.pathsep}{_ROOT}",
        "SOAK_PLANTED_BUG": bug,
        "SOAK_CLOCK_SKEW": str(_SKEWS.get(name, 0)),
    }
    process = KeptProcess(
        name=name,
        command=[sys.executable, "-m", "sea_mq_worker"],
        environment=environment,
        folder=_ROOT,
        logs=made.folder,
    )
    return Worker(process, {side: proxy for side, (proxy, _) in ends.items()})


def _deployment(database_url: str, nats_url: str, handler_url: str, **settings: object) -> Deployment:
    return deployment(
        context=CONTEXT,
        database_url=database_url,
        nats_url=nats_url,
        handler_url=handler_url,
        **{**FAST, **settings},
    )


def _with_user(url: str, user: str) -> str:
    return url.replace("nats://", f"nats://{user}:{SECRET}@")

"""The deployment: servers, a handler, and workers, each with its own proxies and database role."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.postgres.migrations import migrate
from tests.support.handlers import Behaviour, Call, HandlerServer, answer, handler_server, raw
from tests.support.jetstream import SECOND, connected
from tests.support.processes import KeptProcess, Life
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import QUICK, database_connection
from tests.support.site import FAST, FAST_CONSUMER
from tests.support.worker import Deployment, WorkerProcess, apply_streams, deployment

WORKERS = ("w1", "w2", "w3")
SIDES = ("database", "broker", "handler")
_PAYLOAD = b', "payload": '
_HANG_SECONDS = 3.0
"""Longer than the worker's time-out."""

MOODS: dict[str, Behaviour] = {
    "fails": answer(500),
    "resets": raw(b"", reset=True),
    "works_then_resets": raw(b"", reset=True),
    "busy": answer(429, retry_after="1"),
    "garbles": raw(b"HTTP/1.1 2", close=True),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """One call: message, worker, time, hash of the payload, and status of the response; 0: none."""

    id: str
    worker: str
    at: float
    digest: str
    status: int


@dataclass
class Service:
    """An idempotent service; messages in ``rejects`` get status 422, those in ``never`` 500."""

    chance: random.Random
    mood: str = "well"
    heard: list[Heard] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    rejects: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)

    async def take(self, call: Call, writer: asyncio.StreamWriter) -> None:
        """Respond to a call according to the present behaviour."""
        mood, came = self.mood, time.time()
        await asyncio.sleep(self.chance.uniform(0.005, 0.1))
        worked = self._status(call.message_id) if mood in {"well", "works_then_resets"} else 0
        status = worked if mood == "well" else 0
        digest = hashlib.sha256(call.body.partition(_PAYLOAD)[2][:-1]).hexdigest()
        self.heard.append(Heard(call.message_id, call.path.rpartition("/")[2], came, digest, status))
        if mood == "hangs":
            await asyncio.sleep(_HANG_SECONDS)
            writer.transport.abort()
        else:
            await (answer(status) if mood == "well" else MOODS[mood])(call, writer)

    def _status(self, message_id: str) -> int:
        if message_id in self.rejects:
            return 422
        if message_id in self.never:
            return 500
        if message_id in self.effects:
            return 409
        self.effects[message_id] += 1
        return 200


_SCRAPE_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, and the proxies between it and its servers."""

    process: KeptProcess
    proxies: Mapping[str, TcpProxy]

    @property
    def name(self) -> str:
        return self.process.name

    async def ready(self) -> None:
        """Wait until the worker is ready."""
        await self._running().ready()

    async def scrape(self) -> None:
        """Read the worker's metrics if it responds."""
        if not self.process.alive:
            return
        life, running = self.process.lives[-1], self._running()
        with contextlib.suppress(httpx2.HTTPError, AssertionError, TimeoutError):
            async with asyncio.timeout(_SCRAPE_SECONDS_MAX):
                life.metrics = await running.metrics()

    def _running(self) -> WorkerProcess:
        return WorkerProcess(self.process.process, self.process.lives[-1].log)


_AGAIN = """
CREATE SCHEMA soak;
CREATE TABLE soak.again (action TEXT NOT NULL, id TEXT NOT NULL);
CREATE FUNCTION soak.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
BEGIN
    INSERT INTO soak.again VALUES (TG_ARGV[0], to_jsonb(NEW) ->> TG_ARGV[1]);
    RETURN NULL;
END $$;
CREATE TRIGGER zz_soak AFTER UPDATE ON outbox_events FOR EACH ROW
    WHEN (OLD.state = 'PUBLISHED' AND NEW.state = 'PENDING') EXECUTE FUNCTION soak.note('replay', 'id');
CREATE TRIGGER zz_soak AFTER UPDATE ON inbox_messages FOR EACH ROW
    WHEN (OLD.dead_lettered_at IS NOT NULL AND NEW.dead_lettered_at IS NULL)
    EXECUTE FUNCTION soak.note('redrive', 'message_id');
"""
_RIGHTS = """
CREATE ROLE {role} LOGIN PASSWORD '{password}';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
GRANT UPDATE ON outbox_events TO {role};
GRANT INSERT, UPDATE ON inbox_messages TO {role};
GRANT INSERT ON sea_mq_context TO {role};
GRANT INSERT, UPDATE ON sea_mq_consumers, sea_mq_standings TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON sea_mq_sessions, sea_mq_shares TO {role};
"""


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
            await connection.execute(_AGAIN)
            for role in WORKERS:
                await connection.execute(_RIGHTS.format(role=role, password=SECRET))
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

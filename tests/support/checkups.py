"""A whole system for doctor to examine, and the ways to break it."""

import asyncio
import uuid
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.doctor import examine
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import ENV_PREFIX, Settings
from tests.integration.test_migrations import PSQL
from tests.integration.test_sending import nats_cli, shell
from tests.support.handlers import HandlerServer, handler_server
from tests.support.jetstream import PATIENCE_SECONDS, SECOND, connected, create_consumer, shipped_files, store
from tests.support.programs import own_programs
from tests.support.rows import opened
from tests.support.servers import Database, database_connection
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, change_json, deployment, running

OF_TEST_SERVERS = frozenset({"commits_not_durable", "synchronous_commit_off", "sync_unknown"})
"""True of the session's own servers: they need not outlive the machine, and have no cluster."""

Mend = Callable[[Finding], Awaitable[None]]


@dataclass(kw_only=True)
class Patient:
    """A healthy system that a test may break; ``given`` are its settings."""

    database: Database
    pool: asyncpg.Pool
    broker: NatsConnection
    handler: HandlerServer
    files: Path
    target: Deployment
    given: dict[str, object]
    known: frozenset[str] = OF_TEST_SERVERS
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    done: set[str] = field(default_factory=set)
    """Commands and statements that the product printed and a test ran."""

    @property
    def name(self) -> str:
        return self.target.context

    @property
    def upstream_stream(self) -> str:
        return self.target.upstream_stream

    @property
    def durable(self) -> str:
        return self.target.durable

    @property
    def environment(self) -> dict[str, str]:
        """The settings as they are now, as variables."""
        return {f"SEA_MQ_{key.upper()}": str(value) for key, value in self.given.items()}

    def settings(self) -> Settings:
        return Settings.model_validate(self.given)

    async def apply(self) -> None:
        """Make streams and consumers as the files say."""
        settings = self.settings()
        await apply_topology(settings, streams=defined_streams(settings))

    async def define(self, file: str, **fields: Any) -> Mend:
        """Change a definition, SEA_EVENTS, SEA_DLQ, upstream or consumer, and the server by it.

        Returns what corrects the file, and the server by the command that the finding names; the stream of
        another context is corrected by that context.
        """
        own = f"consumers/{self.upstream_stream}.sea__from_{self.target.upstream}"
        path = self.files / f"{ {'upstream': self.upstream_stream, 'consumer': own}.get(file, file) }.json"
        was = path.read_text()
        change_json(path, **fields)
        await self.apply()

        async def correct(finding: Finding) -> None:
            path.write_text(was)
            await (self.apply() if file == "upstream" else self.command(finding))

        return correct

    async def examined(self) -> Mapping[str, Finding]:
        """Return doctor's findings by slug, without those ``known`` of the test's servers."""
        found = (await examine(self.settings())).findings
        return {finding.slug: finding for finding in found if finding.slug not in self.known}

    async def finds(self, *slugs: str) -> Mapping[str, Finding]:
        """Wait until doctor finds exactly these, and return them; ages grow and elections end meanwhile."""
        last: Mapping[str, Finding] = {}

        async def found() -> bool:
            nonlocal last
            last = await self.examined()
            return set(last) == set(slugs)

        try:
            await eventually(found, within=30)
        except AssertionError:
            raise AssertionError(f"doctor finds {last}, and not {slugs}") from None
        return last

    async def sql(self, statement: str, *args: object) -> None:
        """Do something as the owner of the tables, in a session of its own."""
        async with database_connection(self.database.dsn) as connection:
            await connection.execute(statement, *args)

    async def paste(self, finding: Finding) -> None:
        """Give psql, as the owner of the tables, the statements that a finding prints."""
        await self.follow(finding.sql)

    @asynccontextmanager
    async def worker(self, command: str = "python -m sea_mq_worker run") -> AsyncIterator[WorkerProcess]:
        """Run the worker until it can work, for the length of a block, and stop it in order."""
        self.done.add(command)
        [(_, arguments)] = own_programs(command)
        target = replace(self.target, environment=self.environment)
        async with running(target, self.files / "worker.log", *arguments, admin_port=0) as started:
            await started.ready()
            yield started
            await started.stopped()

    async def command(self, finding: Finding) -> None:
        """Run the command that a finding names."""
        await self.follow(finding.command or "python -m sea_mq_worker streams apply")

    async def follow(self, printed: str, *, code: int = 0) -> str:
        """Run a command or statements as the product prints them; return what they print."""
        assert printed
        self.done.add(printed)
        if own := list(own_programs(printed)):
            [(_, arguments)] = own
            done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=self.environment)
            assert done.exit_code == code, done.output
            return done.output
        if printed.startswith("nats "):  # without a terminal it cannot ask whether one is sure
            return await shell(
                f"{printed} --force", self.files, nats_cli(), NATS_URL=str(self.given["nats_url"])
            )
        program = (str(PSQL), "-X", "-q", "-v", "ON_ERROR_STOP=1", self.database.dsn)
        process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        reported, _ = await process.communicate(printed.encode())
        assert process.returncode == 0, reported.decode()
        return reported.decode()

    def changing(self, **given: object) -> Mend:
        """Return a fix that changes settings."""

        async def change(_finding: Finding) -> None:
            self.given.update(given)

        return change

    async def consumer(self, name: str, **config: Any) -> None:
        """Create a durable of the stream upstream."""
        right = {"ack_wait": 120 * SECOND, "max_ack_pending": 50}
        await create_consumer(self.broker, self.upstream_stream, name, **right, **config)

    def expect_soon(self) -> None:
        """Make five leases less than two seconds."""
        self.given |= {
            "database_timeout_seconds": 0.25,
            "outbox_publish_timeout_seconds": 0.125,
            "outbox_lease_seconds": 0.375,
        }

    async def send(self, message_id: str = "") -> int:
        """Store a message upstream; return its sequence."""
        headers = {"Nats-Msg-Id": message_id or str(uuid.uuid4())}
        return await store(self.broker, f"{self.target.upstream}.event.made.v1", headers=headers)

    async def take(self) -> Callable[[], Awaitable[object]]:
        """Fetch a message as the durable; return a function that acknowledges it."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.upstream_stream}.{self.durable}"
        inbox = self.broker.client.new_inbox()
        pulling = await self.broker.client.subscribe(inbox)
        await self.broker.client.publish(subject, b'{"batch": 1}', inbox)
        message = await pulling.next_msg(timeout=10)
        await pulling.unsubscribe()
        return lambda: self.broker.client.request(message.reply, b"+ACK", PATIENCE_SECONDS)

    async def received(self, *, seq: int, hours: int, stream: str = "", consumer: str = "") -> None:
        """Record a message that came so long ago and has no ending."""
        await self.sql(
            "INSERT INTO inbox_messages (message_id, subject, consumer, stream, stream_seq, received_at)"
            " VALUES (gen_random_uuid(), 's', $1, $2, $3, now() - $4 * interval '1 hour')",
            consumer or self.durable, stream or self.upstream_stream, seq, hours,
        )  # fmt: skip

    async def session(self, name: str = "test") -> asyncpg.Connection:
        """Open a session that lasts as long as the test."""
        connection = await asyncpg.connect(self.database.dsn, server_settings={"application_name": name})
        self.stack.callback(connection.terminate)
        return connection

    async def ask(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the JetStream API for something."""
        return await api(self.broker, subject, request)


@asynccontextmanager
async def patient(
    database: Database, nats_url: str, name: str, folder: Path, *, stream_replicas: int = 1
) -> AsyncIterator[Patient]:
    """Set up streams, a durable and a handler beside the tables."""
    async with (
        opened(database, hints=OPERATOR_HINTS) as pool,
        connected(nats_url) as broker,
        handler_server() as handler,
    ):
        files = folder / "streams"
        target = deployment(
            context=name, database_url=database.dsn, nats_url=nats_url, handler_url=handler.url,
            streams_folder=files, stream_replicas=stream_replicas, stream_max_bytes=2**26,
        )  # fmt: skip
        shipped_files(files, upstream=target.upstream)
        made = Patient(
            database=database, pool=pool, broker=broker, handler=handler, files=files, target=target,
            given={key.removeprefix(ENV_PREFIX).lower(): value for key, value in target.environment.items()},
        )  # fmt: skip
        await made.apply()
        async with made.stack:
            yield made

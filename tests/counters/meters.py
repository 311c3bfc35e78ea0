"""Servers of the tests' own that count what a worker asks of them: figures that no machine changes."""

import json
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import httpx2

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.nats.connection import NatsConnection, api
from tests.support.handlers import HandlerServer
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, running

_STATEMENTS = """
SELECT query, calls
  FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid JOIN pg_roles r ON r.oid = s.userid
 WHERE d.datname = $1 AND r.rolname = 'counted'
 ORDER BY calls DESC
"""
_PAGES = """
SELECT sum(shared_blks_hit + shared_blks_read)::bigint
  FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1
"""
_BACKLOG = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', n::text, 'order.created',
       jsonb_build_object('order', n, 'customer', n % 997, 'currency', 'EUR', 'total', n * 1.25),
       CASE WHEN $2::int > 0 THEN format('order-%s', n / $2::int) END
  FROM generate_series(0, $1::int - 1) n
"""


class Statements(Counter[str]):
    """How often a worker ran each statement."""

    def holding(self, text: str) -> int:
        """Count the calls of statements that hold a text."""
        return sum(calls for statement, calls in self.items() if text in statement)

    def since(self, earlier: "Statements") -> "Statements":
        return Statements(self - earlier)

    def __str__(self) -> str:
        return "\n".join(f"{calls:6} {' '.join(text.split())[:100]}" for text, calls in self.most_common())


@dataclass(frozen=True, slots=True)
class Servers:
    """Both servers; ``admin`` is a connection to another database than any worker's."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    admin: asyncpg.Connection

    async def pages(self, database: str) -> int:
        """Count the pages that the statements of a database have read so far."""
        return int(await self.admin.fetchval(_PAGES, database))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """What one worker is pointed at, and how much of it that worker used.

    Attributes:
        database: the test's own connection, which is not counted.
    """

    servers: Servers
    target: Deployment
    database_name: str
    database: asyncpg.Connection
    broker: NatsConnection
    handler: HandlerServer

    async def commit(self, count: int, *, per_key: int = 0) -> None:
        """Write a backlog after a checkpoint, so that the log has its pages before anything is counted."""
        await self.database.execute("CHECKPOINT")
        await self.database.execute(_BACKLOG, count, per_key)

    async def commit_one(self) -> None:
        """Write one event, as a service does."""
        await self.database.execute(_BACKLOG, 1, 0)

    async def send(self, count: int) -> None:
        """Store messages in the upstream stream."""
        subject = f"{self.target.upstream}.event.made.v1"
        for number in range(count):
            body, headers = json.dumps({"order": number}).encode(), {"Nats-Msg-Id": str(uuid.uuid4())}
            await self.broker.client.publish(subject, body, headers=headers)
        upstream = self.target.upstream_stream
        await eventually(
            lambda: self._messages(upstream), until=lambda found: found == count, what="all is stored"
        )

    async def stored(self) -> int:
        """Count the messages of the own stream; the tables are left alone."""
        return await self._messages(self.target.stream)

    async def statements(self) -> Statements:
        """Return what the worker has asked the database so far, at the top level."""
        rows = await self.servers.admin.fetch(_STATEMENTS, self.database_name)
        return Statements({row["query"]: row["calls"] for row in rows})

    async def log_bytes(self) -> int:
        return int(await self.servers.admin.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def traffic(self, purpose: str) -> int:
        """Count the messages that the connections of one side have carried, those that ended included."""
        name = f"sea_mq_worker {self.target.context} {purpose}"
        url = f"{self.servers.nats.monitor_url}/connz"
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:

            async def carried() -> list[int]:
                answer = await http.get(url, params={"state": "all", "sort": "start"})
                connections = [each for each in answer.json()["connections"] if each.get("name") == name]
                return [each["in_msgs"] + each["out_msgs"] for each in connections]

            return sum(await eventually(carried, what=f"the server knows of {name}"))

    async def _messages(self, stream: str) -> int:
        return int((await api(self.broker, f"STREAM.INFO.{stream}"))["state"]["messages"])


_PLANTS = Path(__file__).parent / "plants"


@dataclass(frozen=True, slots=True)
class CallCounter:
    """Counts while it is on; nothing of the worker knows of it."""

    worker: WorkerProcess
    reported: Path

    async def begin(self) -> None:
        """Count from now on."""
        self.worker.send(signal.SIGUSR1)
        await eventually(self.reported.with_suffix(".begun").exists, what="calls are counted")

    async def end(self) -> int:
        """Stop, and return how many there were, of Python's and of C's functions."""
        self.worker.send(signal.SIGUSR1)
        await eventually(self.reported.exists, what="calls are told")
        return int(self.reported.read_text())


@asynccontextmanager
async def counted(metered: Meters, folder: Path, **settings: object) -> AsyncIterator[CallCounter]:
    """Run a worker, ready, whose calls can be counted."""
    reported = folder / "calls"
    environment = {**metered.target.environment, "PYTHONPATH": str(_PLANTS), "COUNTED_CALLS": str(reported)}
    target = replace(metered.target, environment=environment)
    async with running(target, folder / "worker.log", **settings) as worker:
        await worker.ready()
        yield CallCounter(worker, reported)

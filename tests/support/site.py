"""A whole deployment on loopback, each of the worker's three connections behind a proxy of its own."""

import hashlib
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg

from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings
from tests.support.builders import enqueueable
from tests.support.handlers import Behaviour, Call, HandlerServer, answer, handler_server
from tests.support.jetstream import SECOND, connected, consumer_info, store, stored_messages
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import database_connection
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, apply_streams, deployment, running

# Leases, deadlines and patience as short as the settings' relations allow.
FAST: Mapping[str, object] = MappingProxyType({
    "outbox_publish_timeout_seconds": 1,
    "database_timeout_seconds": 2,
    "outbox_lease_seconds": 3,
    "outbox_poll_seconds": 0.5,
    "outbox_backoff_seconds": 0.2,
    "outbox_backoff_max_seconds": 2,
    "inbox_lease_seconds": 3,
    "inbox_backoff_seconds": 0.2,
    "inbox_backoff_max_seconds": 2,
    "handler_timeout_seconds": 2,
    "grace_seconds": 5,
})  # fmt: skip
SHIPPED = {name: Settings.model_fields[name].get_default() for name in FAST}
FAST_CONSUMER: Mapping[str, Any] = MappingProxyType({"ack_wait": 3 * SECOND})

_UNFINISHED = "SELECT count(*) FROM outbox_events WHERE state IN ('PENDING', 'CLAIMED')"
_ROWS = "SELECT * FROM outbox_events ORDER BY seq"


@dataclass
class Effects:
    """An idempotent service: the first call for an id takes effect, every later one is answered 409."""

    taken: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    script: dict[str, Behaviour] = field(default_factory=dict)
    """Behaviour for single messages, by their id."""

    async def take(self, call: Call, writer: Any) -> None:
        """Behave so as the handler."""
        self.calls[call.message_id] += 1
        if call.message_id in self.script:
            await self.script[call.message_id](call, writer)
            return
        known = call.message_id in self.taken
        self.taken[call.message_id] += not known
        await answer(409 if known else 200)(call, writer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Handles of a fault test; ``direct``, ``database`` and ``broker`` bypass the proxies."""

    target: Deployment
    direct: Deployment
    dsn: str
    database: asyncpg.Connection
    broker: NatsConnection
    handler: HandlerServer
    effects: Effects
    to_database: TcpProxy
    to_broker: TcpProxy
    to_handler: TcpProxy
    folder: Path

    def worker(
        self, *command: str, name: str = "worker", **settings: object
    ) -> AbstractAsyncContextManager[WorkerProcess]:
        """Run a worker for the length of a block; give several of them names."""
        return running(self.target, self.folder / f"{name}.log", *command, worker_name=name, **settings)

    @property
    def own_links(self) -> Mapping[str, str]:
        """Settings of a worker whose links bypass the proxies: what they do happens to the other workers."""
        names = ("database_url", "nats_url", "handler_url")
        return {name: self.direct.environment[f"SEA_MQ_{name.upper()}"] for name in names}

    async def commit(self, count: int = 1, **event: Any) -> list[str]:
        """Commit ``count`` events in one transaction; return their ids."""
        async with self.database.transaction():
            ids = await enqueue(self.database, *(enqueueable(**event) for _ in range(count)))
        return [str(event_id) for event_id in ids]

    async def send(self, count: int = 1, body: bytes = b"{}") -> list[str]:
        """Store ``count`` messages in the upstream stream; return their ids."""
        ids = [str(uuid.uuid4()) for _ in range(count)]
        for message_id in ids:
            await store(self.broker, self.subject, body, headers={"Nats-Msg-Id": message_id})
        return ids

    async def both_ways(self) -> None:
        """Let ten events without and ten with a key come, and ten messages."""
        await self.commit(10)
        await self.commit(10, ordering_key="k")
        await self.send(10)

    @property
    def subject(self) -> str:
        """A subject of the upstream context."""
        return f"{self.target.upstream}.event.made.v1"

    async def row(self, event_id: str) -> asyncpg.Record:
        return await self.database.fetchrow("SELECT * FROM outbox_events WHERE id = $1", event_id)

    async def inbox_row(self, message_id: str) -> asyncpg.Record:
        """Return a message's row, or None."""
        return await self.database.fetchrow("SELECT * FROM inbox_messages WHERE message_id = $1", message_id)

    async def copies(self) -> Counter[str]:
        """Count the messages of the own stream by id."""
        stored = await stored_messages(self.broker, self.target.stream)
        return Counter(headers["Nats-Msg-Id"] for *_, headers in stored)

    async def dead_letters(self) -> list[Mapping[str, str]]:
        stored = await stored_messages(self.broker, f"{self.target.context.upper()}_DLQ")
        return [headers for *_, headers in stored]

    async def stream(self) -> dict[str, Any]:
        return await api(self.broker, f"STREAM.INFO.{self.target.stream}")

    async def change_stream(self, **change: Any) -> None:
        config = (await self.stream())["config"]
        await api(self.broker, f"STREAM.UPDATE.{self.target.stream}", config | change)

    async def apply_streams(self, **consumer: Any) -> None:
        """Apply the definitions again, as `streams apply` does."""
        await apply_streams(self.direct, self.folder / "again", consumer={**FAST_CONSUMER, **consumer})

    async def consumer(self) -> dict[str, Any]:
        return await consumer_info(self.broker, self.target.upstream_stream, self.target.durable)

    async def deliveries(self) -> int:
        """Count what the server delivered to the durable, repeats included."""
        return int((await self.consumer())["delivered"]["consumer_seq"])

    def heal(self) -> None:
        for proxy in (self.to_database, self.to_broker, self.to_handler):
            proxy.heal()

    async def published(self, *, within: float = 30.0) -> None:
        await eventually(self._all_published, within=within, what="every event is PUBLISHED or DEAD")

    async def quiet(self, *, within: float = 30.0) -> None:
        """Wait until no event is unfinished and no message unanswered."""
        await self.published(within=within)
        await self.answered(within=within)

    async def answered(self, *, within: float = 30.0) -> None:
        await eventually(self._all_answered, within=within, what="every message is acknowledged")

    async def audit(
        self, *, dead: frozenset[str] = frozenset(), dead_lettered: frozenset[str] = frozenset()
    ) -> None:
        """Prove that each event and message came to its end once, unaltered and in its key's order.

        All events have to be PUBLISHED but ``dead``, all messages processed but ``dead_lettered``.
        """
        await self._audit_outbound(dead)
        await self._audit_inbound(dead_lettered)

    async def _all_published(self) -> bool:
        return not await self.database.fetchval(_UNFINISHED)

    async def _all_answered(self) -> bool:
        info = await self.consumer()
        return not info["num_pending"] and not info["num_ack_pending"]

    async def _audit_outbound(self, dead: frozenset[str]) -> None:
        rows = {str(row["id"]): row for row in await self.database.fetch(_ROWS)}
        stored = await stored_messages(self.broker, self.target.stream)
        found = {headers["Nats-Msg-Id"]: (seq, subject, body) for seq, subject, body, headers in stored}
        assert {event_id for event_id, row in rows.items() if row["state"] == "DEAD"} == dead
        assert Counter(headers["Nats-Msg-Id"] for *_, headers in stored) == Counter(set(rows) - dead)
        by_key = defaultdict(list)
        for event_id, (seq, subject, body) in found.items():
            row = rows[event_id]
            kind = f"{self.target.context}.event.{row['event_type']}.v{row['event_version']}"
            assert (row["state"], row["stream_seq"], subject) == ("PUBLISHED", seq, kind)
            assert _digest(body) == _digest(row["payload"].encode())
        for event_id, row in rows.items():
            if event_id in found and row["ordering_key"] is not None:
                by_key[row["ordering_key"]].append(found[event_id][0])
        assert all(seqs == sorted(seqs) for seqs in by_key.values())

    async def _audit_inbound(self, dead_lettered: frozenset[str]) -> None:
        stored = await stored_messages(self.broker, self.target.upstream_stream)
        sent = {headers["Nats-Msg-Id"] for *_, headers in stored}
        rows = {
            str(row["message_id"]): row for row in await self.database.fetch("SELECT * FROM inbox_messages")
        }
        assert sent <= set(rows)
        assert {i for i, row in rows.items() if row["processed_at"] is not None} == sent - dead_lettered
        assert {i for i, row in rows.items() if row["dead_lettered_at"] is not None} == dead_lettered
        letters = Counter(headers["Dlq-Message-Id"] for headers in await self.dead_letters())
        assert letters == Counter(dead_lettered)
        assert self.effects.taken == Counter(sent - dead_lettered)


SiteWith = Callable[..., AbstractAsyncContextManager[Site]]
"""`site` in a test's own database, on the session's broker unless ``nats_url`` names another one."""


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@asynccontextmanager
async def site(
    *,
    dsn: str,
    nats_url: str,
    name: str,
    folder: Path,
    consumer: Mapping[str, Any] = MappingProxyType({}),
    stream: Mapping[str, Any] = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[Site]:
    """Set up streams, a consumer, an idempotent handler and the proxies for a worker of the context ``name``.

    ``consumer`` changes the durable over FAST_CONSUMER, ``stream`` the own stream and that of dead letters,
    ``settings`` those of the worker over FAST.
    """
    effects = Effects()
    async with (
        connected(nats_url) as broker,
        handler_server(effects.take) as handler,
        proxied(dsn) as (to_database, database_url),
        proxied(nats_url) as (to_broker, proxied_nats_url),
        proxied(handler.url) as (to_handler, handler_url),
        database_connection(dsn) as database,
    ):
        target = deployment(
            context=name,
            database_url=database_url,
            nats_url=proxied_nats_url,
            handler_url=handler_url,
            **{**FAST, **settings},
        )
        direct = deployment(context=name, database_url=dsn, nats_url=nats_url, handler_url=handler.url)
        await apply_streams(direct, folder / "streams", consumer={**FAST_CONSUMER, **consumer}, stream=stream)
        yield Site(
            target=target, direct=direct, dsn=dsn, folder=folder,
            database=database, broker=broker, handler=handler, effects=effects,
            to_database=to_database, to_broker=to_broker, to_handler=to_handler,
        )  # fmt: skip

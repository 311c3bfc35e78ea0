"""Traffic in both directions: transactions that write events, and messages of another context."""

import asyncio
import contextlib
import json
import random
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import asyncpg
import nats.errors

from sea_mq_worker.producer import Event, enqueue
from tests.soak.deployment import MAX_PAYLOAD, PAYLOAD_CANARY, Service, Stage
from tests.support.jetstream import store


class Fate(StrEnum):
    """The outcome of a transaction, as known to its producer."""

    OK = "ok"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An event that the producer writes; ``dead`` is a word of its expected error, empty for a good event."""

    id: str
    payload: str
    key: str | None = None
    dead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Events to be committed together."""

    name: str
    events: tuple[Planned, ...]
    fate: Fate


_PAUSE_SECONDS = 0.25
_TIMEOUT_SECONDS = 4.0
_KEYS = 12
_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_RAW = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers, ordering_key)"
    " VALUES ($1, 'order', 'o-1', $2, $3, $4, $5)"
)
_BAD: Sequence[tuple[str, str, str]] = (
    ("order.*", "null", "wildcard"),
    ("order made", "null", "space"),
    ("order.made", '{"Nats-Rollup": "all"}', "reserved"),
    ("order.made", '{"x": 5}', "not a string"),
    ("order.big", "null", "max_payload"),
)
"""Event types and headers that can never be published, and a word of the expected error."""


@dataclass
class Producer:
    """Commits events; each transaction holds the producer's lock, since order is promised only then."""

    stage: Stage
    ledger: dict[str, Transaction]
    name: str
    chance: random.Random
    _connection: asyncpg.Connection | None = None
    _count: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop."""
        while not stop.is_set():
            await asyncio.sleep(self.chance.uniform(0, 2 * _PAUSE_SECONDS))
            if self._connection is None or self._connection.is_closed():
                with contextlib.suppress(*_LOST):
                    self._connection = await asyncpg.connect(
                        self.stage.producer_url, timeout=_TIMEOUT_SECONDS, command_timeout=_TIMEOUT_SECONDS
                    )
                continue
            await self._transact(self._connection)
        if self._connection is not None:
            self._connection.terminate()

    async def _transact(self, connection: asyncpg.Connection) -> None:
        self._count += 1
        name = f"{self.name}-{self._count}"
        good = [self._good() for _ in range(self.chance.randint(1, 6))]
        bad = [self._bad()] if self.chance.random() < 0.03 else []
        planned = [plan for plan, _ in good] + [plan for plan, *_ in bad]
        fate = Fate.ROLLED_BACK
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(
                "SELECT pg_advisory_xact_lock(470048, $1)", zlib.crc32(self.name.encode()) % 2**31
            )
            await enqueue(connection, *(event for _, event in good))
            for plan, kind, headers in bad:
                row = (plan.id, kind, plan.payload, None if headers == "null" else headers, plan.key)
                await connection.execute(_RAW, *row)
            if self.chance.random() < 0.1:
                await transaction.rollback()
            else:
                fate = Fate.UNKNOWN
                await transaction.commit()
                fate = Fate.OK
        except _LOST:
            connection.terminate()
        self.ledger[name] = Transaction(name=name, events=tuple(planned), fate=fate)

    def _good(self) -> tuple[Planned, Event]:
        key = f"{self.name}-{self.chance.randrange(_KEYS)}" if self.chance.random() < 0.5 else None
        payload = json.dumps(
            {
                "canary": PAYLOAD_CANARY,
                "amount": self.chance.randrange(10**12),
                "text": "ä€\U0001f600" * self.chance.randrange(40),
                "deep": [{"a": [None, True, self.chance.random()]}],
            }
        ).replace("}]}", ', "digits": 1234567890.12345678901234567890, "exact": 1.00}]}', 1)
        event = Event(
            aggregate_type="order",
            aggregate_id="o-1",
            event_type=self.chance.choice(("order.made", "order.paid", "order.sent.away")),
            payload=payload,
            ordering_key=key,
            headers={"X-Soak": self.name} if self.chance.random() < 0.5 else None,
        )
        return Planned(id=str(event.id), payload=payload, key=key), event

    def _bad(self) -> tuple[Planned, str, str]:
        kind, headers, dead = self.chance.choice(_BAD)
        payload = json.dumps("x" * MAX_PAYLOAD if kind == "order.big" else {"canary": PAYLOAD_CANARY})
        key = f"{self.name}-{self.chance.randrange(_KEYS)}" if self.chance.random() < 0.3 else None
        return Planned(id=str(uuid.uuid4()), payload=payload, key=key, dead=dead), kind, headers


# Percentages of the other context's messages that are not simply good.
_PLANS: Sequence[tuple[int, str]] = (
    (3, "rejected"),
    (1, "never"),
    (1, "no id"),
    (1, "no json"),
    (1, "bad subject"),
    (2, "repeated"),
    (1, "conflict"),
)
SHARE = "Soak-Plan"
"""Header with the expected outcome of a message, for the checks."""


@dataclass
class Sender:
    """Another context, which stores messages in its stream, and retries until the stream has each."""

    stage: Stage
    chance: random.Random
    only_good: bool = False
    acknowledged: dict[int, str] = field(default_factory=dict)
    """Stored IDs by the sequence in the stream's acknowledgement."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop."""
        while not stop.is_set():
            await asyncio.sleep(self.chance.uniform(0, 0.1))
            await self._send("good" if self.only_good else self._draw(), stop)

    def _draw(self) -> str:
        chosen = self.chance.randrange(100)
        for share, plan in _PLANS:
            if chosen < share:
                return plan
            chosen -= share
        return "good"

    async def _send(self, plan: str, stop: asyncio.Event) -> None:
        message_id = str(uuid.uuid4())
        up = self.stage.direct.upstream
        subject = f"{up}.event.made" if plan == "bad subject" else f"{up}.event.thing.made.v1"
        body = json.dumps({"canary": PAYLOAD_CANARY, "n": self.chance.randrange(10**9)}).encode()
        headers = {SHARE: plan, "Nats-Msg-Id": message_id}
        _plan_response(self.stage.service, plan, message_id)
        match plan:
            case "no id":
                headers["Nats-Msg-Id"] = f"not-a-uuid-{message_id}"
            case "no json":
                body = body[:-1]
            case "repeated" | "conflict":
                del headers["Nats-Msg-Id"]
                headers["ce-id"] = message_id
                await self._store(subject, body, headers, stop)
                body = body if plan == "repeated" else body.replace(b'"n": ', b'"n": 1')
        await self._store(subject, body, headers, stop)

    async def _store(self, subject: str, body: bytes, headers: dict[str, Any], stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                seq = await store(self.stage.broker, subject, body, headers)
            except (nats.errors.Error, TimeoutError, KeyError, ValueError):
                await asyncio.sleep(0.2)
            else:
                self.acknowledged[seq] = headers.get("Nats-Msg-Id", headers.get("ce-id", ""))
                return


def _plan_response(service: Service, plan: str, message_id: str) -> None:
    if plan == "rejected":
        service.rejects.add(message_id)
    elif plan == "never":
        service.never.add(message_id)

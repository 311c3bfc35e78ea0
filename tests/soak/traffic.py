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
from typing import NamedTuple

import asyncpg
import nats.errors

from sea_mq_worker.producer import Event, enqueue
from tests.soak.deployment import MAX_PAYLOAD, PAYLOAD_CANARY, Stage
from tests.support.jetstream import store


class Fate(StrEnum):
    """The outcome of a transaction, as known to its producer."""

    OK = "ok"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Planned(NamedTuple):
    """An event that the producer writes; ``dead`` is a word of its expected error, empty for a good event."""

    id: str
    payload: str
    dead: str = ""


class Transaction(NamedTuple):
    """Events to be committed together."""

    events: list[Planned]
    fate: Fate


_PAUSE_SECONDS = 0.25
_TIMEOUT_SECONDS = 4.0
_KEYS = 12
_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_RAW = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers, ordering_key)"
    " VALUES ($1, 'order', 'o-1', $2, $3, $4, $5)"
)
_BAD: Sequence[tuple[str, str | None, str]] = (
    ("order.*", None, "wildcard"),
    ("order made", None, "space"),
    ("order.made", '{"Nats-Rollup": "all"}', "reserved"),
    ("order.made", '{"x": 5}', "not a string"),
    ("order.big", None, "max_payload"),
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
        good = [self._good() for _ in range(self.chance.randint(1, 6))]
        bad = [self._bad()] if self.chance.random() < 0.03 else []
        fate = Fate.ROLLED_BACK
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(
                "SELECT pg_advisory_xact_lock(470048, $1)", zlib.crc32(self.name.encode()) % 2**31
            )
            await enqueue(connection, *good)
            for _, row in bad:
                await connection.execute(_RAW, *row)
            if self.chance.random() < 0.1:
                await transaction.rollback()
            else:
                fate = Fate.UNKNOWN
                await transaction.commit()
                fate = Fate.OK
        except _LOST:
            connection.terminate()
        planned = [Planned(str(event.id), str(event.payload)) for event in good] + [plan for plan, _ in bad]
        self.ledger[f"{self.name}-{len(self.ledger)}"] = Transaction(planned, fate)

    def _good(self) -> Event:
        payload = json.dumps(
            {
                "canary": PAYLOAD_CANARY,
                "amount": self.chance.randrange(10**12),
                "text": "ä€\U0001f600" * self.chance.randrange(40),
                "deep": [{"a": [None, True, self.chance.random()]}],
            }
        ).replace("}]}", ', "digits": 1234567890.12345678901234567890, "exact": 1.00}]}', 1)
        return Event(
            aggregate_type="order",
            aggregate_id="o-1",
            event_type=self.chance.choice(("order.made", "order.paid", "order.sent.away")),
            payload=payload,
            ordering_key=self._key(0.5),
            headers={"X-Soak": self.name} if self.chance.random() < 0.5 else None,
        )

    def _bad(self) -> tuple[Planned, tuple[str | None, ...]]:
        """Return an event that can never be published, and its row."""
        kind, headers, dead = self.chance.choice(_BAD)
        payload = json.dumps("x" * MAX_PAYLOAD if kind == "order.big" else {"canary": PAYLOAD_CANARY})
        event_id = str(uuid.uuid4())
        return Planned(event_id, payload, dead), (event_id, kind, payload, headers, self._key(0.3))

    def _key(self, share: float) -> str | None:
        """Return one of the producer's keys, or none."""
        drawn = self.chance.randrange(_KEYS)
        return f"{self.name}-{drawn}" if self.chance.random() < share else None


_SHARES = {
    "good": 90,
    "rejected": 3,
    "never": 1,
    "no id": 1,
    "no json": 1,
    "bad subject": 1,
    "repeated": 2,
    "conflict": 1,
}
"""Percentages of the other context's messages by their plan."""
SHARE = "Soak-Plan"
"""Header with the expected outcome of a message, for the checks."""


@dataclass
class Sender:
    """Another context, which stores messages in its stream, and retries until the stream has each.

    ``acknowledged``: stored IDs by the sequence in the stream's acknowledgement.
    """

    stage: Stage
    chance: random.Random
    only_good: bool = False
    acknowledged: dict[int, str] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop."""
        while not stop.is_set():
            await asyncio.sleep(self.chance.uniform(0, 0.1))
            [plan] = self.chance.choices([*_SHARES], [*_SHARES.values()])
            await self._send("good" if self.only_good else plan, stop)

    async def _send(self, plan: str, stop: asyncio.Event) -> None:
        message_id = str(uuid.uuid4())
        up = self.stage.direct.upstream
        subject = f"{up}.event.made" if plan == "bad subject" else f"{up}.event.thing.made.v1"
        body = json.dumps({"canary": PAYLOAD_CANARY, "n": self.chance.randrange(10**9)}).encode()
        headers = {SHARE: plan, "Nats-Msg-Id": message_id}
        match plan:
            case "rejected":
                self.stage.service.rejects.add(message_id)
            case "never":
                self.stage.service.never.add(message_id)
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

    async def _store(self, subject: str, body: bytes, headers: dict[str, str], stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                seq = await store(self.stage.broker, subject, body, headers)
            except (nats.errors.Error, TimeoutError, KeyError, ValueError):
                await asyncio.sleep(0.2)
            else:
                self.acknowledged[seq] = headers.get("Nats-Msg-Id", headers.get("ce-id", ""))
                return

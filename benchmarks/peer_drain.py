"""One relay and one backlog on separate servers; the rate is by the stream's clock. Linux only."""

import asyncio
import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.counters import cpu_seconds
from kit.audit import audit
from kit.description import Description, Table
from kit.ledger import SUBJECT, TYPE, Event, positional
from kit.process import KeptProcess
from kit.provision import STREAM, create_database, prepared_relays, put_stream
from kit.streams import Message
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres

_POSTGRES = {"wal_level": "logical"}
_KEYS_AT_ONCE = 10
_PER_TRANSACTION = 100
_LOOK_SECONDS = 0.02
_FETCH = 1_000
_LOG_LINES = 5


class DrainError(Exception):
    """The relay failed; the text has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A relay's figures for a backlog.

    Attributes:
        rate: events a second, from the first stored message to the last.
        cpu_seconds_per_100000: CPU time of relay, postgres and nats, without the start of the relay.
    """

    rate: float
    cpu_seconds_per_100000: Mapping[str, float]


async def drain(
    description: Description, *, work: Path, events: int, per_key: int, timeout_seconds: float
) -> Drained:
    """Write a backlog, then start the relay; ``per_key`` events have a key in common, 0: no keys.

    Raises:
        DrainError: the relay ended or stopped, or did not store every event once, unaltered and in order.
        CommandError: a command of the relay failed.
        DescriptionError: a command names an unknown placeholder.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-")))
        postgres = EmbeddedPostgres(folder / "postgres", settings=_POSTGRES)
        broker = EmbeddedNats(folder / "nats")
        await asyncio.gather(stack.enter_async_context(postgres), stack.enter_async_context(broker))
        await put_stream(broker.url, description, "CREATE", {})
        dsn = await create_database(postgres, description.table.create)
        relay, _ = await prepared_relays(description, folder, work, database_url=dsn, nats_url=broker.url)
        database = await asyncpg.connect(dsn)
        stack.push_async_callback(database.close)
        client = await nats.connect(broker.url)
        stack.push_async_callback(client.close)
        written = backlog(events, per_key)
        await _write(database, description.table, written)
        run = _Run(
            relay=relay,
            pids={"postgres": postgres.pid, "nats": broker.pid},
            stream=client.jetstream(),
            database=database,
            unfinished=description.table.unfinished,
        )
        async with relay:
            cost = await run.watch(events, timeout_seconds)
        stored, stamps = await _read(client.jetstream(), events)
        _check(written, stored, description.message.body)
    seconds = (max(stamps) - min(stamps)).total_seconds()
    return Drained(rate=(events - 1) / seconds, cpu_seconds_per_100000=cost)


def backlog(count: int, per_key: int) -> list[Event]:
    """Make events; ten keys take turns, so that events of a key are not neighbours."""
    return [_event(number, per_key) for number in range(count)]


def _event(number: int, per_key: int) -> Event:
    key = None
    if per_key:
        group = number // (per_key * _KEYS_AT_ONCE)
        key = f"order-{group * _KEYS_AT_ONCE + number % _KEYS_AT_ONCE}"
    identity = str(uuid.uuid4())
    body = {
        "event": identity,
        "order": number,
        "customer": f"customer-{number % 997}",
        "currency": "EUR",
        "total": number * 125,
        "lines": [{"article": number % 89, "quantity": 2}],
    }
    return Event(id=identity, key=key, number=number, body=json.dumps(body), fault="", committed=True)


async def _write(database: asyncpg.Connection, table: Table, events: Sequence[Event]) -> None:
    """Write the events, 100 to a transaction, then analyze the tables and force a checkpoint."""
    for start in range(0, len(events), _PER_TRANSACTION):
        rows = [
            positional(
                table.insert,
                {"id": each.id, "type": TYPE, "key": each.key, "subject": SUBJECT, "body": each.body},
            )
            for each in events[start : start + _PER_TRANSACTION]
        ]
        async with database.transaction():
            await database.executemany(rows[0][0], [arguments for _, arguments in rows])
    await database.execute("ANALYZE")
    await database.execute("CHECKPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    relay: KeptProcess
    pids: Mapping[str, int]
    stream: JetStreamContext
    database: asyncpg.Connection
    unfinished: str

    async def watch(self, events: int, timeout_seconds: float) -> Mapping[str, float]:
        """Wait until all events are stored and settled; return the CPU seconds per 100,000 events."""
        try:
            async with asyncio.timeout(timeout_seconds):
                first = await self._grown_to(1)
                before = self._cpu()
                await self._grown_to(events)
                await self._settled()
        except TimeoutError:
            seen = await self._stored()
            raise DrainError(
                f"after {timeout_seconds:g} s {seen} of {events} events were stored{self._last_words()}"
            ) from None
        if first == events:
            raise DrainError(f"all {events} events were stored at the first reading: use more events")
        after = self._cpu()
        share = 1e5 / (events - first)
        return {name: (after[name] - spent) * share for name, spent in before.items()}

    async def _grown_to(self, count: int) -> int:
        while (seen := await self._stored()) < count:  # noqa: ASYNC110 - as below
            await asyncio.sleep(_LOOK_SECONDS)
        return seen

    async def _settled(self) -> None:
        while self.unfinished and await self.database.fetchrow(self.unfinished) is not None:  # noqa: ASYNC110 - the server sends no event for this
            await asyncio.sleep(_LOOK_SECONDS)

    async def _stored(self) -> int:
        if self.relay.ends:
            raise DrainError(f"the relay ended with exit code {self.relay.ends[0]}{self._last_words()}")
        return (await self.stream.stream_info(STREAM)).state.messages

    def _cpu(self) -> dict[str, float]:
        pids = {"relay": self.relay.process.pid, **self.pids}
        return {name: cpu_seconds(pid) for name, pid in pids.items()}

    def _last_words(self) -> str:
        lines = self.relay.lives[0].log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"\n    {line[:200]}" for line in lines)


async def _read(stream: JetStreamContext, events: int) -> tuple[list[Message], list[datetime]]:
    """Return all messages, and the times at which the stream stored them."""
    consumer = await stream.pull_subscribe(
        "", stream=STREAM, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    stored: list[Message] = []
    stamps = []
    while len(stored) < events:
        for message in await consumer.fetch(_FETCH):
            stamps.append(message.metadata.timestamp)
            seq = message.metadata.sequence.stream
            stored.append(Message(seq=seq, headers=message.headers or {}, body=message.data))
    return stored, stamps


def _check(written: Sequence[Event], stored: Sequence[Message], pointer: str) -> None:
    """Compare the written events with the stored messages.

    Raises:
        DrainError: they differ.
    """
    found = audit(written, stored, pointer=pointer, unfinished=frozenset(), refused=frozenset())[""]
    wrong = {
        "missing": found.lost,
        "repeated": found.copies,
        "altered": found.altered,
        "out of order": found.disordered,
    }
    if problems := ", ".join(f"{len(ids)} {kind}" for kind, ids in wrong.items() if ids):
        raise DrainError(f"of {len(written)} events, {problems}")

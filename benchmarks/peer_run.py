"""A relay between servers of its own, and the checks of what it stored. Linux only."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.counters import cpu_seconds
from benchmarks.relay import STREAM, Description, Event, prepared
from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from tests.support.audit import exact, out_of_order
from tests.support.processes import KeptProcess
from tests.support.servers import database_connection

_POSTGRES = {"wal_level": "logical"}
_POLL_SECONDS = 0.02
_FETCH = 1_000
_LOG_LINES = 5


class PeerError(Exception):
    """The relay failed; the text has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A relay's figures.

    Attributes:
        rate: events a second, from the first stored message to the last.
        cpu_seconds_per_100000: CPU time of relay, postgres and nats, without the start of the relay.
        latency_ms: by percentile, from sending COMMIT until the stream had the event; empty for a backlog.
    """

    rate: float
    cpu_seconds_per_100000: Mapping[str, float]
    latency_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """A relay that is not yet started, an empty table and an empty stream."""

    description: Description
    relay: KeptProcess
    pids: Mapping[str, int]
    stream: JetStreamContext
    database: asyncpg.Connection
    dsn: str

    async def grown_to(self, count: int, *, timeout_seconds: float) -> int:
        """Wait until the stream has that many messages; return how many it has.

        Raises:
            PeerError: the relay ended, or the time is over.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while (seen := await self._stored()) < count:  # noqa: ASYNC110 - the server sends no event for this
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            seen = await self._stored()
            raise PeerError(
                f"after {timeout_seconds:g} s {seen} of {count} events were stored{self._last_words()}"
            ) from None
        return seen

    async def settled(self, count: int, *, timeout_seconds: float) -> None:
        """Wait until the stream has that many messages and the table has settled their events.

        Raises:
            PeerError: the relay ended, or the time is over.
        """
        await self.grown_to(count, timeout_seconds=timeout_seconds)
        query = self.description.table.unfinished
        try:
            async with asyncio.timeout(timeout_seconds):
                while query and await self.database.fetchrow(query) is not None:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise PeerError(
                f"after {timeout_seconds:g} s the table had unsettled events{self._last_words()}"
            ) from None

    def cpu(self) -> dict[str, float]:
        """Read the CPU seconds of the relay with its children, and of the servers."""
        pids = {"relay": self.relay.process.pid, **self.pids}
        return {name: cpu_seconds(pid) for name, pid in pids.items()}

    async def read(self, written: Sequence[Event]) -> tuple[list[bytes], list[datetime]]:
        """Return the bodies of all messages, and the times at which the stream stored them.

        Raises:
            PeerError: an event is missing, repeated, altered or out of order.
        """
        consumer = await self.stream.pull_subscribe(
            "", stream=STREAM, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
        )
        stored: list[bytes] = []
        stamps = []
        while len(stored) < len(written):
            for message in await consumer.fetch(_FETCH):
                stamps.append(message.metadata.timestamp)
                stored.append(message.data)
        _check(written, stored, self.description.message.body)
        return stored, stamps

    async def _stored(self) -> int:
        if self.relay.ends:
            raise PeerError(f"the relay ended with exit code {self.relay.ends[0]}{self._last_words()}")
        return (await self.stream.stream_info(STREAM)).state.messages

    def _last_words(self) -> str:
        lines = self.relay.lives[0].log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"\n    {line[:200]}" for line in lines)


@asynccontextmanager
async def peer_run(description: Description, *, work: Path) -> AsyncIterator[PeerRun]:
    """Start the servers and prepare the relay; end all of them with the block.

    Raises:
        RelayError: a command of the relay failed, or names an unknown placeholder.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-")))
        postgres = EmbeddedPostgres(folder / "postgres", settings=_POSTGRES)
        broker = EmbeddedNats(folder / "nats")
        await asyncio.gather(stack.enter_async_context(postgres), stack.enter_async_context(broker))
        relay, dsn = await prepared(description, folder, work, postgres=postgres, nats_url=broker.url)
        database = await stack.enter_async_context(database_connection(dsn))
        client = await nats.connect(broker.url)
        stack.push_async_callback(client.close)
        yield PeerRun(
            description=description,
            relay=relay,
            pids={"postgres": postgres.pid, "nats": broker.pid},
            stream=client.jetstream(),
            database=database,
            dsn=dsn,
        )


def per_100000(before: Mapping[str, float], after: Mapping[str, float], events: int) -> dict[str, float]:
    """Return the CPU seconds of 100,000 events between two readings."""
    return {name: (after[name] - spent) * 1e5 / events for name, spent in before.items()}


def rate_of(stamps: Sequence[datetime]) -> float:
    """Return the events a second between the first stored message and the last."""
    return (len(stamps) - 1) / (max(stamps) - min(stamps)).total_seconds()


def at(body: bytes, pointer: str) -> Any:
    """Return what a JSON pointer names in a body, JSON in a string included; None where it names nothing."""
    try:
        content = exact(body)
        for token in pointer.split("/")[1:]:
            content = content[int(token)] if isinstance(content, list) else content[token]
        return exact(content) if isinstance(content, str) else content
    except (ValueError, LookupError, TypeError):
        return None


def _check(written: Sequence[Event], stored: Sequence[bytes], pointer: str) -> None:
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for seq, body in enumerate(stored):
        content = at(body, pointer)
        found[content["event"] if isinstance(content, dict) else ""].append((seq, content))
    first = {event_id: copies[0][0] for event_id, copies in found.items()}
    wrong = {
        "missing": sum(event.id not in first for event in written),
        "repeated": sum(len(found[event.id]) > 1 for event in written),
        "altered": sum(any(body != exact(event.body) for _, body in found[event.id]) for event in written),
        "out of order": len(out_of_order(((event.id, event.key) for event in written), first)),
    }
    if problems := ", ".join(f"{count} {kind}" for kind, count in wrong.items() if count):
        raise PeerError(f"of {len(written)} events, {problems}")

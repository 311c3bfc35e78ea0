"""Messages that no delivery brings, as servers tell: exhausted, passed and missed; see ``rescue``.

- *exhausted*: the server gave a message up because it reached max_deliver. No count of waiting messages
  includes it. The server reports it once, in an advisory that a stream keeps; if the advisory is lost, a
  sweep finds the message. The workers of one service share the work.
- *passed*: the consumer counts messages as acknowledged that the inbox does not have. They are read from the
  stream and handled. A server that lost part of a consumer's state, or a leader that lacks it, causes this.
- *missed*: messages were never delivered, and are gone. They are counted, reported once by one of several
  workers, and kept in ``sea_mq_standings`` until an operator acknowledges them.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field

import asyncpg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.inbox.consumer import InboxConsumer
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.message import carries_no_event, recorded_as, storage_id
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import (
    READ_BYTES_MAX,
    ConsumerInfo,
    StreamInfo,
    consumer_info,
    find_consumer,
    read_back,
    read_next,
    read_on,
    stream_info,
)
from sea_mq_worker.nats.message import InboundMessage, size_of
from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.waiting import sleep_or_stop

# --- Exhausted: by advisory, and by sweep.

_BATCH = 50
_FOREIGN_DELAY_SECONDS = 300.0
_COUNTS = range(1, 2**63)
"""Sequences and deliveries that a server can count; a sequence beyond them is an error of its API."""


class NatsExhaustedMessages:
    """Exhausted messages of ``consumers``, each named by stream and durable.

    Args:
        stream: the one that keeps MAX_DELIVERIES advisories.
        durable: a durable consumer of that stream.
        wait_seconds: how long a fetch waits for an advisory.
        sweep_seconds: interval between sweeps for messages without an advisory.
    """

    def __init__(
        self,
        *,
        connection: NatsConnection,
        stream: str,
        durable: str,
        consumers: Sequence[tuple[str, str]],
        events: Events,
        wait_seconds: float = 5.0,
        sweep_seconds: float = 60.0,
    ) -> None:
        self._connection = connection
        self._advisories = NatsJetStreamConsumer(
            connection=connection, stream=stream, durable=durable, wait_seconds=wait_seconds
        )
        self._events = events
        self._sweep_seconds = sweep_seconds
        self._sweep_at = 0.0
        self._advised: deque[InboundMessage] = deque()  # advisories whose messages are not read yet
        self._accounted: dict[tuple[str, str], set[int]] = {name: set() for name in consumers}
        self._through = dict.fromkeys(consumers, 0)  # all messages up to this sequence are accounted for
        self._created: dict[tuple[str, str], str] = {}
        self._paused: set[tuple[str, str]] = set()

    async def start(self) -> None:
        """Verify that the advisories can be consumed; raises as NatsJetStreamConsumer.start."""
        await self._advisories.start()

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return the messages of new advisories; without any, those that a due sweep finds."""
        found: list[InboundMessage] = []
        if not self._advised:
            self._advised.extend(await self._advisories.fetch(_BATCH))
        while self._advised and size_of(found) < READ_BYTES_MAX:
            found += await self._named_by(self._advised.popleft())
        now = asyncio.get_running_loop().time()
        if not found and now >= self._sweep_at:
            for consumer in sorted(self._accounted):
                found += await self._sweep(*consumer)
            if not found:
                self._sweep_at = now + self._sweep_seconds
        return found

    async def ack(self, msg: InboundMessage) -> None:
        """Acknowledge a message's advisory; later sweeps skip the message."""
        self._accounted[msg.stream, msg.consumer].add(msg.seq)
        await self._advisories.ack(msg)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Request a message's advisory again after a delay; a sweep finds a message without one."""
        await self._advisories.nak(msg, delay_seconds=delay_seconds)

    async def in_progress(self, msg: InboundMessage) -> None:
        await self._advisories.in_progress(msg)

    async def close(self) -> None:
        await self._advisories.close()

    async def _named_by(self, advisory: InboundMessage) -> list[InboundMessage]:
        named = _read(advisory.payload)
        if named is None:
            self._events.emit("advisory_unreadable", text=f"{advisory.stream} {advisory.seq} is no advisory")
            await self._advisories.ack(advisory)
            return []
        name, seq, deliveries = named
        if name not in self._accounted:
            await self._advisories.nak(advisory, delay_seconds=_FOREIGN_DELAY_SECONDS)
            return []
        found = await read_back(self._connection, *name, seq, deliveries=deliveries, reply=advisory.reply)
        if found is None or found.stored_at > advisory.stored_at:  # the stream was created again
            text = f"consumer {name[1]} gave up message {seq} of stream {name[0]}, which has dropped it since"
            self._events.emit("exhausted_message_lost", text=text)
            await self._advisories.ack(advisory)
            return []
        return [found]

    async def _sweep(self, stream: str, durable: str) -> list[InboundMessage]:
        """Return delivered, unacknowledged messages while the consumer awaits no acknowledgement.

        Such a message has reached max_deliver. For example, the consumer has delivered up to 8, its
        acknowledgement floor is 4 and nothing awaits an acknowledgement; ``ack`` was called here for 5:

            sequence   ..4           5              6          7             8
            message    acknowledged  accounted for  exhausted  acknowledged  exhausted

        The stream is read from 5, the first sequence above the floor. 5 is skipped, and 6, 7 and 8 are
        returned: the server does not report single acknowledgements above the floor, but the inbox knows 7 as
        settled. ``_through`` rises to 5, so the next sweep starts at 6.
        """
        name = stream, durable
        info = await find_consumer(self._connection, stream, durable)
        if info is None:  # its own consuming loop reports that, and other consumers are swept meanwhile
            return []
        self._report_pause(info)
        if self._created.setdefault(name, info.created) != info.created:
            self._created[name] = info.created
            self._accounted[name], self._through[name] = set(), 0
        delivered = info.delivered_seq
        seq = max(info.ack_floor, min(self._through[name], delivered))
        accounted = {one for one in self._accounted[name] if seq < one <= delivered}
        self._accounted[name], self._through[name] = accounted, seq
        if info.ack_pending:
            return []
        found: list[InboundMessage] = []
        while len(found) < _BATCH and size_of(found) < READ_BYTES_MAX:
            while seq + 1 in accounted:
                seq += 1
            if not found:
                self._through[name] = seq
            message = await read_next(self._connection, info, seq + 1, deliveries=info.max_deliver)
            if message is None or message.seq > delivered:
                break
            seq = message.seq
            if seq not in accounted:
                found.append(message)
        return found

    def _report_pause(self, info: ConsumerInfo) -> None:
        """Report a paused consumer once: it looks like one that has nothing to deliver."""
        name = info.stream, info.name
        if info.is_paused and name not in self._paused:
            text = (
                f"consumer {info.name} of stream {info.stream} delivers nothing until it is resumed"
                f" (at the latest {info.pause_until})"
            )
            self._events.emit("consumer_paused", text=text)
            self._paused.add(name)
        elif not info.is_paused:
            self._paused.discard(name)


def _read(advisory: bytes) -> tuple[tuple[str, str], int, int] | None:
    """Return stream and durable, sequence and deliveries of an advisory; None: it is no advisory.

    Other contexts publish into the stream of advisories, too.
    """
    try:
        parsed = json.loads(advisory)
    except (ValueError, RecursionError):
        return None
    match parsed:
        case {"stream": str(stream), "consumer": str(name), "stream_seq": int(seq), "deliveries": int(count)}:
            return ((stream, name), seq, count) if seq in _COUNTS and count in _COUNTS else None
    return None


_SQL = load_queries("checks")
_LEADER_READS_SECONDS = 5.0
"""Time for a new leader to read all that it stores."""
_PAGE = 100

# --- Missed: count what was never delivered, as far as two states of a consumer tell.


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Progress of a consumer in its stream, as the server reports it; stored as JSON between two checks.

    Attributes:
        delivered: sequence of the last delivered message, or the one to which a purge moved the consumer.
        deliveries: number of deliveries, including repeats.
        pending: number of messages still to be delivered.
        takes_all: the filters match every subject of the stream, so every stored message is for the consumer.
        replaces: the stream drops older messages of a subject for newer ones.
    """

    stream_created: str
    consumer_created: str
    first_seq: int
    last_seq: int
    delivered: int
    deliveries: int
    pending: int
    takes_all: bool
    replaces: bool

    @classmethod
    def of(cls, source: StreamInfo, info: ConsumerInfo) -> "Standing":
        """Combine two answers; the stream's came first, so later removals show in the next check."""
        return cls(
            stream_created=source.created,
            consumer_created=info.created,
            first_seq=source.first_seq,
            last_seq=source.last_seq,
            delivered=info.delivered_seq,
            deliveries=info.delivered_count,
            pending=min(info.pending, max(source.last_seq - info.delivered_seq, 0)),
            takes_all=all(map(info.wants, source.subjects or (">",))),
            replaces=source.replaces,
        )


@dataclass(frozen=True, slots=True)
class Missed:
    """At least ``count`` messages between two sequences were never delivered, and will not be."""

    first_seq: int
    last_seq: int
    count: int


def find_missed(before: Standing | None, now: Standing) -> Missed | None:
    """Compare two states of a consumer; None: no message is known to be missed.

    Each message that was pending (and, for a consumer that takes all, each message stored since) was
    delivered since, is still pending, or is gone. Repeated deliveries make the count too low, never too
    high. In a stream that replaces messages, a missing message may have been replaced.
    """
    if now.replaces:
        return None
    if before is None:
        first, last = now.delivered, now.first_seq - 1
        count = last - now.delivered if now.takes_all else 0
    elif before.stream_created != now.stream_created:
        first, last, count = before.delivered, before.last_seq, before.pending
    else:
        anew = before.consumer_created != now.consumer_created
        given = max(now.deliveries - (0 if anew else before.deliveries), 0)
        count = before.pending - given - now.pending
        if now.last_seq < before.last_seq:  # the server lost the end of the stream
            first, last = max(before.delivered, now.last_seq), before.last_seq
        else:
            first, last = before.delivered, max(now.first_seq - 1, now.delivered if anew else 0)
            count += now.last_seq - max(before.last_seq, before.delivered) if now.takes_all else 0
    count = min(count, last - first)
    return Missed(first + 1, last, count) if count > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMissed:
    """All missed messages of a consumer; the range is that of the last detection, ``seconds`` ago."""

    stream: str
    durable: str
    first_seq: int
    last_seq: int
    count: int
    seconds: float


async def recorded_missed(pool: asyncpg.Pool) -> Sequence[RecordedMissed]:
    """Return the missed messages that no operator has acknowledged."""
    return [RecordedMissed(**row) for row in await fetch(pool, _SQL["missed"])]


# --- Passed: after another server answers, compare what was in the stream by then with the inbox.


@dataclass(slots=True)
class Passed:
    """Progress of the search for messages that one consumer passed.

    Messages are compared as soon as the consumer has settled them.

    Attributes:
        of: the stream and the consumer, by their times of creation.
        server: who answers.
        settled: sequence up to which the consumer had settled all messages at the last look.
        compared: messages up to this sequence are recorded; ``settled`` of the look before, without a doubt.
        until: the last sequence in doubt; 0: none.
    """

    of: tuple[str, str]
    server: str
    settled: int
    compared: int
    until: int = 0

    def look(self, server: str, settled: int, last_seq: int) -> int:
        """Return the sequence up to which messages behind ``compared`` are to be compared."""
        if server != self.server:
            self.server, self.until = server, max(self.until, self.settled, settled, last_seq)
        if self.compared >= self.until:
            self.compared, self.until = self.settled, 0
        self.compared, self.settled = min(self.compared, settled, last_seq), settled
        return min(self.until, settled, last_seq)


# --- The check of all durables of a worker.


@dataclass(slots=True, kw_only=True)
class MissedMessageCheck:
    """Checks each durable; run it once before the first fetch, which moves the consumer, and then often.

    Attributes:
        durables: stream and name of each.
        consuming: the loops that handle messages, by stream and durable; filled later.
    """

    connection: NatsConnection
    pool: asyncpg.Pool
    events: Events
    durables: Sequence[tuple[str, str]]
    consuming: dict[tuple[str, str], InboxConsumer]
    _passed: dict[tuple[str, str], Passed] = field(default_factory=dict)
    _refused: str = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Check all; if the broker is unavailable, wait for the next check."""
        for stream, durable in self.durables:
            try:
                await self._check(stream, durable, stop)
            except BrokerUnavailableError:
                return
            except ContractError as error:
                if str(error) != self._refused:
                    self._refused = str(error)
                    self.events.emit("missed_messages_unknown", text=self._refused)

    async def _check(self, stream: str, durable: str, stop: asyncio.Event) -> None:
        rows = await fetch(self.pool, _SQL["standing"], stream, durable)
        last = Standing(**json.loads(rows[0]["standing"])) if rows else None
        source = await stream_info(self.connection, stream)
        if last and source.last_seq < last.last_seq:  # a new leader may not have read all that it stores
            await sleep_or_stop(stop, seconds=_LEADER_READS_SECONDS)
            source = await stream_info(self.connection, stream)
        info = await consumer_info(self.connection, stream, durable)
        now = Standing.of(source, info)
        if now != last:
            found = find_missed(last, now)
            first_seq, last_seq, count = astuple(found) if found else (None, None, 0)
            before = json.dumps(asdict(last)) if last else None
            row = stream, durable, before, json.dumps(asdict(now)), count, first_seq, last_seq
            replaced = await fetch(self.pool, _SQL["replace"], *row)  # by one of several workers
            if found and replaced:
                self.events.emit("messages_missed", consumer=durable, stream=stream, **asdict(found))
        if not source.replaces:
            await self._handle_passed(source, info, stop)

    async def _handle_passed(self, source: StreamInfo, info: ConsumerInfo, stop: asyncio.Event) -> None:
        """Submit what the consumer passed and the inbox does not have.

        What a consumer passed before this worker's first look may be another inbox's.
        """
        key, of = (info.stream, info.name), (source.created, info.created)
        server = f"{source.leader} {info.leader} {self.connection.client.stats['reconnects']}"
        settled = info.ack_floor if info.ack_pending else info.delivered_seq
        passed = self._passed.get(key)
        if passed is None or passed.of != of:
            self._passed[key] = Passed(of, server, settled, settled)
            return
        last, loop = passed.look(server, settled, source.last_seq), self.consuming.get(key)
        while loop is not None and passed.compared < last and not stop.is_set():
            read = await read_on(self.connection, info, passed.compared, _PAGE)
            page = [message for message in read if message.seq <= last]
            ids = {message.seq: (recorded_as(message), storage_id(message)) for message in page}
            wanted = [one for both in ids.values() for one in both]
            rows = await fetch(self.pool, _SQL["recorded"], wanted)
            known = {row["message_id"] for row in rows}
            for message in page:
                if known.isdisjoint(ids[message.seq]) and not carries_no_event(message):
                    text = (
                        f"message {recorded_as(message)} ({message.stream} {message.seq}) is handled: "
                        f"consumer {info.name} passed it, and the inbox does not have it"
                    )
                    self.events.emit("message_undeliverable", text=text)
                    await loop.submit(message, loop.consumer, stop)
            passed.compared = page[-1].seq if page else last

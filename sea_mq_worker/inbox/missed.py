"""Messages that a consumer passed without a delivery, and messages that left the stream before one.

Once a minute, the progress of each durable is compared with that of the last check:

- *missed*: messages were never delivered, and are gone. They are counted, reported once by one of several
  workers, and kept in ``sea_mq_standings`` until an operator acknowledges them.
- *passed*: the consumer counts messages as acknowledged that the inbox does not have. They are read from the
  stream and handled as ``rescue`` says. A server that lost part of a consumer's state, or a leader that lacks
  it, causes this.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field

import asyncpg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.inbox.consumer import InboxConsumer
from sea_mq_worker.inbox.message import carries_no_event, recorded_as, storage_id
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo, consumer_info, stream_info
from sea_mq_worker.nats.stored import read_on
from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.waiting import sleep_or_stop

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
    consuming: Mapping[tuple[str, str], InboxConsumer]
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

"""Exhausted messages: those that the server gave up because they reached max_deliver.

No count of waiting messages includes them. The server reports each of them once, in an advisory that a stream
keeps. If an advisory is lost, a sweep finds the message: its consumer awaits no acknowledgement, although it
delivered more than was acknowledged. The workers of one service share the work.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence

from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, find_consumer
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.stored import READ_BYTES_MAX, read_back, read_next, size_of
from sea_mq_worker.ports import Events

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

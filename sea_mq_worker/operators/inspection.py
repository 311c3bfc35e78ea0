"""NatsStreamInspection: messages in streams, and the progress of consumers, for operators."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.inbox.message import recorded_as, storage_id
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.info import (
    ConsumerInfo,
    StreamInfo,
    consumer_info,
    durable_consumers,
    find_stream,
    stream_info,
)
from sea_mq_worker.nats.message import InboundMessage, SearchedId, SearchResult
from sea_mq_worker.nats.search import find_messages
from sea_mq_worker.nats.stored import read_back, read_next
from sea_mq_worker.operators.checks import ConsumerStanding
from sea_mq_worker.operators.records import (
    ConsumerDelivery,
    ConsumerState,
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    DeliveryState,
    PublishedRow,
    StoredMessage,
    parse_dead_letter,
)

# --- Reads and prunes the dead-letter stream for operators.

_AT_ONCE_MAX = 64
_BYTES_AT_ONCE_MAX = 8 * 1024 * 1024
"""Cap on the bodies of letters that are read at once, if all are as large as the server allows."""
_ALL = DeadLetterFilter()


class NatsDeadLetters:
    """Reads and prunes one dead-letter stream; see ``ports.operations.DeadLetterStore``.

    Each method raises BrokerUnavailableError if the server does not answer.
    """

    def __init__(self, *, connection: NatsConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream

    async def list(
        self, which: DeadLetterFilter = _ALL, *, limit: int = 100, read_max: int | None = None
    ) -> list[DeadLetterSummary]:
        return [entry.summary() async for entry in self.walk(which, limit=limit, read_max=read_max)]

    async def walk(
        self, which: DeadLetterFilter = _ALL, *, limit: int | None = None, read_max: int | None = None
    ) -> AsyncIterator[DeadLetterEntry]:
        found = read = 0
        async for entry in self._after(await self._start(which)):
            read += 1
            if which.until and entry.stored_at >= which.until:
                return
            if which.matches(entry):
                yield entry
                found += 1
            if found == limit or read == read_max:
                return

    async def show(self, seq: int) -> DeadLetterEntry:
        return parse_dead_letter(await self._get(self._stream, seq))

    async def remove(self, seq: int) -> None:
        await self._get(self._stream, seq)
        await api(self._connection, f"STREAM.MSG.DELETE.{self._stream}", {"seq": seq, "no_erase": True})

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        return await self._get(
            entry.stream, entry.stream_sequence, durable=entry.consumer, deliveries=entry.attempts
        )

    async def _start(self, which: DeadLetterFilter) -> int:
        """Return a sequence below every match by binary search, because times grow with sequences."""
        if which.since is None:
            return which.after_seq
        info = await stream_info(self._connection, self._stream)
        low, high = max(which.after_seq, info.first_seq - 1), info.last_seq
        while low < high:
            middle = (low + high) // 2
            message = await self._next(middle)
            if message is not None and message.stored_at < which.since:
                low = message.seq
            else:
                high = middle
        return low

    async def _after(self, seq: int) -> AsyncIterator[DeadLetterEntry]:
        """Yield the entries after a sequence, skipping gaps of removed messages; read ever more at once."""
        most = min(_AT_ONCE_MAX, max(1, _BYTES_AT_ONCE_MAX // self._connection.client.max_payload))
        at_once = 1
        while message := await self._next(seq):
            yield parse_dead_letter(message)
            seq, at_once = message.seq, min(2 * at_once, most)
            places = range(seq + 1, seq + at_once)
            several = (read_back(self._connection, self._stream, "", place) for place in places)
            for found in await asyncio.gather(*several):
                if found:
                    yield parse_dead_letter(found)
            seq += at_once - 1

    async def _next(self, seq: int) -> InboundMessage | None:
        return await read_back(self._connection, self._stream, "", seq + 1, next_of=">")

    async def _get(self, stream: str, seq: int, *, durable: str = "", deliveries: int = 0) -> InboundMessage:
        found = await read_back(self._connection, stream, durable, seq, deliveries=deliveries)
        if found is None:
            raise ContractError(f"stream {stream} has no message {seq} (any more)")
        return found


_NOT_FOUND = 404
RECONCILE = "python -m sea_mq_worker pipeline reconcile --requeue --reason 'the stream lost them'"
"""Command that lists the lost events and publishes them again."""


class NatsStreamInspection:
    """Reads only; see ``ports.operations.StreamInspection``."""

    def __init__(self, *, connection: NatsConnection) -> None:
        self._connection = connection

    async def locate(self, stream: str, seq: int, message_id: str) -> StoredMessage | None:
        try:
            message = await read_back(self._connection, stream, "", seq)
        except ApiRefusedError as error:
            if error.code != _NOT_FOUND:
                raise
            return None
        if message is None or message_id not in {recorded_as(message), storage_id(message)}:
            return None
        return StoredMessage(stream=stream, seq=seq, subject=message.subject, stored_at=message.stored_at)

    async def deliveries(self, found: StoredMessage, *, consumer: str = "") -> tuple[ConsumerDelivery, ...]:
        if consumer:
            return (_delivery(await consumer_info(self._connection, found.stream, consumer), found),)
        durables = await durable_consumers(self._connection, found.stream)
        return tuple(_delivery(info, found) for info in durables)

    async def search(self, stream: str, wanted: SearchedId, *, timeout_seconds: float) -> SearchResult | None:
        found = await find_messages(self._connection, stream, [wanted], timeout_seconds=timeout_seconds)
        return found.get(wanted.id)

    async def evidence_of_loss(self, stream: str, row: PublishedRow) -> str:
        return await lost_since(self._connection, stream, greatest=row.seq, shared=0, some=[row])

    async def first_stored_at(self, stream: str) -> datetime | None:
        info = await find_stream(self._connection, stream)
        return info.first_time if info else None

    async def consumer_state(self, stream: str, durable: str) -> ConsumerState:
        info = await consumer_info(self._connection, stream, durable)
        return await consumer_state(self._connection, info)


async def consumer_state(connection: NatsConnection, info: ConsumerInfo) -> ConsumerState:
    """Return a consumer's backlog; read its oldest message, if that is permitted."""
    oldest = None
    if info.pending:
        with contextlib.suppress(BrokerUnavailableError, ContractError):
            oldest = await read_next(connection, info, info.delivered_seq + 1)
    return ConsumerState(
        stream=info.stream,
        durable=info.name,
        pending=info.pending,
        ack_pending=info.ack_pending,
        ack_pending_max=info.max_ack_pending,
        redelivered=info.redelivered,
        paused_seconds=info.paused_seconds,
        delivered_seq=info.delivered_seq,
        oldest_seconds=max(0.0, (info.now - oldest.stored_at).total_seconds()) if oldest else None,
        oldest_id=recorded_as(oldest) if oldest else "",
    )


def consumer_standing(source: StreamInfo, info: ConsumerInfo) -> ConsumerStanding:
    """Return a consumer's progress. The stream was requested first: later removals show in the next check."""
    return ConsumerStanding(
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


async def lost_since(
    connection: NatsConnection, stream: str, *, greatest: int, shared: int, some: Sequence[PublishedRow]
) -> str:
    """Return the evidence that events are lost whose rows are PUBLISHED; empty: there is none.

    An event that the stream may have dropped by its limits is not lost. One that somebody removed is. The
    rows must have been read before.

    Args:
        connection: to ask.
        stream: that the rows name.
        greatest: sequence that a row names.
        shared: rows that name the same sequence as another.
        some: rows to look up.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such stream, or asking is not permitted.
    """
    info = await stream_info(connection, stream)
    if greatest > info.last_seq:
        ends = f"the stream, made at {info.created}, ends at {info.last_seq}"
        return f"a row names sequence {greatest}, and {ends}"
    if shared:
        return f"{shared} rows name a sequence that a later row names, too"
    for row in some:
        message = await read_back(connection, stream, "", row.seq)
        if message is None and not info.may_have_dropped(row.published_at):
            return (
                f"somebody removed message {row.seq}, event {row.id}, from the stream, which begins at "
                f"{info.first_seq}: no limit of the stream does that"
            )
        if message is not None and message.headers.get(MSG_ID) != row.id:
            return f"the stream has another message at {row.seq}, the sequence of event {row.id}"
    return ""


def _delivery(info: ConsumerInfo, found: StoredMessage) -> ConsumerDelivery:
    seq = found.seq
    if not info.wants(found.subject):
        reading = DeliveryState.NOT_FOR_IT
    elif seq > info.delivered_seq and info.pending:
        reading = DeliveryState.TO_COME
    elif seq <= info.ack_floor or not info.ack_pending:
        reading = DeliveryState.DONE
    else:
        reading = DeliveryState.DELIVERED
    before = min(seq - info.delivered_seq, info.pending) - 1 if reading is DeliveryState.TO_COME else 0
    return ConsumerDelivery(consumer=info.name, reading=reading, before=before)

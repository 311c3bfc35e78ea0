"""Reads and prunes the dead-letter stream for operators."""

import asyncio
from collections.abc import AsyncIterator

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.server_info import stream_info
from sea_mq_worker.domain.dead_letter_records import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    parse_dead_letter,
)
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.messages import InboundMessage

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

"""Dead letters as their stream has them: list, show and count them, without a look at the tables."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby, islice

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.inbox.message import (
    HandlerRequest,
    parse_message,
)
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.info import stream_info
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.stored import read_back
from sea_mq_worker.operators.records import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    Group,
    mask_ids,
    parse_dead_letter,
)
from sea_mq_worker.operators.streams import open_broker
from sea_mq_worker.settings import Settings

_AT_ONCE_MAX = 64
_BYTES_AT_ONCE_MAX = 8 * 1024 * 1024
"""Cap on the bodies of letters that are read at once, if all are as large as the server allows."""
_ALL = DeadLetterFilter()


class DeadLetters:
    """A dead-letter stream.

    Each method raises BrokerUnavailableError if the server does not answer, and ContractError if the stream
    or the message is missing, or the request is not permitted.
    """

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream

    async def list(
        self, which: DeadLetterFilter = _ALL, *, limit: int = 100, read_max: int | None = None
    ) -> Sequence[DeadLetterSummary]:
        """List dead letters without their content, oldest first; read at most ``read_max`` of them."""
        return [entry.summary() async for entry in self.walk(which, limit=limit, read_max=read_max)]

    async def walk(
        self, which: DeadLetterFilter = _ALL, *, limit: int | None = None, read_max: int | None = None
    ) -> AsyncIterator[DeadLetterEntry]:
        """Yield dead letters one by one, like ``list``."""
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
        """Return one dead letter."""
        return parse_dead_letter(await self._get(self._stream, seq))

    async def remove(self, seq: int) -> None:
        """Delete one dead letter for good."""
        await self._get(self._stream, seq)
        await api(self._connection, f"STREAM.MSG.DELETE.{self._stream}", {"seq": seq, "no_erase": True})

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        """Read the message that was dead-lettered from its own stream."""
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


@asynccontextmanager
async def open_dead_letters(settings: Settings) -> AsyncIterator[DeadLetters]:
    """Connect to the dead-letter stream.

    Raises:
        ContractError: the stream does not exist; the text names the command that creates it.
    """
    async with open_broker(settings) as connection:
        await stream_info(connection, settings.dlq_stream)
        yield DeadLetters(connection, settings.dlq_stream)


def can_be_handled(entry: DeadLetterEntry) -> bool:
    """Return whether a redrive would call the handler, as far as the dead letter shows.

    Its content decides and not its reason: a newer worker understands more messages.
    """
    if entry.body_omitted:
        return entry.reason in {Reason.REJECTED, Reason.EXHAUSTED}
    request = parse_message(entry.restored())
    return isinstance(request, HandlerRequest) and request.message_id == entry.message_id


async def dead_letter_groups(
    letters: DeadLetters, which: DeadLetterFilter, *, read_max: int, groups_max: int
) -> tuple[int, Sequence[Group]]:
    """Count dead letters by reason, subject, consumer and detail, most frequent first.

    Returns the number of dead letters read, and the groups. Numbers in details do not matter.
    """
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], DeadLetterEntry] = {}
    read = 0
    async for entry in letters.walk(which, limit=read_max):
        read += 1
        for name in (
            ("reason", entry.reason),
            ("subject", entry.original_subject),
            ("consumer", entry.consumer),
            ("detail", mask_ids(entry.detail)),
        ):
            counts[name] += 1
            first.setdefault(name, entry)
    groups = [
        Group(kind=kind, name=name, count=count, oldest_at=first[kind, name].stored_at)
        for (kind, name), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    ]
    by_kind = groupby(groups, key=lambda group: group.kind)
    return read, [group for _, same in by_kind for group in islice(same, groups_max)]

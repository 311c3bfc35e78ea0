"""Dead letters as their stream has them: list, show and count them, without a look at the tables."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import groupby, islice

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.dead_letter import Reason, original_headers
from sea_mq_worker.inbox.message import HandlerRequest, parse_message
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.info import read_back, stream_info
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.subjects import event_type_of
from sea_mq_worker.operators.records import Group, mask_ids
from sea_mq_worker.operators.streams import open_broker
from sea_mq_worker.settings import Settings

_DIGITS_MAX = 18
"""Digits of a number that fits 64 bits; Python parses no number of thousands of digits."""
_AT_ONCE_MAX = 64
_BYTES_AT_ONCE_MAX = 8 * 1024 * 1024
"""Cap on the bodies of letters that are read at once, if all are as large as the server allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSummary:
    """EVT-047-002 as it is stored, without the original's content.

    Attributes:
        seq: sequence in the dead-letter stream.
        stored_at: when the dead-letter stream stored it.
        stream_sequence: current or former sequence of the original in ``stream``.
        body_bytes: size of the original's body.
        body_omitted: whether the original was too large to be dead-lettered whole.
        headers_omitted: number of the original's headers that could not be dead-lettered.
    """

    seq: int
    stored_at: datetime
    message_id: str
    original_subject: str
    reason: str
    attempts: int
    detail: str
    stream: str
    stream_sequence: int
    consumer: str
    body_bytes: int
    body_omitted: bool
    headers_omitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterEntry(DeadLetterSummary):
    """A dead letter with the original's headers and body, which is empty where ``body_omitted``."""

    headers: Mapping[str, str]
    payload: bytes = field(repr=False)

    def summary(self) -> DeadLetterSummary:
        return DeadLetterSummary(**{one.name: getattr(self, one.name) for one in fields(DeadLetterSummary)})

    def restored(self) -> InboundMessage:
        """Return the original as far as the dead letter contains it."""
        return InboundMessage(
            stream=self.stream,
            seq=self.stream_sequence,
            consumer=self.consumer,
            subject=self.original_subject,
            payload=self.payload,
            headers=self.headers,
            stored_at=self.stored_at,
            deliveries=self.attempts,
            reply="",
        )


def parse_dead_letter(message: InboundMessage) -> DeadLetterEntry:
    """Read a message of the dead-letter stream; one of another origin has empty fields."""

    def said(name: str) -> str:
        return message.headers.get(f"Dlq-{name}", "")

    def number(name: str) -> int:
        text = said(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0

    return DeadLetterEntry(
        seq=message.seq,
        stored_at=message.stored_at,
        message_id=said("Message-Id"),
        original_subject=said("Original-Subject"),
        reason=said("Reason"),
        attempts=number("Attempts"),
        detail=said("Detail"),
        stream=said("Stream"),
        stream_sequence=number("Stream-Sequence"),
        consumer=said("Consumer"),
        headers=original_headers(message.headers),
        payload=message.payload,
        body_bytes=number("Body-Omitted") or len(message.payload),
        body_omitted=bool(said("Body-Omitted")),
        headers_omitted=number("Headers-Omitted"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Filter of dead letters by their time and by their original; None means any.

    ``error`` is part of the detail, in any case; ``after_seq`` the last sequence of the page before.
    """

    reason: str | None = None
    subject: str | None = None
    event_type: str | None = None
    consumer: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    after_seq: int = 0

    def matches(self, entry: DeadLetterSummary) -> bool:
        """Return whether a dead letter matches, apart from its times and ``after_seq``."""
        exact = (
            (self.reason, entry.reason),
            (self.subject, entry.original_subject),
            (self.event_type, event_type_of(entry.original_subject)),
            (self.consumer, entry.consumer),
        )
        is_exact = all(wanted in {None, found} for wanted, found in exact)
        return is_exact and (self.error or "").lower() in entry.detail.lower()


_ALL = DeadLetterFilter()


@dataclass
class DeadLetters:
    """A dead-letter stream.

    Each method raises BrokerUnavailableError if the server does not answer, and ContractError if the stream
    or the message is missing, or the request is not permitted.
    """

    connection: NatsConnection
    stream: str

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
        return parse_dead_letter(await self._get(self.stream, seq))

    async def remove(self, seq: int) -> None:
        """Delete one dead letter for good."""
        await self._get(self.stream, seq)
        await api(self.connection, f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq, "no_erase": True})

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        """Read the message that was dead-lettered from its own stream."""
        place = entry.stream, entry.stream_sequence
        return await self._get(*place, durable=entry.consumer, deliveries=entry.attempts)

    async def _start(self, which: DeadLetterFilter) -> int:
        """Return a sequence below every match by binary search, because times grow with sequences."""
        if which.since is None:
            return which.after_seq
        info = await stream_info(self.connection, self.stream)
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
        most = min(_AT_ONCE_MAX, max(1, _BYTES_AT_ONCE_MAX // self.connection.client.max_payload))
        at_once = 1
        while message := await self._next(seq):
            yield parse_dead_letter(message)
            seq, at_once = message.seq, min(2 * at_once, most)
            places = range(seq + 1, seq + at_once)
            several = (read_back(self.connection, self.stream, "", place) for place in places)
            for found in await asyncio.gather(*several):
                if found:
                    yield parse_dead_letter(found)
            seq += at_once - 1

    async def _next(self, seq: int) -> InboundMessage | None:
        return await read_back(self.connection, self.stream, "", seq + 1, next_of=">")

    async def _get(self, stream: str, seq: int, *, durable: str = "", deliveries: int = 0) -> InboundMessage:
        found = await read_back(self.connection, stream, durable, seq, deliveries=deliveries)
        if found is None:
            raise ContractError(f"stream {stream} has no message {seq} (any more)")
        return found


@asynccontextmanager
async def open_dead_letters(settings: Settings) -> AsyncIterator[DeadLetters]:
    """Connect to the dead-letter stream; the error about a missing one names the command that creates it."""
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
    first: dict[tuple[str, str], datetime] = {}
    read = 0
    async for entry in letters.walk(which, limit=read_max):
        read += 1
        for group in (
            ("reason", entry.reason),
            ("subject", entry.original_subject),
            ("consumer", entry.consumer),
            ("detail", mask_ids(entry.detail)),
        ):
            counts[group] += 1
            first.setdefault(group, entry.stored_at)
    groups = [
        Group(kind=kind, name=name, count=count, oldest_at=first[kind, name])
        for (kind, name), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    ]
    by_kind = groupby(groups, key=lambda group: group.kind)
    return read, [group for _, same in by_kind for group in islice(same, groups_max)]

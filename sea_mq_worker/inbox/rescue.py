"""Orphans: messages that are recorded in the inbox without an outcome, and that no delivery will bring.

A message becomes an orphan when the server stopped delivering it and the advisory was lost, when the durable
was deleted and created again with another start, or when another client acknowledged it without handling
it. Its inbox row still names its place in the stream.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sea_mq_worker.errors import ContractError, RowsRefusedError
from sea_mq_worker.inbox.health import HandlerHealth
from sea_mq_worker.inbox.leases import InboxLeases
from sea_mq_worker.inbox.message import (
    FailedHandling,
    GivenBack,
    InboxMessage,
    Leased,
    content_hash,
    recorded_as,
    storage_id,
)
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.subjects import event_type_of
from sea_mq_worker.ports import JetStreamConsumer, Observer, Settler
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.waiting import IMMEDIATE_REDELIVERY_SECONDS
from sea_mq_worker.telemetry.events import Noticed

# --- Messages that wait for their next delivery, and the time when each is due again.

_HELD_MAX = 10_000
"""Cap on remembered messages, which bounds their memory."""


class _Held(NamedTuple):
    message: InboundMessage
    settler: Settler | None
    event_type: str
    due_at: float
    not_before: float


@dataclass(slots=True)
class ReturnedMessages:
    """Messages of one consumer by stream sequence; in memory only, because the server keeps the messages.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    _held: dict[int, _Held] = field(default_factory=dict)
    _added: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: InboundMessage, outcome: GivenBack, settler: Settler | None = None) -> None:
        """Remember when a message is due again; ``settler`` acknowledged it, where the consumer did not."""
        now = self.clock()
        if len(self._held) >= _HELD_MAX:
            self._held = {seq: held for seq, held in self._held.items() if held.due_at > now}
        due_at, not_before = now + outcome.delay_seconds, now + outcome.least_seconds
        if len(self._held) < _HELD_MAX and due_at > now:
            self._held[message.seq] = _Held(
                _position(message), settler, outcome.event_type, due_at, not_before
            )
            self._added.set()

    def early_seconds(self, message: InboundMessage) -> float:
        """Return the seconds that a message received again must still wait.

        A delivered message waits as long as the handler requested; one read ahead waits its whole delay.
        """
        held = self._held.get(message.seq)
        if held is None:
            return 0.0
        early = (held.not_before if message.reply else held.due_at) - self.clock()
        if early <= 0:
            del self._held[message.seq]
        elif message.reply:  # from now on it fills a slot under this reply subject
            self._held[message.seq] = held._replace(message=_position(message), due_at=held.not_before)
            self._added.set()
        return max(0.0, early)

    async def wait_for_held(self) -> int:
        """Wait until messages that are not due yet fill slots of max_ack_pending; return their number."""
        while not (count := self._count_held()):
            self._added.clear()
            await self._added.wait()
        return count

    def _count_held(self) -> int:
        now = self.clock()
        return sum(held.due_at > now and _fills_slot(held) for held in self._held.values())

    def take(self, event_type: str) -> Iterator[tuple[InboundMessage, Settler | None, float]]:
        """Forget the messages of a type; yield each with its settler and the delay of its redelivery."""
        now = self.clock()
        for seq, held in list(self._held.items()):
            if held.event_type != event_type or (not held.message.reply and held.not_before > now):
                continue
            del self._held[seq]
            if held.message.reply and held.due_at > now:
                yield held.message, held.settler, max(IMMEDIATE_REDELIVERY_SECONDS, held.not_before - now)


def _position(message: InboundMessage) -> InboundMessage:
    """Return the message without its body and headers: thousands of bodies would fill memory."""
    return message._replace(payload=b"", headers={})


def _fills_slot(held: _Held) -> bool:
    return held.settler is None and bool(held.message.reply)


# --- Reading ahead: messages behind those that fill a consumer's max_ack_pending, read from the stream
# itself.
#
# A message that waits for a retry counts against max_ack_pending until it is settled. While such messages
# fill it, the consumer delivers nothing, and healthy messages behind them would wait. The worker reads and
# handles those here; the consumer delivers them later, and the inbox recognises them then. No guarantee
# depends on reading ahead, so the cursor is in memory only.

LOOK_SECONDS = 0.5
"""Interval between two checks for messages to read ahead."""
_ROOM_SECONDS = 5.0
"""The same while the consumer has room, and no more messages wait for a retry than at the last check."""
_TURN_SECONDS = 0.05
"""Interval at which postponed messages may get their turn."""
_POSTPONED_MAX = 1000
_POSTPONED_BYTES_MAX = 1024 * 1024
_PAGE = 50
_PAGES_MAX = 20


@dataclass(slots=True, kw_only=True)
class ReadAhead:
    """Reads ahead for one consumer, as fast as its messages are handled.

    Messages of a slow event type wait here for their turn, and others are read past them. The reader returns
    to messages that found no room to wait.

    Attributes:
        clock: monotonic seconds.
    """

    consumer: JetStreamConsumer
    health: HandlerHealth
    observer: Observer
    broker_breaker: CircuitBreaker
    clock: Callable[[], float]
    cursor: int = 0
    """Sequence of the last message that was read."""
    _read_in_vain_at: float = float("-inf")
    _waiting_with_room: int = 0
    """Messages that waited for a retry when the consumer had room; 0: it had none at the last check."""
    _postponed: dict[str, deque[InboundMessage]] = field(default_factory=lambda: defaultdict(deque))
    _postponed_bytes: int = 0
    _first_skipped: int = 0
    """Sequence of the first message that found no room among the postponed."""
    _forbidden: bool = False
    _postponed_first: bool = True

    @property
    def pause_seconds(self) -> float:
        """Wait after a call that returned no message."""
        return _TURN_SECONDS if self._postponed else LOOK_SECONDS

    async def next(self, limit: int, waiting: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Return up to ``limit`` messages to handle now; none while the consumer has room itself.

        ``waiting``: number of messages that fill max_ack_pending until their retry.

        Raises:
            StoppedError: the worker stopped while the broker was away.
        """
        self._postponed_first = not self._postponed_first  # both take turns at the slots
        found = self._take_postponed(limit) if self._postponed_first else []
        found += await self._read_more(limit - len(found), waiting, stop)
        return found + self._take_postponed(limit - len(found))

    def _take_postponed(self, limit: int) -> list[InboundMessage]:
        found: list[InboundMessage] = []
        for event_type, messages in list(self._postponed.items()):
            takes = self.health.calls_soon(event_type, limit - len(found))
            taken = [messages.popleft() for _ in range(min(len(messages), takes))]
            self._postponed_bytes -= sum(one.size for one in taken)
            found += taken
            if not messages:
                del self._postponed[event_type]
        return found

    async def _read_more(self, limit: int, waiting: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Read at most 20 pages, until there is a message to handle; postpone messages of slow types."""
        found: list[InboundMessage] = []
        interval = _ROOM_SECONDS if waiting <= self._waiting_with_room else LOOK_SECONDS
        pages = _PAGES_MAX if limit else 0
        while pages and not found and self.clock() >= self._read_in_vain_at + interval:
            page = await self._read(self.cursor, _PAGE, stop)
            self._waiting_with_room = waiting if page is None else 0
            found = self._sort(page or (), limit)
            pages -= 1
        return found

    def _sort(self, messages: Sequence[InboundMessage], limit: int) -> list[InboundMessage]:
        """Return the messages to handle; keep no others of a page while the next one is read."""
        if not messages:
            self._return_to_skipped()
        found: list[InboundMessage] = []
        for message in messages:
            if len(found) == limit:
                break
            self.cursor = message.seq
            event_type = event_type_of(message.subject)
            if self.health.is_slow(event_type):
                self._postpone(message, event_type)
            else:
                found.append(message)
        return found

    def _return_to_skipped(self) -> None:
        """At the end, wait for more messages, or return to those that found no room."""
        self._read_in_vain_at = self.clock()
        if self._first_skipped and not self._postponed:
            self.cursor, self._first_skipped = self._first_skipped - 1, 0

    def _postpone(self, message: InboundMessage, event_type: str) -> None:
        if not self._first_skipped and self._has_room(message):
            self._postponed[event_type].append(message)
            self._postponed_bytes += message.size
        elif not self._first_skipped:
            self._first_skipped = message.seq

    def _has_room(self, message: InboundMessage) -> bool:
        fits = self._postponed_bytes + message.size <= _POSTPONED_BYTES_MAX
        return not self._postponed or (fits and sum(map(len, self._postponed.values())) < _POSTPONED_MAX)

    async def _read(self, after_seq: int, limit: int, stop: asyncio.Event) -> Sequence[InboundMessage] | None:
        if self._forbidden:
            return ()
        return await call_when_available(
            lambda: self._ahead(after_seq, limit), breaker=self.broker_breaker, stop=stop
        )

    async def _ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        try:
            return await self.consumer.ahead(after_seq, limit)
        except ContractError as error:  # a worker without the right to read the stream still consumes it
            self._forbidden = True
            self.observer.observe(Noticed(event="read_ahead_failed", text=str(error)))
            return ()


@dataclass(slots=True, kw_only=True)
class OrphanFinder:
    """Finds the orphans of one consumer, a page of rows at a time.

    Attributes:
        older_than_seconds: least age of a checked row; a few times what a redelivery takes.
        every_seconds: interval between two pages.
    """

    consumer: JetStreamConsumer
    leases: InboxLeases
    observer: Observer
    broker_breaker: CircuitBreaker
    older_than_seconds: float
    every_seconds: float
    _after: str = ""
    _lost: set[str] = field(default_factory=set)
    """Messages reported as lost that were seen in this scan or the last one."""
    _seen: set[str] = field(default_factory=set)

    async def find(self, stop: asyncio.Event) -> list[InboundMessage]:
        """Check one page of rows; return the messages to handle again, and report those that are lost.

        Raises:
            StoppedError: the worker stopped while the database or the broker was away.
        """
        entries = await call_when_available(self._page, breaker=self.leases.store_breaker, stop=stop)
        if not entries:
            self._after, self._lost, self._seen = "", self._lost & self._seen, set()
            return []
        self._after = entries[-1].message_id
        seqs = [entry.stream_seq for entry in entries]
        stored = await call_when_available(
            lambda: self._find_undeliverable(seqs), breaker=self.broker_breaker, stop=stop
        )
        found = []
        for entry in entries:
            message = stored.get(entry.stream_seq)
            if message is not None and _is_recorded(message, entry):
                found.append(message)
                self._notice(
                    "message_undeliverable",
                    f"{_describe(entry)} is handled again: no delivery would bring it",
                )
            elif entry.stream_seq in stored:
                await self._report_lost(entry, stop)
        return found

    async def _find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        try:
            return await self.consumer.find_undeliverable(seqs)
        except ContractError as error:  # a worker without the right to read the stream still consumes it
            self._notice("undeliverable_not_readable", str(error))
            return {}

    async def _page(self) -> Sequence[InboxMessage]:
        return await self.leases.inbox.overdue(
            stream=self.consumer.stream,
            consumer=self.consumer.name,
            older_than_seconds=self.older_than_seconds,
            lease_seconds=self.leases.lease_seconds,
            after=self._after,
            limit=_PAGE,
        )

    async def _report_lost(self, entry: InboxMessage, stop: asyncio.Event) -> None:
        """Report a lost message once; its row stays open, because a producer may publish it again."""
        self._seen.add(entry.message_id)
        if entry.message_id in self._lost:
            return
        text = (
            f"{_describe(entry)} had no effect and its stream no longer holds it: publish it again, "
            f"or end it with `python -m sea_mq_worker inbox close {entry.message_id} --reason lost`"
        )
        with contextlib.suppress(RowsRefusedError):  # the log line reports it anyway
            await call_when_available(
                lambda: self._record_lost(entry, text), breaker=self.leases.store_breaker, stop=stop
            )
        self._lost.add(entry.message_id)
        self._notice("message_lost", text)

    async def _record_lost(self, entry: InboxMessage, text: str) -> None:
        inbox = self.leases.inbox
        [receipt] = await inbox.insert_batch([entry], lease_seconds=self.leases.lease_seconds)
        if isinstance(receipt, Leased):
            await inbox.record_error_batch([FailedHandling(lease=receipt.lease, error=text, counted=False)])

    def _notice(self, event: str, text: str) -> None:
        self.observer.observe(Noticed(event=event, text=text))


def _is_recorded(message: InboundMessage, entry: InboxMessage) -> bool:
    """Return whether a stored message is the recorded one, not another of a stream created again."""
    known_as = {recorded_as(message), storage_id(message)}
    return entry.message_id in known_as and entry.content_hash == content_hash(message)


def _describe(entry: InboxMessage) -> str:
    return f"message {entry.message_id} ({entry.stream} {entry.stream_seq})"

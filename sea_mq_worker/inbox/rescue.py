"""Rescue of messages that the consumer will not deliver in time, or never again.

The idea is one for all of them: read the message from the stream itself, give it one of the extra slots,
and handle it as a delivered one; the inbox recognises it, should the consumer deliver it after all. It is
taken up when it is

- *exhausted*: the server stopped delivering it because it reached max_deliver (``undelivered.py``).
- *passed*: the server takes it for acknowledged, and the inbox does not have it (``undelivered.py``).
- *orphaned*: the inbox has it without an outcome and no delivery will bring it: its advisory was lost,
  the durable was created again with another start, or another client acknowledged it without handling it.
  Its inbox row still names its place in the stream (``OrphanFinder``).
- *behind others*: messages that wait for a retry fill the consumer's max_ack_pending, so that it
  delivers nothing (``ReturnedMessages`` knows those that wait, ``ReadAhead`` reads past them).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sea_mq_worker.errors import ContractError, RowsRefusedError, command
from sea_mq_worker.inbox.health import HandlerHealth
from sea_mq_worker.inbox.leases import InboxLeases
from sea_mq_worker.inbox.message import (
    GivenBack,
    InboxMessage,
    Lease,
    content_hash,
    recorded_as,
    storage_id,
)
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.nats.subjects import event_type_of
from sea_mq_worker.ports import Events, InboxRepository, JetStreamConsumer, Settler
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, call_when_available
from sea_mq_worker.runtime.waiting import IMMEDIATE_REDELIVERY_SECONDS

# --- Messages that wait for their next delivery, and the time when each is due again.

_HELD_MAX = 10_000
"""Cap on remembered messages, which bounds their memory."""


class _Held(NamedTuple):
    message: InboundMessage
    """Without its body and headers: thousands of bodies would fill memory."""
    settler: Settler
    event_type: str
    due_at: float
    not_before: float


@dataclass(slots=True)
class ReturnedMessages:
    """Messages of one consumer by stream sequence; in memory only, because the server keeps the messages.

    Attributes:
        clock: monotonic seconds.
    """

    consumer: Settler
    clock: Callable[[], float]
    _held: dict[int, _Held] = field(default_factory=dict)
    _added: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: InboundMessage, outcome: GivenBack, settler: Settler) -> None:
        """Remember when a message is due again; ``settler`` requested its redelivery."""
        now = self.clock()
        if len(self._held) >= _HELD_MAX:
            self._held = {seq: held for seq, held in self._held.items() if held.due_at > now}
        due_at, not_before = now + outcome.delay_seconds, now + outcome.least_seconds
        if len(self._held) < _HELD_MAX and due_at > now:
            position = message._replace(payload=b"", headers={})
            self._held[message.seq] = _Held(position, settler, outcome.event_type, due_at, not_before)
            self._added.set()

    def take_back(self, message: InboundMessage) -> float:
        """Forget a message that was received again; if it must still wait, keep it and return the seconds.

        A delivered message waits as long as the handler requested; one read ahead waits its whole delay.
        """
        held = self._held.get(message.seq)
        if held is None:
            return 0.0
        wait = (held.not_before if message.was_delivered else held.due_at) - self.clock()
        if wait <= 0:
            del self._held[message.seq]
        elif message.was_delivered:  # from now on it fills a slot under this reply subject
            position = message._replace(payload=b"", headers={})
            self._held[message.seq] = held._replace(message=position, due_at=held.not_before)
            self._added.set()
        return max(0.0, wait)

    async def wait_for_held(self) -> int:
        """Wait until messages that are not due yet fill slots of max_ack_pending; return their number."""
        while True:
            now = self.clock()
            delivered = (held for held in self._held.values() if held.message.was_delivered)
            if count := sum(held.due_at > now and held.settler is self.consumer for held in delivered):
                return count
            self._added.clear()
            await self._added.wait()

    def take(self, event_type: str) -> Iterator[tuple[InboundMessage, Settler, float]]:
        """Forget the messages of a type; yield each with its settler and the delay of its redelivery."""
        now = self.clock()
        for seq, held in list(self._held.items()):
            if held.event_type != event_type or (not held.message.was_delivered and held.not_before > now):
                continue
            del self._held[seq]
            if held.message.was_delivered and held.due_at > now:
                yield held.message, held.settler, max(IMMEDIATE_REDELIVERY_SECONDS, held.not_before - now)


# --- Reading ahead.
#
# No guarantee depends on it, so the state is in memory only. An example, of a page whose types B and C are
# slow::
#
#     stream      1  2  3  4 | A5  B6  A7  C8  A9 | ...
#     delivered, waiting ----+  |   |   |   |   |
#     handled at once           5       7       9    <- cursor
#     postponed                     6                   until the throttle of B gives it a turn
#     skipped: no room                      8           the cursor returns to it, after the end of the
#                                                       stream and the last postponed message

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

    Attributes:
        clock: monotonic seconds.
        cursor: sequence of the last message that was read.
    """

    consumer: JetStreamConsumer
    health: HandlerHealth
    events: Events
    broker_breaker: CircuitBreaker
    clock: Callable[[], float]
    cursor: int = 0
    _postponed: dict[str, deque[InboundMessage]] = field(default_factory=dict)
    """Messages of slow event types that were read and wait for their turn."""
    _postponed_bytes: int = 0
    _postponed_first: bool = True
    _skipped_seq: int = 0
    """Sequence of the first message that found no room among the postponed; 0: none."""
    _read_in_vain_at: float = float("-inf")
    _waiting_with_room: int = 0
    """Messages that waited for a retry when the consumer had room; 0: it had none at the last check."""

    @property
    def pause_seconds(self) -> float:
        """Wait after a call that returned no message."""
        return _TURN_SECONDS if self._postponed else LOOK_SECONDS

    def has_read(self, message: InboundMessage) -> bool:
        """Return whether a message may have been read ahead: its place is not behind the cursor."""
        return message.seq <= self.cursor

    async def next(self, limit: int, waiting: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Return up to ``limit`` messages to handle now; none while the consumer has room itself.

        ``waiting``: number of messages that fill max_ack_pending until their retry.
        """
        self._postponed_first = not self._postponed_first  # both take turns at the slots
        found = self._take_postponed(limit) if self._postponed_first else []
        found += await self._read(limit - len(found), waiting, stop)
        return found + self._take_postponed(limit - len(found))

    async def _read(self, limit: int, waiting: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Read at most 20 pages, until there is a message to handle; postpone messages of slow types."""
        found: list[InboundMessage] = []
        interval = _ROOM_SECONDS if waiting <= self._waiting_with_room else LOOK_SECONDS
        for _ in range(_PAGES_MAX if limit else 0):
            if found or self.clock() < self._read_in_vain_at + interval:
                break
            page = await call_when_available(self._page, breaker=self.broker_breaker, stop=stop)
            self._waiting_with_room = waiting if page is None else 0
            if not page:
                self._read_in_vain_at = max(self._read_in_vain_at, self.clock())
                if self._skipped_seq and not self._postponed:
                    self.cursor, self._skipped_seq = self._skipped_seq - 1, 0
            for message in page or ():
                if len(found) == limit:
                    break
                self.cursor = message.seq
                event_type = event_type_of(message.subject)
                if not self.health.is_slow(event_type):
                    found.append(message)
                elif not self._skipped_seq and not self._postpone(message, event_type):
                    self._skipped_seq = message.seq
        return found

    def _postpone(self, message: InboundMessage, event_type: str) -> bool:
        """Keep a message; return False where there is no room. One message fits, however large."""
        count, size = sum(map(len, self._postponed.values())), self._postponed_bytes + message.size
        if count and (count >= _POSTPONED_MAX or size > _POSTPONED_BYTES_MAX):
            return False
        self._postponed.setdefault(event_type, deque()).append(message)
        self._postponed_bytes = size
        return True

    def _take_postponed(self, limit: int) -> list[InboundMessage]:
        """Return the messages whose turn has come, at most ``limit``."""
        found: list[InboundMessage] = []
        for event_type, messages in list(self._postponed.items()):
            takes = min(len(messages), self.health.calls_soon(event_type, limit - len(found)))
            found += [messages.popleft() for _ in range(takes)]
            if not messages:
                del self._postponed[event_type]
        self._postponed_bytes -= sum(message.size for message in found)
        return found

    async def _page(self) -> Sequence[InboundMessage] | None:
        try:
            return await self.consumer.ahead(self.cursor, _PAGE)
        except ContractError as error:  # a worker without the right to read the stream still consumes it
            self._read_in_vain_at = float("inf")
            self.events.emit("read_ahead_failed", text=str(error))
            return ()


# --- Orphans.


@dataclass(slots=True, kw_only=True)
class OrphanFinder:
    """Finds the orphans of one consumer, a page of rows at a time.

    Attributes:
        older_than_seconds: least age of a checked row; a few times what a redelivery takes.
    """

    consumer: JetStreamConsumer
    leases: InboxLeases
    events: Events
    broker_breaker: CircuitBreaker
    older_than_seconds: float
    _after: str = ""
    _lost: set[str] = field(default_factory=set)
    """Messages reported as lost that were seen in this scan or the last one."""
    _seen: set[str] = field(default_factory=set)

    async def find(self, stop: asyncio.Event) -> list[InboundMessage]:
        """Check one page of rows; return the messages to handle again, and report those that are lost."""
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
            if entry.stream_seq not in stored:
                continue
            message, name = stored[entry.stream_seq], f"message {entry.message_id}"
            name += f" ({entry.stream} {entry.stream_seq})"
            if message is not None and _is_recorded(message, entry):
                found.append(message)
                text = f"{name} is handled again: no delivery would bring it"
                self.events.emit("message_undeliverable", text=text)
            else:
                await self._report_lost(entry, name, stop)
        return found

    async def _find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        try:
            return await self.consumer.find_undeliverable(seqs)
        except ContractError as error:  # a worker without the right to read the stream still consumes it
            self.events.emit("undeliverable_not_readable", text=str(error))
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

    async def _report_lost(self, entry: InboxMessage, name: str, stop: asyncio.Event) -> None:
        """Report a lost message once; its row stays open, because a producer may publish it again."""
        self._seen.add(entry.message_id)
        if entry.message_id in self._lost:
            return
        text = (
            f"{name} had no effect and its stream no longer holds it: publish it again, "
            f"or end it with {command('inbox', 'close', entry.message_id, '--reason', 'lost')}"
        )
        with contextlib.suppress(RowsRefusedError):  # the log line reports it anyway
            await call_when_available(
                lambda: self._record_lost(entry, text), breaker=self.leases.store_breaker, stop=stop
            )
        self._lost.add(entry.message_id)
        self.events.emit("message_lost", text=text)

    async def _record_lost(self, entry: InboxMessage, text: str) -> None:
        inbox = self.leases.inbox
        [receipt] = await inbox.insert_batch([entry], lease_seconds=self.leases.lease_seconds)
        if isinstance(receipt, Lease):
            await inbox.record_error_batch([(receipt, GivenBack(text))])


def _is_recorded(message: InboundMessage, entry: InboxMessage) -> bool:
    """Return whether a stored message is the recorded one, not another of a stream created again."""
    known_as = {recorded_as(message), storage_id(message)}
    return entry.message_id in known_as and entry.content_hash == content_hash(message)


# --- Messages of a worker that has ended.


async def take_over_deliveries(
    session: str,
    *,
    inbox: InboxRepository,
    consumers: Mapping[tuple[str, str], JetStreamConsumer],
    backoff: Backoff,
) -> int:
    """End the leases of an ended session, then request redelivery; return the number of leases.

    A message that was fetched and not recorded yet is in no row: the server delivers it again after ack_wait,
    as it does with deliveries of consumers that this worker does not have. ``backoff`` delays a message that
    has ended more than one worker, or failed before. It separates a message that kills its worker from those
    that were in flight with it.
    """
    abandoned = await inbox.take_over(session)
    for one in abandoned:
        consumer = consumers.get((one.stream, one.consumer))
        if consumer is not None and one.reply:
            again = one.attempts > 1
            delay = backoff.delay_seconds(one.attempts) if again else IMMEDIATE_REDELIVERY_SECONDS
            await consumer.give_back(one.reply, delay_seconds=delay)
    return len(abandoned)

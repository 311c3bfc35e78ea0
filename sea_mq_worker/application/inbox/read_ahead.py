"""Reading ahead: messages behind those that fill a consumer's max_ack_pending, read from the stream itself.

A message that waits for a retry counts against max_ack_pending until it is settled. While such messages fill
it, the consumer delivers nothing, and healthy messages behind them would wait. The worker reads and handles
those here; the consumer delivers them later, and the inbox recognises them then. No guarantee depends on
reading ahead, so the cursor is in memory only.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.subjects import event_type_of
from sea_mq_worker.ports.jetstream import JetStreamConsumer
from sea_mq_worker.ports.observer import Observer

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

"""What waits behind messages that hold every place of a consumer, read from the stream itself.

A message that was given back counts against max_ack_pending until it is settled. While such messages hold
all places, the consumer delivers nothing, and the messages behind them would wait for nothing. They are read
and handled here; the consumer delivers them later, and the inbox knows them then. So nothing rests on what
is read here: the cursor is memory alone.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.retry_unavailable import call_when_available
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.subjects import event_type_of
from sea_mq_worker.ports.jetstream import JetStreamConsumer
from sea_mq_worker.ports.observer import Observer

LOOK_SECONDS = 0.5
"""How often it is looked whether there is something to read ahead."""
_POSTPONED_MAX = 1000
_POSTPONED_BYTES_MAX = 1024 * 1024
_PAGE = 50
_PAGES_MAX = 20


_Way: TypeAlias = "Callable[[ReadAhead, int, asyncio.Event], Awaitable[list[InboundMessage]]]"


@dataclass(slots=True, kw_only=True)
class ReadAhead:
    """Reads ahead for one consumer, as fast as its messages are handled.

    Messages of a slow event type wait here for their turn, and others are read past them. What finds no room
    to wait is come back to.

    Attributes:
        clock: monotonic seconds.
    """

    consumer: JetStreamConsumer
    health: HandlerHealth
    observer: Observer
    broker_breaker: CircuitBreaker
    clock: Callable[[], float]
    cursor: int = 0
    """The last that was read."""
    _goes_on_at: float = 0.0
    _postponed: dict[str, deque[InboundMessage]] = field(default_factory=lambda: defaultdict(deque))
    _passed_over: int = 0
    """The first that found no room among the postponed."""
    _forbidden: bool = False
    _ways: deque[_Way] = field(init=False)

    def __post_init__(self) -> None:
        self._ways = deque((ReadAhead._take_postponed, ReadAhead._go_on))

    async def next(self, limit: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Return up to ``limit`` messages to handle now; none while the consumer has room itself.

        Raises:
            StoppedError: asked to stop while the broker was away.
        """
        self._ways.rotate()
        found: list[InboundMessage] = []
        for way in self._ways:  # neither keeps the places from the other
            found += await way(self, limit - len(found), stop)
        return found

    async def _take_postponed(self, limit: int, _stop: asyncio.Event) -> list[InboundMessage]:
        found: list[InboundMessage] = []
        for event_type, messages in list(self._postponed.items()):
            takes = self.health.calls_soon(event_type, limit - len(found))
            found += [messages.popleft() for _ in range(min(len(messages), takes))]
            if not messages:
                del self._postponed[event_type]
        return found

    async def _go_on(self, limit: int, stop: asyncio.Event) -> list[InboundMessage]:
        """Read on until there is something to handle, but not for long; postpone what is of a slow type."""
        found: list[InboundMessage] = []
        pages = _PAGES_MAX if limit else 0
        while pages and not found and self.clock() >= self._goes_on_at:
            found = self._sort(await self._read(self.cursor, _PAGE, stop), limit)
            pages -= 1
        return found

    def _sort(self, messages: Sequence[InboundMessage], limit: int) -> list[InboundMessage]:
        """Return what to handle; nothing else of a page is kept while the next one is read."""
        if not messages:
            self._come_back()
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

    def _come_back(self) -> None:
        """At the end, wait for more, or go back to what was passed over."""
        self._goes_on_at = self.clock() + LOOK_SECONDS
        if self._passed_over and not self._postponed:
            self.cursor, self._passed_over = self._passed_over - 1, 0

    def _postpone(self, message: InboundMessage, event_type: str) -> None:
        if not self._passed_over and self._has_room(message):
            self._postponed[event_type].append(message)
        elif not self._passed_over:
            self._passed_over = message.seq

    def _has_room(self, message: InboundMessage) -> bool:
        messages = [one for several in self._postponed.values() for one in several]
        room = _POSTPONED_BYTES_MAX - sum(len(one.payload) for one in messages)
        return not messages or (len(messages) < _POSTPONED_MAX and len(message.payload) <= room)

    async def _read(self, after_seq: int, limit: int, stop: asyncio.Event) -> Sequence[InboundMessage]:
        if self._forbidden:
            return ()
        return await call_when_available(
            lambda: self._ahead(after_seq, limit), breaker=self.broker_breaker, stop=stop
        )

    async def _ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage]:
        try:
            return await self.consumer.ahead(after_seq, limit)
        except ContractError as error:  # who may not read the stream still consumes it
            self._forbidden = True
            self.observer.observe(Noticed(event="read_ahead_failed", text=str(error)))
            return ()

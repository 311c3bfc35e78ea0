"""In-flight messages of one consumer, the capacity that is left for more, and slots for handler calls."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.waiting import StoppedError
from sea_mq_worker.domain.inbound import (
    InvalidMessage,
    content_hash,
    identify,
    parse_message,
)
from sea_mq_worker.domain.inbox_results import InboxMessage, Leased
from sea_mq_worker.domain.messages import HandlerRequest, InboundMessage
from sea_mq_worker.ports.jetstream import Settler

_BATCHES = 2
"""Batches that share the slots under load: the handler works on one while another is recorded or fetched."""
_LINGER_SECONDS = 0.005
"""Longest wait of a fetch for a whole batch of free slots, so that batches form under load."""


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightMessage:
    """A message that was fetched and not yet settled; compared by identity."""

    message: InboundMessage
    entry: InboxMessage
    """Inbox entry, made without reading the body."""
    received_at: float
    size: int
    """Bytes in memory."""
    refusal: InvalidMessage | None = None
    """Reason why it cannot be handled, as far as that is known without reading the body."""
    run: Leased | None = None
    """The lease, once the inbox has given one to this worker."""
    leased_until: float = 0.0
    """Time until which this worker certainly holds the lease."""
    settler: Settler | None = None
    """Receiver of acknowledgements, where that is not the consumer."""
    hand_over: bool = False
    """Another worker should have the message, because this one does not reach its handler."""

    @classmethod
    def of(cls, message: InboundMessage, *, received_at: float) -> Self:
        """Identify a fetched message by its headers."""
        identity = identify(message)
        refusal = identity if isinstance(identity, InvalidMessage) else None
        message_id = identity.message_id if isinstance(identity, InvalidMessage) else identity
        entry = InboxMessage(
            message_id=message_id,
            subject=message.subject,
            consumer=message.consumer,
            stream=message.stream,
            stream_seq=message.seq,
            content_hash=content_hash(message),
            reply=message.reply,
        )
        return cls(message=message, entry=entry, received_at=received_at, size=message.size, refusal=refusal)

    def refuse(self, refusal: InvalidMessage) -> None:
        """Mark the message as invalid, and record it under the refusal's id from now on."""
        self.refusal = refusal
        self.entry = self.entry._replace(message_id=refusal.message_id)

    def open(self) -> HandlerRequest | InvalidMessage:
        """Parse the body; call this only after the attempt is counted, for a body may kill the process."""
        return self.refusal or parse_message(self.message)


class InFlight:
    """Bounds the messages that are fetched and not yet settled, by number and by bytes.

    Messages that the consumer delivered and extra ones (orphans, exhausted messages, messages read ahead)
    have slots of their own, so that neither can keep out the other; the bytes are shared. With
    ``messages_max`` of 10::

        delivered  [##########]   10 slots: one fetch asks for at most the free ones
        extra      [#####]         5 slots: half as many again
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._extra_max = -(-messages_max // 2)
        self._bytes_max = bytes_max
        self._messages: dict[InFlightMessage, None] = {}  # unlike a set it keeps their order
        self._extra: set[InFlightMessage] = set()
        self._released = asyncio.Event()

    def __iter__(self) -> Iterator[InFlightMessage]:
        return iter(self._messages)

    @property
    def free_bytes(self) -> int:
        return self._bytes_max - sum(item.size for item in self._messages)

    @property
    def capacity(self) -> int:
        """Most messages at a time, extra ones included."""
        return self._messages_max + self._extra_max

    @property
    def completion_batch(self) -> int:
        """Number of outcomes worth one write: half the slots, or all messages where fewer are in flight."""
        return min(len(self._messages), -(-self._messages_max // _BATCHES))

    @property
    def _free(self) -> int:
        return self._messages_max - len(self._messages) + len(self._extra)

    def add(self, items: Sequence[InFlightMessage], *, extra: bool) -> None:
        self._messages.update(dict.fromkeys(items))
        if extra:
            self._extra.update(items)

    def release(self, items: Sequence[InFlightMessage]) -> None:
        """Free the slots and bytes of settled messages."""
        for item in items:
            self._messages.pop(item, None)
        self._extra.difference_update(items)
        self._released.set()

    async def wake_on_stop(self, stop: asyncio.Event) -> None:
        """Wake waiting callers when the worker stops: each waits for one event, which is cheaper than two."""
        await stop.wait()
        self._released.set()

    async def wait_for_slots(self, stop: asyncio.Event, breaker: CircuitBreaker) -> int:
        """Return the number of free slots: a batch of them, or fewer after a short wait.

        While the handler's circuit is open, return one slot once no message waits to try the handler: other
        workers should have the messages that this one cannot handle.

        Raises:
            StoppedError: the worker stopped before there was a free slot.
        """
        await asyncio.sleep(0)  # messages just received call the handler first, and may open its circuit
        while not breaker.is_closed and breaker.has_callers and not stop.is_set():
            self._released.clear()
            await breaker.wait_for_probe(unless=self._released)
        while not self._free or self.free_bytes <= 0:
            await self._wait_for_release(stop)
        if not breaker.is_closed:
            return 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self._free * _BATCHES < self._messages_max:
                    await self._wait_for_release(stop)
        return self._free

    async def wait_for_extra_slots(self, stop: asyncio.Event) -> int:
        """Return the number of free slots for extra messages, once there is one.

        Raises:
            StoppedError: the worker stopped before there was a free slot.
        """
        while not (free := self._extra_max - len(self._extra)) or self.free_bytes <= 0:
            await self._wait_for_release(stop)
        return free

    async def _wait_for_release(self, stop: asyncio.Event) -> None:
        self._released.clear()
        if stop.is_set():
            raise StoppedError
        await self._released.wait()


class CallSlots:
    """At most ``count`` handler calls at a time, in the order of arrival; entered by ``async with``.

    There may be more in-flight messages than calls.

    When the worker stops, waiting messages get ``StoppedError`` instead of a slot. With a semaphore each wait
    would need a task of its own to end then.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stopped = False

    async def __aenter__(self) -> None:
        if self._stopped:
            raise StoppedError
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    async def end_waits_on_stop(self, stop: asyncio.Event) -> None:
        """End all waits when the worker stops."""
        await stop.wait()
        self._stopped = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(StoppedError())

    def _pass_on(self) -> None:
        """Give a slot to the message that has waited longest, or keep it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

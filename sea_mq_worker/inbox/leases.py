"""The messages in hand: the room for them, their leases in the inbox, and their turns to call the handler.

Each message takes a slot of ``InFlight`` before it is fetched. ``InboxLeases`` leases it before its body is
read (CMD-051), because the body may be what ends the worker, and renews the lease until it is settled. It
calls the handler once it has one of the ``CallSlots``.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sea_mq_worker.errors import DependencyError
from sea_mq_worker.inbox.dead_letter import Reason, conflict_detail
from sea_mq_worker.inbox.message import (
    NOT_LEASED,
    ContentConflict,
    InboxMessage,
    InvalidMessage,
    Lease,
    Receipt,
    Unwritable,
    content_hash,
    identify,
    storage_id,
)
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.ports import Events, InboxRepository, Settler
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.row_isolation import RowIsolator, report_refused, write_isolated
from sea_mq_worker.runtime.waiting import StoppedError

_BATCHES = 2
"""Batches that share the slots under load: the handler works on one while another is recorded or fetched."""
_LINGER_SECONDS = 0.005
"""Longest wait of a fetch for a whole batch of free slots, so that batches form under load."""
_EXTENSIONS_PER_LEASE = 3


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightMessage:
    """A message that was fetched and not yet settled; compared by identity."""

    message: InboundMessage
    settler: Settler
    """Takes its acknowledgement: the consumer, or the port that found the message."""
    entry: InboxMessage
    """Inbox entry, made without reading the body."""
    received_at: float
    size: int
    """Bytes in memory."""
    refusal: InvalidMessage | None
    """Why it cannot be handled, as far as that is known without reading the body."""
    lease: Lease = NOT_LEASED
    leased_until: float = 0.0
    """Time until which this worker certainly holds the lease."""
    hand_over: bool = False
    """Another worker should have the message, because this one does not reach its handler."""

    @classmethod
    def of(cls, message: InboundMessage, settler: Settler, *, received_at: float) -> "InFlightMessage":
        """Identify a fetched message by its headers."""
        identity = identify(message)
        refusal = identity if isinstance(identity, InvalidMessage) else None
        entry = InboxMessage(
            message_id=identity if isinstance(identity, str) else identity.message_id,
            subject=message.subject,
            consumer=message.consumer,
            stream=message.stream,
            stream_seq=message.seq,
            content_hash=content_hash(message),
            reply=message.reply,
        )
        return cls(
            message=message,
            settler=settler,
            entry=entry,
            received_at=received_at,
            size=message.size,
            refusal=refusal,
        )

    @property
    def is_leased(self) -> bool:
        return self.lease is not NOT_LEASED


class InFlight:
    """Bounds the messages that are fetched and not yet settled, by number and by bytes.

    Messages that the consumer delivered and extra ones (see ``rescue``) have slots of their own, so that
    neither can keep out the other; the bytes are shared. With ``messages_max`` of 10::

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
        """
        await asyncio.sleep(0)  # messages just received call the handler first, and may open its circuit
        while not breaker.is_closed and breaker.has_callers and not stop.is_set():
            self._released.clear()
            await breaker.wait_for_probe(unless=self._released)
        while self._free <= 0 or self.free_bytes <= 0:
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

        They are not reserved: while one caller reads messages for them, others may take them. So at most
        twice as many are taken as there are, until messages are released.
        """
        while (free := self._extra_max - len(self._extra)) <= 0 or self.free_bytes <= 0:
            await self._wait_for_release(stop)
        return free

    async def _wait_for_release(self, stop: asyncio.Event) -> None:
        self._released.clear()
        if stop.is_set():
            raise StoppedError
        await self._released.wait()


class CallSlots:
    """At most ``count`` handler calls at a time, in the order of arrival; entered by ``async with``.

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
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the slot to the message that has waited longest, or keep it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def end_waits_on_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopped = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(StoppedError())


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLeases:
    """Leases messages for ``lease_seconds``, and knows which leases certainly still hold.

    Attributes:
        clock: monotonic seconds.
        session_lost_since: whether others may have taken the worker, and its leases, for gone since a time.
    """

    inbox: InboxRepository
    store_breaker: CircuitBreaker
    events: Events
    clock: Callable[[], float]
    lease_seconds: float
    session_lost_since: Callable[[float], bool]

    async def record(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Lease a batch; a message whose id is known with another content gets an id of its own."""
        receipts = await self.lease(items, stop)
        conflicting = [
            item
            for item, receipt in zip(items, receipts, strict=True)
            if isinstance(receipt, ContentConflict)
        ]
        if not conflicting:
            return receipts
        for item in conflicting:
            detail = conflict_detail(item.entry.message_id)
            item.refusal = InvalidMessage(storage_id(item.message), Reason.CONTENT_CONFLICT, detail)
            item.entry = item.entry._replace(message_id=item.refusal.message_id)
        again = iter(await self.lease(conflicting, stop))
        return [next(again) if isinstance(receipt, ContentConflict) else receipt for receipt in receipts]

    async def lease(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Record messages in one round trip, as they are, and lease those that must be handled."""

        async def insert(part: Sequence[InFlightMessage]) -> Sequence[Receipt]:
            entries = [item.entry for item in part]
            return await self.inbox.insert_batch(entries, lease_seconds=self.lease_seconds)

        isolator = await write_isolated(items, insert, breaker=self.store_breaker, stop=stop)
        receipts: dict[InFlightMessage, Receipt] = {}
        for part, answer in isolator.answers:
            receipts.update(zip(part, answer, strict=True))
        for item, error in isolator.refused:
            report_refused(self.events, f"message {item.entry.message_id}", error)
            receipts[item] = Unwritable()
        for item, receipt in receipts.items():
            item.lease = receipt if isinstance(receipt, Lease) else NOT_LEASED
            # The inbox gave the lease after the message was received.
            item.leased_until = item.received_at + self.lease_seconds
        return [receipts[item] for item in items]

    async def renew(self, items: Iterable[InFlightMessage]) -> None:
        """Extend all leases in one statement; a failure opens the circuit of the database."""
        try:
            await self._extend([item for item in items if item.is_leased])
        except DependencyError as error:
            self.store_breaker.record_exception(error)

    def may_hold(self, item: InFlightMessage) -> bool:
        """Return whether the worker's own lease may still last, as far as PostgreSQL confirmed it.

        A message that PostgreSQL has not recorded yet is kept for as long as a lease.
        """
        until = item.leased_until if item.is_leased else item.received_at + self.lease_seconds
        return self.clock() < until

    def surely_holds(self, item: InFlightMessage) -> bool:
        """Return whether nobody else can have the message: its lease lasts, and no session was lost since."""
        confirmed_at = item.leased_until - self.lease_seconds
        return self.clock() < item.leased_until and not self.session_lost_since(confirmed_at)

    async def still_leased(self, item: InFlightMessage, stop: asyncio.Event) -> bool:
        """Return whether this worker still holds the lease.

        Query the database only after a missed renewal, or where the lease is older than a lost session.
        """
        if not self.surely_holds(item):
            await call_when_available(lambda: self._extend([item]), breaker=self.store_breaker, stop=stop)
        return self.clock() < item.leased_until

    async def _extend(self, items: Sequence[InFlightMessage]) -> None:
        began, leases = self.clock(), [item.lease for item in items]
        isolator = RowIsolator(leases, lambda part: self.inbox.extend(part, lease_seconds=self.lease_seconds))
        await isolator.run()
        extended = frozenset().union(*(answer for _, answer in isolator.answers))
        for item, lease in zip(items, leases, strict=True):
            item.leased_until = began + self.lease_seconds if lease.message_id in extended else began


@contextlib.asynccontextmanager
async def renewing_lease(
    inbox: InboxRepository, lease: Lease, *, lease_seconds: float
) -> AsyncIterator[None]:
    """Extend one lease for the length of a block; retry a little later where the database does not do it."""

    async def extend() -> None:
        while True:
            await asyncio.sleep(lease_seconds / _EXTENSIONS_PER_LEASE)
            with contextlib.suppress(DependencyError):
                await inbox.extend([lease], lease_seconds=lease_seconds)

    extending = asyncio.create_task(extend())
    try:
        yield
    finally:
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)

"""InboxConsumer: JetStream -> inbox -> handler -> ACK, each effect once.

The order of steps is the guarantee: record in the inbox (which leases the message and counts the attempt),
ask the handler, record the ending, and only then acknowledge. A crash in between brings the message again;
what the inbox knows as processed is acknowledged then without asking the handler.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.inbox.completion import CompletionBatcher
from sea_mq_worker.application.inbox.handler_call import HandlerCaller
from sea_mq_worker.application.inbox.orphans import OrphanFinder
from sea_mq_worker.application.inbox.read_ahead import LOOK_SECONDS, ReadAhead
from sea_mq_worker.application.inbox.receiving import InboxRecorder, InFlightMessage
from sea_mq_worker.application.retry_unavailable import call_when_available
from sea_mq_worker.application.row_isolation import RowIsolator
from sea_mq_worker.application.waiting import (
    IMMEDIATE_REDELIVERY_SECONDS,
    StoppedError,
    cancel_on_stop,
    sleep_or_stop,
)
from sea_mq_worker.domain.errors import DependencyError
from sea_mq_worker.domain.facts import MessageSkipped, Noticed
from sea_mq_worker.domain.inbox_results import (
    AlreadySettled,
    ContentConflict,
    Leased,
    LeasedElsewhere,
    Unwritable,
)
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.jetstream import JetStreamConsumer, Settler
from sea_mq_worker.ports.observer import Observer

_LARGE_BYTES = 65_536
"""After a body of this size others get a turn: to hash or check one takes time, and there may be many."""
_TURNS = 2
"""So many batches share the places under load: one is with the handler while another is closed or fetched."""
_LINGER_SECONDS = 0.005
"""How long a fetch waits for a whole batch of free places, so that batches form under load."""
_AGAIN_SECONDS = 0.05
"""How soon it is looked again for messages behind those that were given back."""
_BUSY_MAX_SECONDS = 600.0
_DOUBLINGS_MAX = 10
_Handed: TypeAlias = tuple[InboundMessage, Settler]


@dataclass(slots=True, kw_only=True)
class InboxConsumer:
    """The loop of one durable consumer.

    Attributes:
        concurrency: messages in hand at most; not above the consumer's max_ack_pending.
        bytes_max: what their bodies may come to; the last one may be larger than the room that it finds.
        heartbeat_seconds: how often messages in hand are kept alive, below a third of ack_wait and lease.
        lease_seconds: processing lease in the inbox.
        siblings: the durables of this worker, which share its handler.
        leftovers: finds what no delivery will bring again; None: nobody looks for it.
    """

    consumer: JetStreamConsumer
    inbox: InboxRepository
    recorder: InboxRecorder
    handler_caller: HandlerCaller
    completion: CompletionBatcher
    observer: Observer
    broker_breaker: CircuitBreaker
    clock: Callable[[], float]
    concurrency: int
    bytes_max: int
    heartbeat_seconds: float
    lease_seconds: float
    siblings: frozenset[str] = frozenset()
    orphans: OrphanFinder | None = None
    ahead: ReadAhead | None = None
    _in_flight: set[InFlightMessage] = field(default_factory=set)
    _overlapping: set[str] = field(default_factory=set)
    _aside: set[InFlightMessage] = field(default_factory=set)
    """Of what is in hand, what no delivery of the consumer brought: it has places of its own."""
    _submitted: asyncio.Queue[_Handed] = field(init=False)
    _calls: asyncio.Semaphore = field(init=False)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._submitted = asyncio.Queue(1)
        self._calls = asyncio.Semaphore(self.concurrency)

    async def submit(self, message: InboundMessage, settler: Settler, stop: asyncio.Event) -> None:
        """Take a message from somebody else, to whom it is settled.

        Raises:
            StoppedError: asked to stop before there was a place.
        """
        await cancel_on_stop(stop, self._submitted.put((message, settler)))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop, then bring the messages in hand to an end."""
        over, resumed = asyncio.Event(), asyncio.Queue[str]()
        with self.handler_caller.health.telling(resumed.put_nowait):
            await self._run(stop, over, resumed)

    async def _run(self, stop: asyncio.Event, over: asyncio.Event, resumed: asyncio.Queue[str]) -> None:
        async with asyncio.TaskGroup() as background:
            background.create_task(_until_stopped(self._request_resumed(resumed, stop)))
            background.create_task(self._heartbeat(self._send_in_progress, over))
            background.create_task(self._heartbeat(self._extend_leases, over))
            background.create_task(self._wake_on_stop(stop))
            completion = background.create_task(self.completion.run(stop, self._release, self._batch_target))
            try:
                async with asyncio.TaskGroup() as working:
                    for take in (self._consume_orphans, self._consume_exhausted, self._read_ahead):
                        working.create_task(_until_stopped(take(stop, working)))
                    while not stop.is_set():
                        await _until_stopped(self._fetch_once(stop, working))
                await self.completion.drained()
            finally:
                over.set()
                completion.cancel()

    async def _fetch_once(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        room = await self._wait_for_capacity(stop)
        messages = await self._fetch(room, stop)
        await self._receive(messages, stop, working)

    async def _consume_orphans(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """Now and then take what nothing will deliver again, unless the handler cannot be reached."""
        while self.orphans is not None and not stop.is_set():
            if self.handler_caller.health.breaker.is_closed:
                finding = self.orphans.find(stop)
                for message in await cancel_on_stop(stop, finding):
                    await self._wait_for_extra_capacity(stop)
                    await self._receive([message], stop, working, aside=True)
            await self.orphans.wait(stop)

    async def _consume_exhausted(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            await self._wait_for_extra_capacity(stop)
            message, settler = await cancel_on_stop(stop, self._submitted.get())
            await self._receive([message], stop, working, aside=True, settler=settler)

    async def _read_ahead(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """While what was given back holds the consumer's places, handle what waits behind it."""
        while self.ahead is not None and not stop.is_set():
            await cancel_on_stop(stop, self.completion.returned.some())
            room = await self._wait_for_extra_capacity(stop)
            is_open = self.handler_caller.health.breaker.is_closed
            messages = await cancel_on_stop(stop, self.ahead.next(room, stop)) if is_open else []
            await self._receive(messages, stop, working, aside=True)
            if not messages:
                await sleep_or_stop(stop, seconds=_AGAIN_SECONDS)

    async def _request_resumed(self, resumed: asyncio.Queue[str], stop: asyncio.Event) -> None:
        """Ask for what was given back of each type that is slow no more."""
        while not stop.is_set():
            event_type = await cancel_on_stop(stop, resumed.get())
            for message, settler, delay_seconds in self.completion.returned.take(event_type):
                await (settler or self.consumer).nak(message, delay_seconds=delay_seconds)

    async def _receive(
        self,
        messages: Sequence[InboundMessage],
        stop: asyncio.Event,
        working: asyncio.TaskGroup,
        *,
        aside: bool = False,
        settler: Settler | None = None,
    ) -> None:
        items = []
        for message in messages:
            if early := self.completion.returned.early_seconds(message):
                await (settler or self.consumer).nak(message, delay_seconds=early)
                continue
            items.append(self.recorder.take(message, received_at=self.clock()))
            items[-1].settler = settler
            await _turn_after(message)
        self._in_flight.update(items)
        self._aside.update(items if aside else ())
        try:
            receipts = await self.recorder.record(items, stop)
        except StoppedError:
            await self._give_back(items)
            return
        for item, receipt in zip(items, receipts, strict=True):
            if isinstance(receipt, Leased):
                item.leased_until = item.received_at + self.lease_seconds
                working.create_task(self._work(item, receipt, stop))
                await _turn_after(item.message)
            else:
                await self._settle_duplicate(item, receipt)

    async def _wait_for_capacity(self, stop: asyncio.Event) -> int:
        """Wait for free places: for a batch of them, but not for long once there is one.

        While the handler is sick one more message is let in after each probe, so that a good one among
        bad ones can open its gate.

        Raises:
            StoppedError: asked to stop before there was one.
        """
        await asyncio.sleep(0)  # what was just received asks first, and may close the gate
        breaker = self.handler_caller.health.breaker
        if not breaker.is_closed and self._in_flight:
            self._freed.clear()
            await breaker.wait_for_probe(unless=self._freed)
        while not self._free or self._free_bytes <= 0:
            await self._next_freed(stop)
        if not breaker.is_closed:
            return 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self._free * _TURNS < self.concurrency:
                    await self._next_freed(stop)
        return self._free

    async def _wait_for_extra_capacity(self, stop: asyncio.Event) -> int:
        """Wait for free places of what no delivery of the consumer brings: half as many again.

        Raises:
            StoppedError: asked to stop before there was one.
        """
        while not (free := -(-self.concurrency // 2) - len(self._aside)) or self._free_bytes <= 0:
            await self._next_freed(stop)
        return free

    @property
    def _free(self) -> int:
        return self.concurrency - len(self._in_flight) + len(self._aside)

    @property
    def _free_bytes(self) -> int:
        return self.bytes_max - sum(len(item.message.payload) for item in self._in_flight)

    def _batch_target(self) -> int:
        """Tell how many endings are a batch: all of them, where fewer are in hand."""
        return min(len(self._in_flight), -(-self.concurrency // _TURNS))

    async def _next_freed(self, stop: asyncio.Event) -> None:
        self._freed.clear()
        if stop.is_set():
            raise StoppedError
        await self._freed.wait()

    async def _wake_on_stop(self, stop: asyncio.Event) -> None:
        """Whoever waits for a free place waits for one event alone, which is cheaper than for two."""
        await stop.wait()
        self._freed.set()

    async def _fetch(self, room: int, stop: asyncio.Event) -> Sequence[InboundMessage]:
        fetching = call_when_available(
            lambda: self.consumer.fetch(room, bytes_max=self._free_bytes),
            breaker=self.broker_breaker,
            stop=stop,
        )
        return await cancel_on_stop(stop, fetching)

    async def _work(self, item: InFlightMessage, run: Leased, stop: asyncio.Event) -> None:
        async with self._calls:
            ending = await self.handler_caller.handle(
                item, run, stop, holds=lambda: self._still_leased(item, run, stop)
            )
        self.completion.add(item, run, ending)

    async def _settle_duplicate(
        self, item: InFlightMessage, receipt: AlreadySettled | LeasedElsewhere | ContentConflict | Unwritable
    ) -> None:
        """Settle what is not ours to handle."""
        settler = item.settler or self.consumer
        match receipt:
            case AlreadySettled(brought_by):
                await settler.ack(item.message)
                self._report_skipped(item, "" if brought_by in self.siblings else brought_by)
            case LeasedElsewhere(attempts):
                await settler.nak(item.message, delay_seconds=self._busy_seconds(item.message, attempts))
            case ContentConflict():
                await settler.nak(item.message, delay_seconds=self.lease_seconds / 2)
            case Unwritable():
                await settler.nak(item.message, delay_seconds=self._busy_seconds(item.message, None))
            case _:
                assert_never(receipt)
        self._release([item])

    def _report_skipped(self, item: InFlightMessage, brought_by: str) -> None:
        """Tell of a message that another worker's consumer brought too, loudly once a consumer."""
        name, message_id = self.consumer.name, item.entry.message_id
        self.observer.observe(MessageSkipped(message_id=message_id, consumer=name, brought_by=brought_by))
        if brought_by and brought_by not in self._overlapping:
            self._overlapping.add(brought_by)
            text = (
                f"message {message_id} of consumer {name} was settled before by consumer {brought_by} of"
                " another worker: two handlers need a schema each (SEA_MQ_DATABASE_SCHEMA)"
            )
            self.observer.observe(Noticed(event="consumers_overlap", text=text))

    def _busy_seconds(self, message: InboundMessage, attempts: int | None) -> float:
        """Ask ever more rarely, so that whoever holds a message for long does not cost it its deliveries.

        Deliveries that led to an attempt do not count: what was tried often is not held any longer for that.
        A message that was read ahead is asked about sooner: it holds a place, and its handling has begun.
        """
        in_vain = message.deliveries - 1 - (message.deliveries if attempts is None else attempts)
        doublings = min(max(in_vain, 0), _DOUBLINGS_MAX)
        was_read_ahead = self.ahead is not None and message.seq <= self.ahead.cursor
        first = min(LOOK_SECONDS, self.lease_seconds / 2) if was_read_ahead else self.lease_seconds / 2
        return min(first * 2.0**doublings, max(self.lease_seconds, _BUSY_MAX_SECONDS))

    async def _give_back(self, items: Sequence[InFlightMessage]) -> None:
        for item in items:
            await (item.settler or self.consumer).nak(
                item.message, delay_seconds=IMMEDIATE_REDELIVERY_SECONDS
            )
        self._release(items)

    def _release(self, items: Sequence[InFlightMessage]) -> None:
        self._in_flight.difference_update(items)
        self._aside.difference_update(items)
        self._freed.set()

    async def _heartbeat(self, beat: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
        """Server and database each have a heartbeat of their own: one that hangs must not cost the other."""
        while not over.is_set():
            await sleep_or_stop(over, seconds=self.heartbeat_seconds)
            await beat()

    async def _send_in_progress(self) -> None:
        for item in list(self._in_flight):
            await (item.settler or self.consumer).in_progress(item.message)

    async def _still_leased(self, item: InFlightMessage, run: Leased, stop: asyncio.Event) -> bool:
        """Tell whether a message is still ours; the database is asked only where the heartbeat missed."""
        if self.clock() >= item.leased_until:
            extending = call_when_available(
                lambda: self._extend([(item, run)]), breaker=self.recorder.store_breaker, stop=stop
            )
            await extending
        return self.clock() < item.leased_until

    async def _extend_leases(self) -> None:
        try:
            await self._extend([(item, item.run) for item in self._in_flight if item.run is not None])
        except DependencyError as error:
            self.recorder.store_breaker.record_exception(error)

    async def _extend(self, held: Sequence[tuple[InFlightMessage, Leased]]) -> None:
        if not held:
            return
        began = self.clock()
        pieces = RowIsolator(
            [run.lease for _, run in held],
            lambda part: self.inbox.extend(part, lease_seconds=self.lease_seconds),
        )
        await pieces.run()
        kept = frozenset().union(*(answer for _, answer in pieces.answers))
        for item, run in held:
            item.leased_until = began + self.lease_seconds if run.lease.message_id in kept else began


async def _turn_after(message: InboundMessage) -> None:
    if len(message.payload) > _LARGE_BYTES:
        await asyncio.sleep(0)


async def _until_stopped(work: Awaitable[None]) -> None:
    with contextlib.suppress(StoppedError):
        await work

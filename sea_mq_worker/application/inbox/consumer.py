"""InboxConsumer: JetStream -> inbox -> handler -> ACK, each effect once.

The order of steps is the guarantee: record the message in the inbox (which leases it and counts the
attempt), call the handler, record the outcome, and only then acknowledge. After a crash in between, the
stream delivers the message again; the worker acknowledges a processed one without calling the handler.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, assert_never

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.completion import CompletionBatcher
from sea_mq_worker.application.inbox.handler_call import HandlerCaller
from sea_mq_worker.application.inbox.in_flight import CallSlots, InFlight, InFlightMessage
from sea_mq_worker.application.inbox.leases import InboxLeases
from sea_mq_worker.application.inbox.orphans import OrphanFinder
from sea_mq_worker.application.inbox.read_ahead import LOOK_SECONDS, ReadAhead
from sea_mq_worker.application.waiting import (
    IMMEDIATE_REDELIVERY_SECONDS,
    StoppedError,
    cancel_on_stop,
    sleep_or_stop,
)
from sea_mq_worker.domain.errors import DependencyError
from sea_mq_worker.domain.facts import MessageSkipped, Noticed, ServerMessageSkipped
from sea_mq_worker.domain.inbound import carries_no_event
from sea_mq_worker.domain.inbox_results import (
    AlreadySettled,
    ContentConflict,
    Leased,
    LeasedElsewhere,
    Unwritable,
)
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.outcomes import GivenBack, HandlingOutcome
from sea_mq_worker.ports.jetstream import JetStreamConsumer, Settler
from sea_mq_worker.ports.observer import Observer

_LARGE_BYTES = 65_536
"""The loop yields after a body above this size: hashing and checking it takes time, and many may come."""
_BUSY_MAX_SECONDS = 600.0
_DOUBLINGS_MAX = 10
_Handed: TypeAlias = tuple[InboundMessage, Settler]


@dataclass(slots=True, kw_only=True)
class InboxConsumer:
    """The loop of one durable consumer.

    Attributes:
        calls: bounds the handler calls at a time.
        heartbeat_seconds: interval of lease renewals and in-progress signals, below a third of ack_wait and
            lease.
        siblings: the durables of this worker, which share its handler.
        orphans: finds messages that no delivery will bring.
        ahead: reads messages behind those that wait for their next delivery.
    """

    consumer: JetStreamConsumer
    leases: InboxLeases
    handler_caller: HandlerCaller
    in_flight: InFlight
    completion: CompletionBatcher
    observer: Observer
    broker_breaker: CircuitBreaker
    calls: CallSlots
    heartbeat_seconds: float
    siblings: frozenset[str]
    orphans: OrphanFinder
    ahead: ReadAhead
    _fetches: bool = False
    _overlapping: set[str] = field(default_factory=set)
    _submitted: asyncio.Queue[_Handed] = field(default_factory=lambda: asyncio.Queue(1))

    async def submit(self, message: InboundMessage, settler: Settler, stop: asyncio.Event) -> None:
        """Take a message that another loop fetched; ``settler`` acknowledges it.

        Raises:
            StoppedError: the worker stopped before the loop had a free slot.
        """
        await cancel_on_stop(stop, self._submitted.put((message, settler)))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops; then finish the calls under way and give back the other messages."""
        over, resumed = asyncio.Event(), asyncio.Queue[str]()
        with self.handler_caller.health.on_resumed(resumed.put_nowait):
            await self._run(stop, over, resumed)

    async def _run(self, stop: asyncio.Event, over: asyncio.Event, resumed: asyncio.Queue[str]) -> None:
        async with asyncio.TaskGroup() as background:
            background.create_task(_until_stopped(self._redeliver_resumed(resumed, stop)))
            background.create_task(self._heartbeat(self._send_in_progress, over))
            background.create_task(self._heartbeat(partial(self.leases.renew, self.in_flight), over))
            background.create_task(self._heartbeat(self._hand_over, over))
            background.create_task(self.in_flight.wake_on_stop(stop))
            background.create_task(self.calls.end_waits_on_stop(stop))
            completing = background.create_task(self.completion.run(stop))
            try:
                async with asyncio.TaskGroup() as working:
                    for consume in (self._consume_orphans, self._consume_submitted, self._consume_ahead):
                        working.create_task(_until_stopped(consume(stop, working)))
                    while not stop.is_set():
                        await _until_stopped(self._fetch_once(stop, working))
                await self.completion.drained()
            finally:
                over.set()
                completing.cancel()

    async def _fetch_once(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        slots = await self.in_flight.wait_for_slots(stop, self.handler_caller.health.breaker)
        fetching = call_when_available(
            lambda: self.consumer.fetch(slots, bytes_max=self.in_flight.free_bytes),
            breaker=self.broker_breaker,
            stop=stop,
        )
        self._fetches = True
        messages = await cancel_on_stop(stop, fetching)
        self._fetches = False
        await self._receive(messages, stop, working)
        if not messages:  # another worker may have those that opened the handler's circuit
            await self.handler_caller.try_connection(stop)

    async def _consume_orphans(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """Handle messages that no delivery will bring, unless the handler is unreachable."""
        while not stop.is_set():
            if self.handler_caller.health.breaker.is_closed:
                for message in await cancel_on_stop(stop, self.orphans.find(stop)):
                    await self.in_flight.wait_for_extra_slots(stop)
                    await self._receive([message], stop, working, extra=True)
            await sleep_or_stop(stop, seconds=self.orphans.every_seconds)

    async def _consume_submitted(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            await self.in_flight.wait_for_extra_slots(stop)
            message, settler = await cancel_on_stop(stop, self._submitted.get())
            await self._receive([message], stop, working, extra=True, settler=settler)

    async def _consume_ahead(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """While messages given back fill the consumer's max_ack_pending, handle the messages behind them."""
        while not stop.is_set():
            waiting = await cancel_on_stop(stop, self.completion.returned.wait_for_held())
            slots = await self.in_flight.wait_for_extra_slots(stop)
            messages: list[InboundMessage] = []
            if self.handler_caller.health.breaker.is_closed:
                messages = await cancel_on_stop(stop, self.ahead.next(slots, waiting, stop))
            await self._receive(messages, stop, working, extra=True)
            if not messages:
                await sleep_or_stop(stop, seconds=self.ahead.pause_seconds)

    async def _redeliver_resumed(self, resumed: asyncio.Queue[str], stop: asyncio.Event) -> None:
        """Request redelivery of the messages given back of each event type whose slow pace ended."""
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
        extra: bool = False,
        settler: Settler | None = None,
    ) -> None:
        items = []
        for message in messages:
            if carries_no_event(message):
                await (settler or self.consumer).ack(message)
                fact = ServerMessageSkipped(
                    consumer=self.consumer.name, subject=message.subject, stream_seq=message.seq
                )
                self.observer.observe(fact)
                continue
            if early := self.completion.returned.early_seconds(message):
                await (settler or self.consumer).nak(message, delay_seconds=early)
                continue
            items.append(InFlightMessage.of(message, received_at=self.leases.clock()))
            items[-1].settler = settler
            await _yield_after(message)
        self.in_flight.add(items, extra=extra)
        try:
            receipts = await self.leases.record(items, stop)
        except StoppedError:
            await self._give_back(items)
            return
        for item, receipt in zip(items, receipts, strict=True):
            if isinstance(receipt, Leased):
                working.create_task(self._work(item, receipt, stop))
                await _yield_after(item.message)
            else:
                await self._settle_duplicate(item, receipt)

    async def _work(self, item: InFlightMessage, run: Leased, stop: asyncio.Event) -> None:
        outcome: HandlingOutcome
        try:
            async with self.calls:
                outcome = await self.handler_caller.handle(item, run, stop)
        except StoppedError:
            outcome = GivenBack("the worker stopped before the call", IMMEDIATE_REDELIVERY_SECONDS)
        self.completion.add(item, run, outcome)

    async def _settle_duplicate(
        self, item: InFlightMessage, receipt: AlreadySettled | LeasedElsewhere | ContentConflict | Unwritable
    ) -> None:
        """Settle a message that this worker must not handle now."""
        settler = item.settler or self.consumer
        match receipt:
            case AlreadySettled(brought_by):
                await settler.ack(item.message)
                self._report_skipped(item, "" if brought_by in self.siblings else brought_by)
            case LeasedElsewhere(attempts):
                await settler.nak(item.message, delay_seconds=self._busy_seconds(item.message, attempts))
            case ContentConflict():
                await settler.nak(item.message, delay_seconds=self.leases.lease_seconds / 2)
            case Unwritable():
                await settler.nak(item.message, delay_seconds=self._busy_seconds(item.message, None))
            case _:
                assert_never(receipt)
        self.in_flight.release([item])

    def _report_skipped(self, item: InFlightMessage, brought_by: str) -> None:
        """Report a duplicate; warn once for each consumer of another worker that settled one before."""
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
        """Return a growing delay, so that a long lease elsewhere does not use up the message's deliveries.

        Deliveries that led to an attempt do not count: a message with many attempts waits no longer for
        them. The delay of a message that was read ahead starts lower: it fills a slot of max_ack_pending,
        and its handling has begun.
        """
        in_vain = message.deliveries - 1 - (message.deliveries if attempts is None else attempts)
        doublings = min(max(in_vain, 0), _DOUBLINGS_MAX)
        lease_seconds = self.leases.lease_seconds
        was_read_ahead = message.seq <= self.ahead.cursor
        first = min(LOOK_SECONDS, lease_seconds / 2) if was_read_ahead else lease_seconds / 2
        return min(first * 2.0**doublings, max(lease_seconds, _BUSY_MAX_SECONDS))

    async def _give_back(self, items: Sequence[InFlightMessage]) -> None:
        for item in items:
            await (item.settler or self.consumer).nak(
                item.message, delay_seconds=IMMEDIATE_REDELIVERY_SECONDS
            )
        self.in_flight.release(items)

    async def _heartbeat(self, beat: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
        """Repeat ``beat``; server and database have one heartbeat each, so that one can hang alone."""
        while not over.is_set():
            await sleep_or_stop(over, seconds=self.heartbeat_seconds)
            await beat()

    async def _send_in_progress(self) -> None:
        """Keep messages from being delivered again, but none that another worker may lease."""
        for item in list(self.in_flight):
            if self.leases.may_hold(item):
                await (item.settler or self.consumer).in_progress(item.message)

    async def _hand_over(self) -> None:
        """Give back messages that wait for an unreachable handler, if another worker takes messages.

        That worker may have a handler of its own. One message in hand tries this worker's handler: its time
        doubles with its deliveries, so that workers that all fail do not use them up between them.
        """
        breaker = self.handler_caller.health.breaker
        items = [item for item in self.in_flight if item.run is not None]
        if breaker.is_closed or self._fetches or not items:
            return
        trying = min(items, key=lambda item: item.message.deliveries)
        doublings = min(max(trying.message.deliveries - 1, 0), _DOUBLINGS_MAX)
        due = []
        for item in items:
            waited = min(self.leases.clock() - item.received_at, breaker.open_seconds)
            if waited >= self.leases.lease_seconds * (2.0**doublings if item is trying else 1.0):
                due.append(item)
        with contextlib.suppress(DependencyError):
            if due and await self.consumer.is_shared():
                for item in due:
                    item.hand_over = True


async def _yield_after(message: InboundMessage) -> None:
    if len(message.payload) > _LARGE_BYTES:
        await asyncio.sleep(0)


async def _until_stopped(work: Awaitable[None]) -> None:
    with contextlib.suppress(StoppedError):
        await work

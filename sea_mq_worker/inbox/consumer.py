"""InboxConsumer: JetStream -> inbox -> handler -> ACK, each effect once.

The order of steps is the guarantee: record the message in the inbox (which leases it and counts the
attempt), call the handler, record the outcome, and only then acknowledge. After a crash in between, the
stream delivers the message again; the worker acknowledges a processed one without calling the handler.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, assert_never

from sea_mq_worker.errors import DependencyError
from sea_mq_worker.inbox.completion import CompletionBatcher
from sea_mq_worker.inbox.dead_letter import DeadLetterPublisher, Reason
from sea_mq_worker.inbox.health import HandlerHealth
from sea_mq_worker.inbox.leases import CallSlots, InboxLeases, InFlight, InFlightMessage
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    BatchFailed,
    ContentConflict,
    DeadLetter,
    GivenBack,
    HandlerRequest,
    HandlingOutcome,
    InvalidMessage,
    Leased,
    LeasedElsewhere,
    LeaseLost,
    NotDelivered,
    Poison,
    Processed,
    Retry,
    Unwritable,
    carries_no_event,
)
from sea_mq_worker.inbox.rescue import LOOK_SECONDS, OrphanFinder, ReadAhead
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.ports import EventHandler, ExhaustedMessages, JetStreamConsumer, Observer, Settler
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, Permit, call_when_available
from sea_mq_worker.runtime.waiting import (
    IMMEDIATE_REDELIVERY_SECONDS,
    StoppedError,
    cancel_on_stop,
    sleep_or_stop,
)
from sea_mq_worker.telemetry.events import MessageSkipped, Noticed, ServerMessageSkipped

# --- Calls the handler for one message, and judges the outcome (SDS-047 POL-047-005 to 007).
#
# Here a message becomes processed, retried, given back or dead-lettered.

_TOO_LARGE_ATTEMPTS = 3
"""Attempts of a message that is too large for a handler which accepts others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCaller:
    """Calls the handler for a message until there is an outcome.

    Attributes:
        attempts_max: a message with this many attempts without an effect is dead-lettered as EXHAUSTED;
            below the consumer's max_deliver, so that the worker decides before the server gives up.
    """

    handler: EventHandler
    health: HandlerHealth
    leases: InboxLeases
    dead_letter_publisher: DeadLetterPublisher
    backoff: Backoff
    attempts_max: int

    async def handle(self, item: InFlightMessage, run: Leased, stop: asyncio.Event) -> HandlingOutcome:
        """Bring a leased message to an outcome; give it back when the worker stops while it waits.

        The lease is checked before each call: while the handler or the database was away, another worker
        may have leased and handled the message.
        """
        try:
            if item.refusal is None and run.attempts > self.attempts_max:  # the body may kill the process
                detail = "its attempts ended with the worker, not with an answer"
                return await self._dead_letter(item, run, Reason.EXHAUSTED, detail, stop)
            match item.open():
                case InvalidMessage(_, reason, detail):
                    return await self._dead_letter(item, run, reason, detail, stop)
                case HandlerRequest() as request:
                    return await self._call_handler(item, run, request, stop)
        except StoppedError as error:
            waited_for = str(error) or self.health.breaker.reason
            return GivenBack(
                f"the worker stopped while it waited: {waited_for}", IMMEDIATE_REDELIVERY_SECONDS
            )

    async def _call_handler(
        self, item: InFlightMessage, run: Leased, request: HandlerRequest, stop: asyncio.Event
    ) -> HandlingOutcome:
        wait = self.health.take_call(request.event_type, repeated=item.message.deliveries > 1)
        if wait is None:
            return self._give_back(item, request, self.health.error(request.event_type))
        if wait:
            await cancel_on_stop(stop, asyncio.sleep(wait))
        breaker = self.health.breaker
        if run.attempts > 1:  # it may have ended the process of the worker or of the handler
            request = request._replace(batch_max=1)
        while (permit := await self._enter(item, stop)) is not Permit.LEFT:
            if not await self.leases.still_leased(item, run, stop):
                if permit is Permit.PROBE:
                    breaker.release()
                return LeaseLost()
            with self.health.calling(request.event_type):
                result = await self.handler.handle_request(request)
            match result:
                case NotDelivered(error):
                    self.health.record_answer()
                    breaker.record_failure(error)
                case BatchFailed(error, batch_max):
                    self._record_reached(result)
                    if stop.is_set():
                        raise StoppedError(error)
                    request = request._replace(batch_max=batch_max)
                case _:
                    self._record_reached(result)
                    return await self._conclude(item, run, request, result, stop)
        return GivenBack(f"another worker takes messages: {breaker.reason}", IMMEDIATE_REDELIVERY_SECONDS)

    async def _enter(self, item: InFlightMessage, stop: asyncio.Event) -> Permit:
        """Wait until the handler may be called, or until another worker should do it."""
        breaker = self.health.breaker
        permit = await breaker.enter(stop, leaves=lambda: item.hand_over)
        if permit is Permit.STOPPED:
            raise StoppedError(breaker.reason)
        return permit

    async def try_connection(self, stop: asyncio.Event) -> None:
        """Try the connection to an unreachable handler alone, unless a message is there to call it with.

        Raises:
            StoppedError: the worker stopped meanwhile.
        """
        breaker = self.health.breaker
        if breaker.has_callers or await breaker.enter(stop) is not Permit.PROBE:
            return
        if failure := await cancel_on_stop(stop, self.handler.reach()):
            breaker.record_failure(failure.error)
        else:
            breaker.record_success()

    def _record_reached(self, result: Accepted | Poison | Retry | BatchFailed) -> None:
        """Close the circuit for a response; a call that broke off does not prove that the handler is back."""
        if isinstance(result, Retry | BatchFailed) and not result.answered:
            self.health.breaker.release()
        else:
            self.health.record_answer()
            self.health.breaker.record_success()

    async def _conclude(
        self,
        item: InFlightMessage,
        run: Leased,
        request: HandlerRequest,
        result: Accepted | Poison | Retry,
        stop: asyncio.Event,
    ) -> HandlingOutcome:
        if isinstance(result, Accepted):
            self.health.record_effect(request.event_type)
            return Processed(result.status)
        counts = self.health.is_message_fault(request.event_type, request.message_id, result)
        match result:
            case Poison(error) if counts:
                return await self._dead_letter(item, run, Reason.REJECTED, error, stop)
            case Poison(error):
                return self._give_back(item, request, error)
            case Retry(error, after_seconds) if not counts:
                deliveries = max(1, item.message.deliveries)
                return self._give_back(item, request, error, deliveries=deliveries, least=after_seconds)
            case Retry(error, about=about) if run.attempts >= self._attempts_max(about):
                size = f"; its payload has {len(item.message.payload):,} bytes" if about == "size" else ""
                return await self._dead_letter(item, run, Reason.EXHAUSTED, f"{error}{size}", stop)
            case Retry(error, after_seconds):
                delay = max(after_seconds, self.backoff.delay_seconds(run.attempts))
                return GivenBack(error, delay, least_seconds=delay, counted=True)
            case _:
                assert_never(result)

    def _attempts_max(self, about: str) -> int:
        is_too_large = about == "size" and self.health.works
        return min(self.attempts_max, _TOO_LARGE_ATTEMPTS) if is_too_large else self.attempts_max

    def _give_back(
        self,
        item: InFlightMessage,
        request: HandlerRequest,
        error: str,
        *,
        deliveries: int = 0,
        least: float = 0.0,
    ) -> GivenBack:
        """Give back a message of a slow type; only a delivered message has a turn in the type's queue."""
        health, delivered = self.health, bool(item.message.reply)
        delay = health.delay_seconds(request.event_type, deliveries=deliveries, in_line=delivered)
        return GivenBack(error, max(delay, least), request.event_type, least)

    async def _dead_letter(
        self, item: InFlightMessage, run: Leased, reason: str, detail: str, stop: asyncio.Event
    ) -> HandlingOutcome:
        letter = DeadLetter(
            message_id=run.lease.message_id,
            original_subject=item.message.subject,
            reason=reason,
            attempts=run.attempts,
            detail=detail,
            source=item.message,
        )
        return await self.dead_letter_publisher.dead_letter(letter, run, stop)


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


# --- Recovery of exhausted messages, which the server stopped delivering because they reached max_deliver.

_NO_LOOP_DELAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxDeliveriesLoop:
    """Submits exhausted messages to the loop of their consumer.

    That loop calls the handler, or dead-letters a message without attempts left; a delivery that was given
    back was no attempt. The port returns a message again until it is settled.

    Attributes:
        loops: by stream and durable; a durable that was missing at the start has none yet.
    """

    exhausted: ExhaustedMessages
    loops: Mapping[tuple[str, str], InboxConsumer]
    broker_breaker: CircuitBreaker

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops."""
        while not stop.is_set():
            try:
                fetching = call_when_available(self.exhausted.fetch, breaker=self.broker_breaker, stop=stop)
                for message in await cancel_on_stop(stop, fetching):
                    if loop := self.loops.get((message.stream, message.consumer)):
                        await loop.submit(message, self.exhausted, stop)
                    else:
                        await self.exhausted.nak(message, delay_seconds=_NO_LOOP_DELAY_SECONDS)
            except StoppedError:
                return

"""InboxConsumer: JetStream -> inbox -> handler -> ACK, each effect once.

The story of a message, in the order of this module::

    fetch     _fetch_once      as many messages as there are free slots
    record    _receive         one INSERT leases the batch and counts each attempt; duplicates end here
    call      _handle          the handler, again and again until there is an answer
    outcome   _conclude        effect, retry, or dead letter (SDS-047 POL-047-005 to 007)
    complete  completion.py    the inbox first, then ACK or NAK

The order is the guarantee. After a crash in between, the stream delivers the message again; one that the
inbox knows as processed is acknowledged without a call of the handler. Messages that the consumer will not
deliver in time come from ``rescue`` and take the same way. At each wait, a stop of the worker raises
``StoppedError``, which gives the message back.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

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
    GivenBack,
    HandlerRequest,
    InvalidMessage,
    Lease,
    LeasedElsewhere,
    LeaseLost,
    NotDelivered,
    Outcome,
    Poison,
    Retry,
    Unwritable,
    carries_no_event,
    parse_message,
)
from sea_mq_worker.inbox.rescue import LOOK_SECONDS, OrphanFinder, ReadAhead, ReturnedMessages
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.ports import EventHandler, Events, ExhaustedMessages, JetStreamConsumer, Settler
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, Permit, call_when_available
from sea_mq_worker.runtime.waiting import (
    IMMEDIATE_REDELIVERY_SECONDS,
    StoppedError,
    cancel_on_stop,
    sleep_or_stop,
)

_LARGE_BYTES = 65_536
"""The loop yields after a body above this size: hashing and checking it takes time, and many may come."""
_TOO_LARGE_ATTEMPTS = 3
"""Attempts of a message that is too large for a handler which accepts others."""
_HEARTBEATS_PER_LEASE = 3
"""Lease renewals, and in-progress signals, in the shorter of a lease and ack_wait."""
_REDELIVERIES = 2
"""A message without an outcome is looked for once it could have been delivered again so often."""
_ORPHAN_SEARCH_SECONDS = 60.0
"""Longest interval between two searches for orphans."""
_BUSY_MAX_SECONDS = 600.0
_DOUBLINGS_MAX = 10
_NO_LOOP_DELAY_SECONDS = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class InboxConsumer:
    """The loop of one durable consumer; handler, health, leases and dead letters are shared by all durables.

    Attributes:
        ack_wait_seconds: the consumer's.
        attempts_max: a message with this many attempts without an effect is dead-lettered as EXHAUSTED.
        messages_max: most delivered messages at a time.
        bytes_max: most bytes of these and of extra messages.
        calls_max: most handler calls at a time; None: the handler's client bounds them.
        siblings: the durables of this worker, which share its handler.
    """

    consumer: JetStreamConsumer
    handler: EventHandler
    health: HandlerHealth
    leases: InboxLeases
    dead_letters: DeadLetterPublisher
    backoff: Backoff
    events: Events
    broker_breaker: CircuitBreaker
    ack_wait_seconds: float
    attempts_max: int
    messages_max: int
    bytes_max: int
    calls_max: int | None
    siblings: frozenset[str]
    in_flight: InFlight = field(init=False)
    calls: CallSlots = field(init=False)
    returned: ReturnedMessages = field(init=False)
    completion: CompletionBatcher = field(init=False)
    ahead: ReadAhead = field(init=False)
    _is_fetching: bool = False
    _overlapping: set[str] = field(default_factory=set)
    _submitted: asyncio.Queue[tuple[InboundMessage, Settler]] = field(
        default_factory=lambda: asyncio.Queue(1)
    )

    def __post_init__(self) -> None:
        self.in_flight = InFlight(messages_max=self.messages_max, bytes_max=self.bytes_max)
        self.calls = CallSlots(self.in_flight.capacity if self.calls_max is None else self.calls_max)
        self.returned = ReturnedMessages(self.consumer, self.leases.clock)
        self.completion = CompletionBatcher(
            consumer=self.consumer,
            leases=self.leases,
            events=self.events,
            in_flight=self.in_flight,
            returned=self.returned,
        )
        self.ahead = ReadAhead(
            consumer=self.consumer,
            health=self.health,
            events=self.events,
            broker_breaker=self.broker_breaker,
            clock=self.leases.clock,
        )

    async def submit(self, message: InboundMessage, settler: Settler, stop: asyncio.Event) -> None:
        """Take a message that another loop fetched, once there is a slot; ``settler`` acknowledges it."""
        await cancel_on_stop(stop, self._submitted.put((message, settler)))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops; then finish the calls under way and give back the other messages."""
        drained, resumed = asyncio.Event(), asyncio.Queue[str]()
        with self.health.on_resumed(resumed.put_nowait):
            async with asyncio.TaskGroup() as background:
                background.create_task(_until_stopped(self._redeliver_resumed(resumed, stop)))
                for beat in (
                    self._send_in_progress,
                    partial(self.leases.renew, self.in_flight),
                    self._hand_over,
                ):
                    background.create_task(self._heartbeat(beat, drained))
                background.create_task(self.in_flight.wake_on_stop(stop))
                background.create_task(self.calls.end_waits_on_stop(stop))
                completing = background.create_task(self.completion.run(stop))
                try:
                    # First fetching, rescues and calls end.
                    async with asyncio.TaskGroup() as working:
                        for rescue in (self._rescue_orphans, self._rescue_submitted, self._read_ahead):
                            working.create_task(_until_stopped(rescue(stop, working)))
                        while not stop.is_set():
                            await _until_stopped(self._fetch_once(stop, working))
                    # Then each outcome is recorded.
                    await self.completion.drained()
                finally:
                    # Then the heartbeats end, which kept the leases until here.
                    drained.set()
                    completing.cancel()

    # --- Fetch: what the consumer delivers, and what it will not deliver in time.

    async def _fetch_once(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """Fetch messages for the free slots, and record them; if none come, probe the handler alone."""
        slots = await self.in_flight.wait_for_slots(stop, self.health.breaker)
        fetching = call_when_available(
            lambda: self.consumer.fetch(slots, bytes_max=self.in_flight.free_bytes),
            breaker=self.broker_breaker,
            stop=stop,
        )
        self._is_fetching = True
        messages = await cancel_on_stop(stop, fetching)
        self._is_fetching = False
        if messages:
            await self._receive(messages, self.consumer, stop, working)
        elif not self.health.breaker.has_callers:
            await self._probe_handler(stop)

    async def _probe_handler(self, stop: asyncio.Event) -> None:
        """Probe an open circuit by a connection: another worker may have the messages that opened it."""
        breaker = self.health.breaker
        if await breaker.enter(stop) is not Permit.PROBE:
            return
        if failure := await cancel_on_stop(stop, self.handler.reach()):
            breaker.record_failure(failure.error)
        else:
            breaker.record_success()

    async def _rescue_orphans(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """Handle messages that no delivery will bring, unless the handler is unreachable."""
        redelivered_seconds = _REDELIVERIES * max(self.ack_wait_seconds, self.leases.lease_seconds)
        orphans = OrphanFinder(
            consumer=self.consumer,
            leases=self.leases,
            events=self.events,
            broker_breaker=self.broker_breaker,
            older_than_seconds=redelivered_seconds,
        )
        while not stop.is_set():
            if self.health.breaker.is_closed:
                for message in await cancel_on_stop(stop, orphans.find(stop)):
                    await self.in_flight.wait_for_extra_slots(stop)
                    await self._receive([message], self.consumer, stop, working, extra=True)
            await sleep_or_stop(stop, seconds=min(_ORPHAN_SEARCH_SECONDS, redelivered_seconds))

    async def _rescue_submitted(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """Handle exhausted messages, and those that the consumer passed."""
        while not stop.is_set():
            message, settler = await cancel_on_stop(stop, self._submitted.get())
            await self.in_flight.wait_for_extra_slots(stop)
            await self._receive([message], settler, stop, working, extra=True)

    async def _read_ahead(self, stop: asyncio.Event, working: asyncio.TaskGroup) -> None:
        """While messages given back fill the consumer's max_ack_pending, handle the messages behind them."""
        while not stop.is_set():
            waiting = await cancel_on_stop(stop, self.returned.wait_for_held())
            slots = await self.in_flight.wait_for_extra_slots(stop)
            messages: Sequence[InboundMessage] = ()
            if self.health.breaker.is_closed:
                messages = await cancel_on_stop(stop, self.ahead.next(slots, waiting, stop))
            if messages:
                await self._receive(messages, self.consumer, stop, working, extra=True)
            else:
                await sleep_or_stop(stop, seconds=self.ahead.pause_seconds)

    # --- Record: lease the messages to handle, settle the others.

    async def _receive(
        self,
        messages: Sequence[InboundMessage],
        settler: Settler,
        stop: asyncio.Event,
        working: asyncio.TaskGroup,
        *,
        extra: bool = False,
    ) -> None:
        """Lease the messages in one write, and start the work on each that must be handled now."""
        items = []
        for message in messages:
            if carries_no_event(message):
                await settler.ack(message)
                self.events.emit(
                    "server_message_skipped",
                    consumer=self.consumer.name,
                    subject=message.subject,
                    stream_seq=message.seq,
                )
            elif wait := self.returned.take_back(message):
                await settler.nak(message, delay_seconds=wait)
            else:
                items.append(InFlightMessage.of(message, settler, received_at=self.leases.clock()))
                if len(message.payload) > _LARGE_BYTES:
                    await asyncio.sleep(0)
        self.in_flight.add(items, extra=extra)
        try:
            receipts = await self.leases.record(items, stop)
        except StoppedError:
            for item in items:
                await settler.nak(item.message, delay_seconds=IMMEDIATE_REDELIVERY_SECONDS)
            self.in_flight.release(items)
            return
        for item, receipt in zip(items, receipts, strict=True):
            if isinstance(receipt, Lease):
                working.create_task(self._work(item, stop))
                if len(item.message.payload) > _LARGE_BYTES:
                    await asyncio.sleep(0)
            else:
                await self._settle_duplicate(item, receipt)

    async def _settle_duplicate(
        self, item: InFlightMessage, receipt: AlreadySettled | LeasedElsewhere | ContentConflict | Unwritable
    ) -> None:
        """Settle a message that this worker must not handle now."""
        message = item.message
        match receipt:
            case AlreadySettled(consumer):
                await item.settler.ack(message)
                self._report_skipped(item, consumer)
            case LeasedElsewhere(attempts):
                await item.settler.nak(message, delay_seconds=self._busy_seconds(message, attempts))
            case ContentConflict():
                await item.settler.nak(message, delay_seconds=self.leases.lease_seconds / 2)
            case Unwritable():
                await item.settler.nak(message, delay_seconds=self._busy_seconds(message, None))
            case _:
                assert_never(receipt)
        self.in_flight.release([item])

    def _report_skipped(self, item: InFlightMessage, consumer: str) -> None:
        """Report a duplicate of what ``consumer`` brought; warn once for each consumer of another worker."""
        brought_by = "" if consumer in self.siblings else consumer
        name, message_id = self.consumer.name, item.entry.message_id
        self.events.emit("message_skipped", message_id=message_id, consumer=name, brought_by=brought_by)
        if brought_by and brought_by not in self._overlapping:
            self._overlapping.add(brought_by)
            text = (
                f"message {message_id} of consumer {name} was settled before by consumer {brought_by} of"
                " another worker: two handlers need a schema each (SEA_MQ_DATABASE_SCHEMA)"
            )
            self.events.emit("consumers_overlap", text=text)

    def _busy_seconds(self, message: InboundMessage, attempts: int | None) -> float:
        """Return a delay, so that a long lease elsewhere does not use up the message's deliveries.

        It grows with the deliveries that led to no attempt, and is constant where the attempts are unknown.
        The delay of a message that was read ahead starts lower: it fills a slot of max_ack_pending, and its
        handling has begun.
        """
        in_vain = 0 if attempts is None else max(0, message.deliveries - 1 - attempts)
        lease_seconds = self.leases.lease_seconds
        first = lease_seconds / 2
        if self.ahead.has_read(message):
            first = min(LOOK_SECONDS, first)
        return min(first * 2.0 ** min(in_vain, _DOUBLINGS_MAX), max(lease_seconds, _BUSY_MAX_SECONDS))

    # --- Call: from the lease to an outcome.

    async def _work(self, item: InFlightMessage, stop: asyncio.Event) -> None:
        try:
            async with self.calls:
                outcome = await self._handle(item, stop)
        except StoppedError as error:
            reason = str(error) or self.health.breaker.reason or "no call was free"
            outcome = GivenBack(f"the worker stopped while it waited: {reason}", IMMEDIATE_REDELIVERY_SECONDS)
        self.completion.add(item, outcome)

    async def _handle(self, item: InFlightMessage, stop: asyncio.Event) -> Outcome:
        """Open a leased message, and call the handler once its event type may be called."""
        attempts = item.lease.attempts
        if item.refusal is None and attempts > self.attempts_max:  # the body may kill the process
            detail = "its attempts ended with the worker, not with an answer"
            return await self._dead_letter(item, Reason.EXHAUSTED, detail, stop)
        parsed = item.refusal or parse_message(item.message)
        if isinstance(parsed, InvalidMessage):
            return await self._dead_letter(item, parsed.reason, parsed.detail, stop)
        wait = self.health.take_call(parsed.event_type, repeated=item.message.deliveries > 1)
        if wait is None:
            return self._give_back(item, parsed.event_type, self.health.error(parsed.event_type))
        if wait:
            await cancel_on_stop(stop, asyncio.sleep(wait))
        if attempts > 1:  # it may have ended the process of the worker or of the handler
            parsed = parsed._replace(batch_max=1)
        return await self._call(item, parsed, stop)

    async def _call(self, item: InFlightMessage, request: HandlerRequest, stop: asyncio.Event) -> Outcome:
        """Call the handler until there is an answer for this message.

        The lease is checked before each call: while the handler or the database was away, another worker
        may have leased and handled the message.
        """
        health, breaker = self.health, self.health.breaker
        while (permit := await breaker.enter(stop, leaves=lambda: item.hand_over)) is not Permit.LEFT:
            if permit is Permit.STOPPED:
                raise StoppedError(breaker.reason)
            if not await self.leases.still_leased(item, stop):
                if permit is Permit.PROBE:
                    breaker.release()
                return LeaseLost()
            with health.calling(request.event_type):
                result = await self.handler.handle_request(request)
            if isinstance(result, NotDelivered):
                health.record_not_silent()
                breaker.record_failure(result.error)
                continue
            if isinstance(result, Retry | BatchFailed) and not result.answered:
                breaker.release()  # a call that broke off does not prove that the handler is back
            else:
                health.record_not_silent()
                breaker.record_success()
            if not isinstance(result, BatchFailed):
                return await self._conclude(item, request, result, stop)
            if stop.is_set():
                raise StoppedError(result.error)
            request = request._replace(batch_max=result.batch_max)
        text = f"another worker takes messages: {breaker.reason}"
        return GivenBack(text, IMMEDIATE_REDELIVERY_SECONDS)

    # --- Outcome: processed, retried, given back or dead-lettered.

    async def _conclude(
        self,
        item: InFlightMessage,
        request: HandlerRequest,
        result: Accepted | Poison | Retry,
        stop: asyncio.Event,
    ) -> Outcome:
        """Turn the handler's result into the message's outcome; only a dead letter is written here."""
        event_type = request.event_type
        if isinstance(result, Accepted):
            self.health.record_effect(event_type)
            return result
        counts = self.health.record_failure(event_type, request.message_id, result)
        match result:
            case Poison(error) if counts:
                return await self._dead_letter(item, Reason.REJECTED, error, stop)
            case Poison(error):
                return self._give_back(item, event_type, error)
            case Retry(error, after_seconds) if not counts:
                deliveries = max(1, item.message.deliveries)  # one that was read ahead has 0
                return self._give_back(item, event_type, error, deliveries=deliveries, least=after_seconds)
            case Retry(error, after_seconds):
                if (detail := self._exhausted(item, result)) is not None:
                    return await self._dead_letter(item, Reason.EXHAUSTED, detail, stop)
                delay = max(after_seconds, self.backoff.delay_seconds(item.lease.attempts))
                return GivenBack(error, delay, least_seconds=delay, counted=True)
            case _:
                assert_never(result)

    def _exhausted(self, item: InFlightMessage, result: Retry) -> str | None:
        """Return the dead letter's detail for a message without attempts left; None: it has some."""
        attempts_max, detail = self.attempts_max, result.error
        if result.about == "size":
            detail = f"{detail}; its payload has {len(item.message.payload):,} bytes"
            if self.health.works:
                attempts_max = min(attempts_max, _TOO_LARGE_ATTEMPTS)
        return detail if item.lease.attempts >= attempts_max else None

    def _give_back(
        self, item: InFlightMessage, event_type: str, error: str, *, deliveries: int = 0, least: float = 0.0
    ) -> GivenBack:
        """Give back a message without an attempt: until its type's turn, and growing with ``deliveries``.

        Only a delivered message has a turn in the queue of a slow type.
        """
        in_line = item.message.was_delivered
        delay = self.health.delay_seconds(event_type, deliveries=deliveries, in_line=in_line)
        delay = max(delay, least)
        return GivenBack(error, delay_seconds=delay, event_type=event_type, least_seconds=least)

    async def _dead_letter(
        self, item: InFlightMessage, reason: str, detail: str, stop: asyncio.Event
    ) -> Outcome:
        return await self.dead_letters.dead_letter(item.message, item.lease, reason, detail, stop)

    # --- Meanwhile: heartbeats, and what ends a wait sooner.

    async def _heartbeat(self, beat: Callable[[], Awaitable[None]], drained: asyncio.Event) -> None:
        """Repeat ``beat``; each beat has a heartbeat of its own, so that one can hang alone."""
        seconds = min(self.ack_wait_seconds, self.leases.lease_seconds) / _HEARTBEATS_PER_LEASE
        while not drained.is_set():
            await sleep_or_stop(drained, seconds=seconds)
            await beat()

    async def _send_in_progress(self) -> None:
        """Keep messages from being delivered again, but none that another worker may lease."""
        for item in list(self.in_flight):
            if self.leases.may_hold(item):
                await item.settler.in_progress(item.message)

    async def _hand_over(self) -> None:
        """Give back messages that wait for an unreachable handler, if another worker takes messages.

        That worker may have a handler of its own. The message with the fewest deliveries stays longest, to
        try this worker's handler. Its time doubles with its deliveries, so that several failing workers do
        not pass it around until max_deliver.
        """
        breaker = self.health.breaker
        items = [item for item in self.in_flight if item.is_leased]
        if breaker.is_closed or self._is_fetching or not items:
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

    async def _redeliver_resumed(self, resumed: asyncio.Queue[str], stop: asyncio.Event) -> None:
        """Request redelivery of the messages given back of each event type whose slow pace ended."""
        while not stop.is_set():
            event_type = await cancel_on_stop(stop, resumed.get())
            for message, settler, delay_seconds in self.returned.take(event_type):
                await settler.nak(message, delay_seconds=delay_seconds)


async def recover_exhausted(
    exhausted: ExhaustedMessages,
    loops: dict[tuple[str, str], InboxConsumer],
    breaker: CircuitBreaker,
    stop: asyncio.Event,
) -> None:
    """Submit the messages that reached max_deliver to the loops of their consumers, until the worker stops.

    A loop calls the handler, or dead-letters a message without attempts left; a delivery that was given back
    was no attempt. The port returns a message again until it is settled. ``loops`` are named by stream and
    durable; a durable that was missing at the start has none yet.
    """
    with contextlib.suppress(StoppedError):
        while not stop.is_set():
            fetching = call_when_available(exhausted.fetch, breaker=breaker, stop=stop)
            for message in await cancel_on_stop(stop, fetching):
                if loop := loops.get((message.stream, message.consumer)):
                    await loop.submit(message, exhausted, stop)
                else:
                    await exhausted.nak(message, delay_seconds=_NO_LOOP_DELAY_SECONDS)


async def _until_stopped(work: Awaitable[None]) -> None:
    with contextlib.suppress(StoppedError):
        await work

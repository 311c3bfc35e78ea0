"""Batched recording of outcomes: first in the inbox, then the acknowledgement to the server.

A lost lease can mean that another worker has the message. It can also mean that a failover lost the row, or
the response to an earlier write of the outcome. So the message is recorded once more, and left to the other
worker only where that one really holds it.

An example with at most 10 in-flight messages, so that five outcomes make a batch::

    +0.0 ms  add(A)                the timer starts: 5 ms
    +1.0 ms  add(B), add(C)
    +2.0 ms  add(D), add(E)        five: one UPDATE for all, then five acknowledgements
    +2.1 ms  add(F)                waits for the write under way, and at most 5 ms for others

    UPDATE reports A B C D as leased   -> ACK A B C D
    E is missing: record it once more
        leased again                   -> UPDATE E, ACK E
        already settled                -> ACK E
        leased by another worker       -> no reply: that worker settles it
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from sea_mq_worker.inbox.leases import InboxLeases, InFlight, InFlightMessage
from sea_mq_worker.inbox.message import (
    AlreadySettled,
    ContentConflict,
    DeadLettered,
    FailedHandling,
    GivenBack,
    HandlingOutcome,
    Leased,
    LeasedElsewhere,
    LeaseLost,
    Processed,
    Unwritable,
)
from sea_mq_worker.inbox.rescue import ReturnedMessages
from sea_mq_worker.ports import JetStreamConsumer, Observer, Settler
from sea_mq_worker.runtime.row_isolation import report_refused, write_isolated
from sea_mq_worker.runtime.waiting import IMMEDIATE_REDELIVERY_SECONDS, StoppedError
from sea_mq_worker.telemetry.events import LeasesLost, MessageGivenBack, MessageProcessed, MessageRetried


@dataclass(frozen=True, slots=True)
class CompletedMessage:
    """The inbox has the outcome already, from whichever worker: acknowledge."""


_Settlement: TypeAlias = Processed | GivenBack | DeadLettered | CompletedMessage
_Closed: TypeAlias = tuple[InFlightMessage, Leased, HandlingOutcome]
_Settled: TypeAlias = tuple[InFlightMessage, Leased, _Settlement]

_LINGER_SECONDS = 0.005
"""Longest wait of an outcome for others, so that several share one write."""


@dataclass(slots=True, kw_only=True)
class CompletionBatcher:
    """Collects outcomes while more are expected, and records them together."""

    consumer: JetStreamConsumer
    leases: InboxLeases
    observer: Observer
    in_flight: InFlight
    returned: ReturnedMessages
    _waiting: list[_Closed] = field(default_factory=list)
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, item: InFlightMessage, run: Leased, outcome: HandlingOutcome) -> None:
        """Queue an outcome; it is recorded within milliseconds."""
        self._waiting.append((item, run, outcome))
        self._idle.clear()
        self._flush_if_due()

    async def drained(self) -> None:
        """Wait until every added outcome is recorded."""
        await self._idle.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Record outcomes until cancelled, and release their messages."""
        while True:
            if self._waiting:
                self._flush_if_due()
            else:
                self._idle.set()
            await self._due.wait()
            batch = self._take()
            await self._record_and_settle(batch, stop)
            self.in_flight.release([item for item, _, _ in batch])

    def _flush_if_due(self) -> None:
        if len(self._waiting) >= self.in_flight.completion_batch:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._due.set)

    def _take(self) -> Sequence[_Closed]:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        return batch

    async def _record_and_settle(self, batch: Sequence[_Closed], stop: asyncio.Event) -> None:
        try:
            recorded, lost = await self._record(batch, stop)
            again, others = await self._record_again(lost, stop)
        except StoppedError:
            for item, _, _ in batch:
                await self._settler(item).nak(item.message, delay_seconds=IMMEDIATE_REDELIVERY_SECONDS)
            return
        settled = [*recorded, *again]
        await self._acknowledge(settled)
        for item, run, outcome in settled:
            await self._return_or_report(item, run, outcome)
        if others:
            self.observer.observe(LeasesLost(side="inbox", count=others))

    async def _record(
        self, batch: Sequence[_Closed], stop: asyncio.Event
    ) -> tuple[Sequence[_Settled], Sequence[_Closed]]:
        """Write to the inbox; return the outcomes that are recorded now, and those without a lease.

        An outcome that the inbox refuses is in neither: its message is not acknowledged, and is delivered
        again, when the cause may be fixed.
        """
        kept, refused = await self._write(batch, stop)
        recorded: list[_Settled] = []
        lost: list[_Closed] = []
        for item, run, outcome in batch:
            if not isinstance(outcome, LeaseLost) and run.lease.message_id in kept:
                recorded.append((item, run, outcome))
            elif run.lease.message_id not in refused:
                lost.append((item, run, outcome))
        return recorded, lost

    async def _record_again(
        self, lost: Sequence[_Closed], stop: asyncio.Event
    ) -> tuple[Sequence[_Settled], int]:
        """Record outcomes under a new lease where none holds; return the settled and the number of lost."""
        if not lost:
            return (), 0
        receipts = await self.leases.lease([item for item, _, _ in lost], stop)
        known: list[_Settled] = []
        leased: list[_Closed] = []
        for (item, run, outcome), receipt in zip(lost, receipts, strict=True):
            match receipt:
                case Leased():
                    leased.append((item, receipt, _with_new_lease(outcome, run, receipt)))
                case AlreadySettled():
                    known.append((item, run, CompletedMessage()))
                case LeasedElsewhere() | ContentConflict() | Unwritable():
                    pass
                case _:
                    assert_never(receipt)
        recorded, _ = await self._record(leased, stop)
        return [*known, *recorded], len(lost) - len(recorded)

    async def _write(
        self, batch: Sequence[_Closed], stop: asyncio.Event
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Write outcomes; return the message ids whose lease still held, and those that the inbox refuses."""
        processed = [run.lease for _, run, outcome in batch if isinstance(outcome, Processed)]
        failed = [
            FailedHandling(lease=run.lease, error=outcome.error, counted=outcome.counted)
            for _, run, outcome in batch
            if isinstance(outcome, GivenBack)
        ]
        kept = {run.lease.message_id for _, run, outcome in batch if isinstance(outcome, DeadLettered)}
        inbox, breaker = self.leases.inbox, self.leases.store_breaker
        done = await write_isolated(processed, inbox.mark_processed_batch, breaker=breaker, stop=stop)
        undone = await write_isolated(failed, inbox.record_error_batch, breaker=breaker, stop=stop)
        kept = kept.union(*(answer for _, answer in (*done.answers, *undone.answers)))
        refused = [(lease.message_id, error) for lease, error in done.refused]
        refused += [(failure.lease.message_id, error) for failure, error in undone.refused]
        for message_id, error in refused:
            report_refused(self.observer, f"message {message_id}", error)
        return frozenset(kept), frozenset(message_id for message_id, _ in refused)

    def _settler(self, item: InFlightMessage) -> Settler:
        return item.settler or self.consumer

    async def _acknowledge(self, settled: Sequence[_Settled]) -> None:
        """ACK the finished messages; those of the consumer, nearly all, in one write."""
        finished = [item for item, _, outcome in settled if not isinstance(outcome, GivenBack)]
        await self.consumer.ack_batch([item.message for item in finished if item.settler is None])
        for item in finished:
            if item.settler is not None:
                await item.settler.ack(item.message)

    async def _return_or_report(self, item: InFlightMessage, run: Leased, outcome: _Settlement) -> None:
        """NAK a message without an effect; report what became of it."""
        settler = self._settler(item)
        match outcome:
            case Processed(status):
                self._report_processed(item, run, status)
            case DeadLettered() | CompletedMessage():
                pass
            case GivenBack():
                await settler.nak(item.message, delay_seconds=outcome.delay_seconds)
                self.returned.add(item.message, outcome, item.settler)
                self._report_given_back(run, outcome)
            case _:
                assert_never(outcome)

    def _report_given_back(self, run: Leased, outcome: GivenBack) -> None:
        known = {"message_id": run.lease.message_id, "consumer": self.consumer.name, "error": outcome.error}
        delay = outcome.delay_seconds
        if outcome.counted:
            self.observer.observe(MessageRetried(**known, attempts=run.attempts, delay_seconds=delay))
        else:
            self.observer.observe(MessageGivenBack(**known, delay_seconds=delay))

    def _report_processed(self, item: InFlightMessage, run: Leased, status: int) -> None:
        self.observer.observe(
            MessageProcessed(
                message_id=run.lease.message_id,
                consumer=self.consumer.name,
                subject=item.message.subject,
                status=status,
                seconds=self.leases.clock() - item.received_at,
            )
        )


def _with_new_lease(outcome: HandlingOutcome, lost: Leased, now: Leased) -> HandlingOutcome:
    """Return the outcome for a new lease, which has counted another attempt unless the row was lost."""
    match outcome:
        case LeaseLost():
            return GivenBack("its lease was lost, and no other worker had it", IMMEDIATE_REDELIVERY_SECONDS)
        case GivenBack(counted=True) if now.attempts > lost.attempts:
            return replace(outcome, counted=False)
        case Processed() | DeadLettered() | GivenBack():
            return outcome
        case _:
            assert_never(outcome)

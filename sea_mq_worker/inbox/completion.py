"""Batched recording of outcomes: first in the inbox, then the acknowledgement to the server.

Each recorded outcome is also reported: message_processed, message_retried or message_given_back.

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
from functools import partial
from typing import NamedTuple, assert_never

from sea_mq_worker.inbox.leases import InboxLeases, InFlight, InFlightMessage
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    ContentConflict,
    DeadLettered,
    GivenBack,
    Lease,
    LeasedElsewhere,
    LeaseLost,
    Outcome,
    Unwritable,
)
from sea_mq_worker.inbox.rescue import ReturnedMessages
from sea_mq_worker.ports import Events, JetStreamConsumer
from sea_mq_worker.runtime.row_isolation import report_refused, write_isolated
from sea_mq_worker.runtime.waiting import IMMEDIATE_REDELIVERY_SECONDS, StoppedError

_LINGER_SECONDS = 0.005
"""Longest wait of an outcome for others, so that several share one write."""
_FREE_AGAIN = GivenBack("its lease was lost, and no other worker had it", IMMEDIATE_REDELIVERY_SECONDS)


class _Done(NamedTuple):
    item: InFlightMessage
    outcome: Outcome
    counted_twice: bool = False
    """An earlier lease counted the attempt, and so did the present one: the row takes one back."""


@dataclass(slots=True, kw_only=True)
class CompletionBatcher:
    """Collects outcomes while more are expected, and records them together."""

    consumer: JetStreamConsumer
    leases: InboxLeases
    events: Events
    in_flight: InFlight
    returned: ReturnedMessages
    _waiting: list[_Done] = field(default_factory=list)
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, item: InFlightMessage, outcome: Outcome) -> None:
        """Queue an outcome; it is recorded within milliseconds."""
        self._waiting.append(_Done(item, outcome))
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
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            batch, self._waiting = self._waiting, []
            try:
                settled = await self._record(batch, stop)
            except StoppedError:
                for done in batch:
                    await done.item.settler.nak(done.item.message, delay_seconds=IMMEDIATE_REDELIVERY_SECONDS)
            else:
                await self._reply_and_report(settled)
            self.in_flight.release([done.item for done in batch])

    def _flush_if_due(self) -> None:
        if len(self._waiting) >= self.in_flight.completion_batch:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._due.set)

    async def _record(self, batch: Sequence[_Done], stop: asyncio.Event) -> Sequence[_Done]:
        """Write outcomes, once more where a lease was lost; return those that this worker may settle.

        An outcome that the inbox refuses is not settled: its message is delivered again, when the cause may
        be fixed.
        """
        recorded, lost = await self._write(batch, stop)
        if not lost:
            return recorded
        # lease() replaces what the item knows of its lease.
        before = [(item.lease.attempts, self.leases.surely_holds(item)) for item, _, _ in lost]
        receipts = await self.leases.lease([done.item for done in lost], stop)
        again, others = [], 0
        for (item, outcome, _), (attempts, is_own), receipt in zip(lost, before, receipts, strict=True):
            match receipt:
                case AlreadySettled():
                    recorded.append(_Done(item, receipt))
                    others += not is_own
                case Lease() if isinstance(outcome, LeaseLost):
                    again.append(_Done(item, _FREE_AGAIN))
                case Lease():
                    again.append(_Done(item, outcome, counted_twice=receipt.attempts > attempts))
                case Unwritable():  # lease() has reported it
                    pass
                case LeasedElsewhere() | ContentConflict():
                    others += 1
                case _:
                    assert_never(receipt)
        second, lost_again = await self._write(again, stop)
        if others := others + len(lost_again):
            self.events.emit("leases_lost", side="inbox", count=others)
        return recorded + second

    async def _write(self, batch: Sequence[_Done], stop: asyncio.Event) -> tuple[list[_Done], list[_Done]]:
        """Write outcomes; return those that are recorded now, and those whose lease held no more."""
        inbox, breaker = self.leases.inbox, self.leases.store_breaker
        effects = [item.lease for item, outcome, _ in batch if isinstance(outcome, Accepted)]
        failures = [
            (item.lease, replace(outcome, counted=False) if twice else outcome)
            for item, outcome, twice in batch
            if isinstance(outcome, GivenBack)
        ]
        marked = await write_isolated(effects, inbox.mark_processed_batch, breaker=breaker, stop=stop)
        noted = await write_isolated(failures, inbox.record_error_batch, breaker=breaker, stop=stop)
        kept: set[str] = set().union(*(ids for _, ids in (*marked.answers, *noted.answers)))
        refused = {lease.message_id: error for lease, error in marked.refused}
        refused |= {lease.message_id: error for (lease, _), error in noted.refused}
        for message_id, error in refused.items():
            report_refused(self.events, f"message {message_id}", error)
        recorded, lost = [], []
        for done in batch:
            message_id = done.item.entry.message_id
            held = message_id in kept and not isinstance(done.outcome, LeaseLost)
            if held or isinstance(done.outcome, DeadLettered):
                recorded.append(done)
            elif message_id not in refused:
                lost.append(done)
        return recorded, lost

    async def _reply_and_report(self, settled: Sequence[_Done]) -> None:
        """ACK the finished messages, those of the consumer in one write; NAK those without an effect."""
        finished = [item for item, outcome, _ in settled if not isinstance(outcome, GivenBack)]
        await self.consumer.ack_batch([item.message for item in finished if item.settler is self.consumer])
        for item in finished:
            if item.settler is not self.consumer:
                await item.settler.ack(item.message)
        consumer = self.consumer.name
        accepted: dict[int, list[InFlightMessage]] = {}
        for item, outcome, twice in settled:
            match outcome:
                case Accepted(status):
                    accepted.setdefault(status, []).append(item)
                case GivenBack(error, delay):
                    await item.settler.nak(item.message, delay_seconds=delay)
                    self.returned.add(item.message, outcome, item.settler)
                    about = {"message_id": item.entry.message_id, "consumer": consumer, "error": error}
                    if outcome.counted:
                        attempts = item.lease.attempts - twice
                        self.events.emit("message_retried", **about, attempts=attempts, delay_seconds=delay)
                    else:
                        self.events.emit("message_given_back", **about, delay_seconds=delay)
                case DeadLettered() | AlreadySettled() | LeaseLost():
                    pass
                case _:
                    assert_never(outcome)
        now = self.leases.clock()
        for status, items in accepted.items():
            self.events.emit(
                "message_processed",
                consumer=consumer,
                status=status,
                count=len(items),
                durations=[now - item.received_at for item in items],
                each=partial(_each_processed, items, consumer, status, now),
            )


def _each_processed(
    items: Sequence[InFlightMessage], consumer: str, status: int, now: float
) -> list[dict[str, object]]:
    return [
        {
            "message_id": item.entry.message_id,
            "consumer": consumer,
            "subject": item.message.subject,
            "status": status,
            "seconds": now - item.received_at,
        }
        for item in items
    ]

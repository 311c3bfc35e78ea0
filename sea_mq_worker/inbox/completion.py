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
from functools import partial
from typing import NamedTuple, assert_never

from sea_mq_worker.inbox.leases import InboxLeases, InFlight, InFlightMessage
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    DeadLettered,
    FailedHandling,
    GivenBack,
    Leased,
    LeaseLost,
    Outcome,
)
from sea_mq_worker.inbox.rescue import ReturnedMessages
from sea_mq_worker.ports import Events, JetStreamConsumer
from sea_mq_worker.runtime.row_isolation import report_refused, write_isolated
from sea_mq_worker.runtime.waiting import IMMEDIATE_REDELIVERY_SECONDS, StoppedError

_LINGER_SECONDS = 0.005
"""Longest wait of an outcome for others, so that several share one write."""


class _Done(NamedTuple):
    """A message with its outcome, and the lease under which that is recorded."""

    id: str
    item: InFlightMessage
    lease: Leased
    outcome: Outcome


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

    def add(self, item: InFlightMessage, lease: Leased, outcome: Outcome) -> None:
        """Queue an outcome; it is recorded within milliseconds."""
        self._waiting.append(_Done(lease.lease.message_id, item, lease, outcome))
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
        receipts = await self.leases.lease([done.item for done in lost], stop)
        again = []
        for done, receipt in zip(lost, receipts, strict=True):
            if isinstance(receipt, Leased):
                again.append(_under(receipt, done))
            elif isinstance(receipt, AlreadySettled):
                recorded.append(done._replace(outcome=receipt))
        second, _ = await self._write(again, stop)
        if others := len(lost) - len(second):
            self.events.emit("leases_lost", side="inbox", count=others)
        return recorded + second

    async def _write(self, batch: Sequence[_Done], stop: asyncio.Event) -> tuple[list[_Done], list[_Done]]:
        """Write outcomes; return those that are recorded now, and those whose lease held no more."""
        inbox, breaker = self.leases.inbox, self.leases.store_breaker
        effects = [done.lease.lease for done in batch if isinstance(done.outcome, Accepted)]
        failures = [
            FailedHandling(lease=done.lease.lease, error=done.outcome.error, counted=done.outcome.counted)
            for done in batch
            if isinstance(done.outcome, GivenBack)
        ]
        marked = await write_isolated(effects, inbox.mark_processed_batch, breaker=breaker, stop=stop)
        noted = await write_isolated(failures, inbox.record_error_batch, breaker=breaker, stop=stop)
        kept: set[str] = set().union(*(ids for _, ids in (*marked.answers, *noted.answers)))
        refused = {lease.message_id: error for lease, error in marked.refused}
        refused |= {failure.lease.message_id: error for failure, error in noted.refused}
        for message_id, error in refused.items():
            report_refused(self.events, f"message {message_id}", error)
        recorded, lost = [], []
        for done in batch:
            held = done.id in kept and not isinstance(done.outcome, LeaseLost)
            if held or isinstance(done.outcome, DeadLettered):
                recorded.append(done)
            elif done.id not in refused:
                lost.append(done)
        return recorded, lost

    async def _reply_and_report(self, settled: Sequence[_Done]) -> None:
        """ACK the finished messages, those of the consumer in one write; NAK those without an effect."""
        finished = [done.item for done in settled if not isinstance(done.outcome, GivenBack)]
        await self.consumer.ack_batch([item.message for item in finished if item.settler is self.consumer])
        for item in finished:
            if item.settler is not self.consumer:
                await item.settler.ack(item.message)
        consumer = self.consumer.name
        accepted: dict[int, list[_Done]] = {}
        for done in settled:
            item, outcome = done.item, done.outcome
            match outcome:
                case Accepted(status):
                    accepted.setdefault(status, []).append(done)
                case GivenBack(error, delay):
                    await item.settler.nak(item.message, delay_seconds=delay)
                    self.returned.add(item.message, outcome, item.settler)
                    about = {"message_id": done.id, "consumer": consumer, "error": error}
                    if outcome.counted:
                        attempts = done.lease.attempts
                        self.events.emit("message_retried", **about, attempts=attempts, delay_seconds=delay)
                    else:
                        self.events.emit("message_given_back", **about, delay_seconds=delay)
                case DeadLettered() | AlreadySettled() | LeaseLost():
                    pass
                case _:
                    assert_never(outcome)
        now = self.leases.clock()
        for status, processed in accepted.items():
            self.events.emit(
                "message_processed",
                consumer=consumer,
                status=status,
                count=len(processed),
                durations=[now - done.item.received_at for done in processed],
                each=partial(_each_processed, processed, consumer, status, now),
            )


def _each_processed(
    processed: Sequence[_Done], consumer: str, status: int, now: float
) -> list[dict[str, object]]:
    return [
        {
            "message_id": done.id,
            "consumer": consumer,
            "subject": done.item.message.subject,
            "status": status,
            "seconds": now - done.item.received_at,
        }
        for done in processed
    ]


def _under(lease: Leased, done: _Done) -> _Done:
    """Return the outcome under a new lease, which has counted another attempt unless the row was lost."""
    outcome = done.outcome
    if isinstance(outcome, LeaseLost):
        outcome = GivenBack("its lease was lost, and no other worker had it", IMMEDIATE_REDELIVERY_SECONDS)
    elif isinstance(outcome, GivenBack) and outcome.counted and lease.attempts > done.lease.attempts:
        outcome = replace(outcome, counted=False)
    return done._replace(lease=lease, outcome=outcome)

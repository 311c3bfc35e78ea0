"""Endings of messages, recorded in batches as they come: first the inbox, then the acknowledgement."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from sea_mq_worker.application.gate import Gate
from sea_mq_worker.application.pacing import AT_ONCE_SECONDS, StoppedError, unless_stopped
from sea_mq_worker.application.patience import patiently
from sea_mq_worker.application.reception import InHand
from sea_mq_worker.domain.facts import LeasesLost, MessageProcessed, MessageRetried
from sea_mq_worker.domain.outcomes import DeadLettered, Ending, LeaseLost, Processed, Retried
from sea_mq_worker.domain.receipts import FailedHandling, Run
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.jetstream import JetStreamConsumer
from sea_mq_worker.ports.observer import Observer

_Closed: TypeAlias = tuple[InHand, Run, Ending]


@dataclass(slots=True, kw_only=True)
class Closing:
    """Collects endings while one round trip is under way, and records them together in the next."""

    consumer: JetStreamConsumer
    inbox: InboxRepository
    observer: Observer
    store_gate: Gate
    clock: Callable[[], float]
    _waiting: list[_Closed] = field(default_factory=list)
    _added: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, item: InHand, run: Run, ending: Ending) -> None:
        """Take an ending; it is recorded soon."""
        self._waiting.append((item, run, ending))
        self._idle.clear()
        self._added.set()

    async def drained(self) -> None:
        """Wait until every ending that was added is recorded."""
        await self._idle.wait()

    async def run(
        self, over: asyncio.Event, stop: asyncio.Event, let_go: Callable[[Sequence[InHand]], None]
    ) -> None:
        """Record endings until ``over``."""
        while not over.is_set():
            self._added.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                await self._close(batch, stop)
                let_go([item for item, _, _ in batch])
                continue
            self._idle.set()
            try:
                await unless_stopped(over, self._added.wait())
            except StoppedError:
                return

    async def _close(self, batch: Sequence[_Closed], stop: asyncio.Event) -> None:
        try:
            kept = await self._record(batch, stop)
        except StoppedError:
            for item, _, _ in batch:
                await self.consumer.nak(item.message, delay_seconds=AT_ONCE_SECONDS)
            return
        lost = 0
        for item, run, ending in batch:
            if isinstance(ending, LeaseLost) or run.lease.message_id not in kept:
                lost += 1
            else:
                await self._acknowledge(item, run, ending)
        if lost:
            self.observer.observe(LeasesLost(side="inbox", count=lost))

    async def _record(self, batch: Sequence[_Closed], stop: asyncio.Event) -> frozenset[str]:
        """Write to the inbox; return the message ids whose lease still held."""
        processed = [run.lease for _, run, ending in batch if isinstance(ending, Processed)]
        failed = [
            FailedHandling(lease=run.lease, error=ending.error, counted=ending.counted)
            for _, run, ending in batch
            if isinstance(ending, Retried)
        ]
        kept = {run.lease.message_id for _, run, ending in batch if isinstance(ending, DeadLettered)}
        if processed:
            kept |= await patiently(
                lambda: self.inbox.mark_processed(processed), gate=self.store_gate, stop=stop
            )
        if failed:
            kept |= await patiently(lambda: self.inbox.record_error(failed), gate=self.store_gate, stop=stop)
        return frozenset(kept)

    async def _acknowledge(self, item: InHand, run: Run, ending: Processed | Retried | DeadLettered) -> None:
        match ending:
            case Processed(status):
                await self.consumer.ack(item.message)
                self._report_processed(item, run, status)
            case DeadLettered():
                await self.consumer.ack(item.message)
            case Retried(error, delay_seconds):
                await self.consumer.nak(item.message, delay_seconds=delay_seconds)
                self.observer.observe(
                    MessageRetried(
                        message_id=run.lease.message_id,
                        consumer=self.consumer.name,
                        error=error,
                        attempts=run.attempts,
                        delay_seconds=delay_seconds,
                    )
                )
            case _:
                assert_never(ending)

    def _report_processed(self, item: InHand, run: Run, status: int) -> None:
        self.observer.observe(
            MessageProcessed(
                message_id=run.lease.message_id,
                consumer=self.consumer.name,
                subject=item.message.subject,
                status=status,
                seconds=self.clock() - item.received_at,
            )
        )

"""OutboxPublisher: outbox -> JetStream, at least once, and once inside the stream's duplicate window.

The order of steps is the guarantee: claim (which counts the attempt), publish, wait for the stream's
acknowledgement, settle. A crash in between publishes the same message id again, and the stream drops it.
Nothing is settled as published that the stream has not confirmed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, Permit
from sea_mq_worker.application.claim_size import ClaimSize, MemoryBudget
from sea_mq_worker.application.outbox.batch_publisher import BatchPublisher
from sea_mq_worker.application.outbox.settlement import Settlement
from sea_mq_worker.application.row_isolation import report_refused
from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.domain.errors import DependencyError, StoreTooSlowError
from sea_mq_worker.domain.events import NOTHING_CLAIMED, Claim
from sea_mq_worker.ports.outbox import OutboxRepository
from sea_mq_worker.ports.wakeup import Wakeup

_POLL_FIRST_SECONDS = 0.003
"""After a claim that found something: at a steady rate half of this is what an event waits for its claim."""
_POLL_JITTER = 0.25
_BESIDE_PAYLOAD_MAX = 2**20
"""Bytes of headers, metadata and names that are read beside a payload as large as the server takes."""
_NOT_CONNECTED = "not connected to NATS"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPublisher:
    """One lane of the relay.

    Attributes:
        room: bytes that the claims of all lanes share.
        batch_max: events in a claim.
        batch_bytes_max: bytes of all events of a claim.
        batches_max: claims worked on side by side, so that one is claimed while another is published.
        poll_seconds: longest wait between two claims of an idle lane.
    """

    outbox: OutboxRepository
    publishing: BatchPublisher
    settlement: Settlement
    wakeup: Wakeup
    broker_breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    room: MemoryBudget
    batch_max: int
    batch_bytes_max: int
    batches_max: int
    poll_seconds: float

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop, then finish the claims in hand."""
        places = asyncio.Semaphore(self.batches_max)
        size = ClaimSize(self.batch_max, self.batch_bytes_max)
        idle_seconds = _POLL_FIRST_SECONDS
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                await places.acquire()
                reserved = size.bytes
                await self.room.take(reserved)
                claim, claimed_at = await self._claim(size, stop)
                self.room.give_back(reserved - claim.bytes)
                if claim.events:
                    idle_seconds = _POLL_FIRST_SECONDS
                    task = group.create_task(self._work(claim, claimed_at, stop))
                    task.add_done_callback(lambda _: places.release())
                else:
                    places.release()
                if not claim.more:
                    await self._sleep(stop, idle_seconds)
                    idle_seconds = min(idle_seconds * 2, self.poll_seconds)

    async def _sleep(self, stop: asyncio.Event, seconds: float) -> None:
        """Wait for a commit; relays that were woken together do not stay together."""
        seconds *= 1.0 - _POLL_JITTER * self.publishing.policy.backoff.random()
        with contextlib.suppress(StoppedError):
            await cancel_on_stop(stop, self.wakeup.wait(timeout_seconds=seconds))

    async def _work(self, claim: Claim, claimed_at: float, stop: asyncio.Event) -> None:
        try:
            verdicts = await self.publishing.publish(claim.events, claimed_at=claimed_at, stop=stop)
            await self.settlement.settle(self.outbox, claim, verdicts, claimed_at=claimed_at)
        finally:
            self.room.give_back(claim.bytes)

    async def _claim(self, size: ClaimSize, stop: asyncio.Event) -> tuple[Claim, float]:
        """Claim through both gates: an outage uses up no attempts, and an unanswered probe a single one.

        The moment that comes with it is that of the claim itself: a lease does not run while a gate is shut.
        """
        if not self.publishing.publisher.connected:
            self.broker_breaker.record_failure(_NOT_CONNECTED)
        broker = await self.broker_breaker.enter(stop)
        if broker is Permit.PROBE and not self.publishing.publisher.connected:
            self.broker_breaker.record_failure(_NOT_CONNECTED)
            return NOTHING_CLAIMED, self.clock()
        store = await self.store_breaker.enter(stop)
        if stop.is_set() or Permit.STOPPED in {broker, store}:
            return NOTHING_CLAIMED, self.clock()
        claimed_at = self.clock()
        probe_batch_max = min(size.events, self.broker_breaker.probe_batch_max)
        claim = await self._find_unpublished(size, probe_batch_max if broker is Permit.PROBE else size.events)
        if broker is Permit.PROBE and not claim.events:
            self._nothing_to_probe_with()
        return claim, claimed_at

    def _nothing_to_probe_with(self) -> None:
        """Where all that was wrong is that there was no connection, nothing is wrong any more."""
        if self.broker_breaker.reason == _NOT_CONNECTED:
            self.broker_breaker.record_success()
        else:
            self.broker_breaker.release()

    async def _find_unpublished(self, size: ClaimSize, batch_max: int) -> Claim:
        """Claim what can be read in time: after a time-out half as much is asked for, down to one event."""
        event_bytes_max = self.publishing.publisher.max_payload + _BESIDE_PAYLOAD_MAX
        try:
            claim = await self.outbox.find_unpublished(
                batch_max=batch_max, bytes_max=size.bytes, event_bytes_max=event_bytes_max
            )
        except DependencyError as error:
            if isinstance(error, StoreTooSlowError):
                size.halve()
            self.store_breaker.record_exception(error)
            return NOTHING_CLAIMED
        self.store_breaker.record_success()
        for event_id, refusal in claim.refused:
            report_refused(self.settlement.observer, f"event {event_id}", refusal)
        size.learn(claim)
        return claim

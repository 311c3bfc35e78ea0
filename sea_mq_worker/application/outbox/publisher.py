"""OutboxPublisher: outbox -> JetStream, at least once, and once inside the stream's duplicate window.

The order of steps is the guarantee: claim (which counts the attempt), publish, wait for the stream's
acknowledgement, settle. After a crash in between, the worker publishes the same message id again, and the
stream drops the repeat. An event is settled as published only after the stream has confirmed it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, Permit
from sea_mq_worker.application.claim_size import ClaimSize, MemoryBudget
from sea_mq_worker.application.outbox.batch_publisher import BatchPublisher
from sea_mq_worker.application.outbox.deferred import DeferredSettlements
from sea_mq_worker.application.outbox.pace import Pace
from sea_mq_worker.application.outbox.settlement import Settlement
from sea_mq_worker.application.row_isolation import report_refused
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.errors import DependencyError, StoreTooSlowError
from sea_mq_worker.domain.events import NOTHING_CLAIMED, Claim
from sea_mq_worker.domain.outcomes import Published
from sea_mq_worker.ports.lane_turn import LaneTurn
from sea_mq_worker.ports.outbox import OutboxRepository

_STAND_BY_SECONDS = 1.5
"""Longest wait before the next look whether another worker still serves the lane."""
_YIELD_SECONDS = 2.0
"""Time that a worker which cannot publish leaves the lane to others; each of them looks within it."""
_QUIET_SECONDS = 30.0
"""Longer than an event without an acknowledgement waits for its next attempt."""
_BESIDE_PAYLOAD_MAX = 2**20
"""Bytes of headers, metadata and names that a claim reads beside a payload of the server's max_payload."""
_NOT_CONNECTED = "not connected to NATS"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPublisher:
    """One lane of the outbound side.

    Attributes:
        room: bytes that the claims of all lanes share.
        batch_max: most events of a claim.
        batch_bytes_max: most bytes of all events of a claim.
        batches_max: most claims at a time, so that one is claimed while another is published.
        deferred: settles published events of small claims together; None in the lane with ordering keys,
            where the next event of a key waits for the settlement.
        turn: the worker's turn to claim, if workers take turns.
    """

    outbox: OutboxRepository
    publishing: BatchPublisher
    settlement: Settlement
    deferred: DeferredSettlements | None
    pace: Pace
    broker_breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    room: MemoryBudget
    batch_max: int
    batch_bytes_max: int
    batches_max: int
    turn: LaneTurn | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops, then finish the claims in progress."""
        places = asyncio.Semaphore(self.batches_max)
        size = ClaimSize(self.batch_max, self.batch_bytes_max)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pace.end_with(stop))
            while not stop.is_set():
                await places.acquire()
                await self._wait_for_turn(stop)
                reserved = size.bytes
                await self.room.take(reserved)
                claim, claimed_at = await self._claim(size, stop)
                self.room.give_back(reserved - claim.bytes)
                if claim.events:
                    group.create_task(self._work(claim, claimed_at, places, stop))
                else:
                    places.release()
                if not claim.more:
                    await self.pace.pause(stop, found=bool(claim.events))
            if self.turn:
                await self.turn.leave()

    async def _wait_for_turn(self, stop: asyncio.Event) -> None:
        """Wait until this worker shall claim; while probes of a dependency fail, let others serve the lane.

        If nobody has taken it after a while, nobody else wants it, and this worker probes on.
        """
        if self.turn and self._failing():
            await self.turn.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_YIELD_SECONDS):
                    while not stop.is_set() and (breaker := self._failing()):
                        await breaker.wait_for_probe(unless=stop)
        while self.turn and not stop.is_set() and not await self.turn.take():
            await sleep_or_stop(stop, seconds=self.pace.jittered(_STAND_BY_SECONDS))

    def _failing(self) -> CircuitBreaker | None:
        """Return the circuit of a dependency that failed and then failed a probe, too."""
        return next((each for each in (self.broker_breaker, self.store_breaker) if each.failures > 1), None)

    async def _work(
        self, claim: Claim, claimed_at: float, places: asyncio.Semaphore, stop: asyncio.Event
    ) -> None:
        try:
            is_deferred = await self._publish(claim, claimed_at, stop)
        finally:
            self.room.give_back(claim.bytes)
            places.release()
        if is_deferred and self.deferred:
            await self.deferred.settle(stop)

    async def _publish(self, claim: Claim, claimed_at: float, stop: asyncio.Event) -> bool:
        """Publish a claim and settle it; True if its settlement is deferred."""
        verdicts = await self.publishing.publish(claim.events, claimed_at=claimed_at, stop=stop)
        if self.deferred and not stop.is_set() and self.deferred.take(claim, verdicts, claimed_at=claimed_at):
            return True
        await self.settlement.settle(self.outbox, claim, verdicts, claimed_at=claimed_at)
        if not all(isinstance(verdict, Published) for verdict in verdicts):
            self.pace.expect_retries()
        elif self.deferred is None:
            self.pace.look_again()
        return False

    async def _claim(self, size: ClaimSize, stop: asyncio.Event) -> tuple[Claim, float]:
        """Claim through both circuits: an outage uses up no attempts, and an unanswered probe only one.

        Return the time of the claim itself too, because no lease runs while the lane waits at a circuit.
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
            await self._end_empty_probe()
        return claim, claimed_at

    async def _end_empty_probe(self) -> None:
        """Close the circuit if its only fault was a missing connection, else give the probe back.

        Other workers may have published the events that opened the circuit, and the next one may be late. So
        it also closes when no event has failed for a while, none was refused, and the stream answers.
        """
        breaker = self.broker_breaker
        proven = breaker.reason == _NOT_CONNECTED
        if not (proven or breaker.is_refused) and breaker.quiet_seconds > _QUIET_SECONDS:
            with contextlib.suppress(DependencyError):
                await self.publishing.publisher.find(())
                proven = True
        if proven:
            breaker.record_success()
        else:
            breaker.release()

    async def _find_unpublished(self, size: ClaimSize, batch_max: int) -> Claim:
        """Claim events; after a time-out, the next claim requests half as many, down to one."""
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
        size.update(claim)
        return claim

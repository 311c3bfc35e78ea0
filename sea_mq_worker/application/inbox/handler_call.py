"""Calls the handler for one message, and judges the outcome (SDS-047 POL-047-005 to 007).

Here a message becomes processed, retried, given back or dead-lettered.
"""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from sea_mq_worker.application.circuit_breaker import Permit
from sea_mq_worker.application.inbox.dead_letter_publisher import DeadLetterPublisher
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.inbox.in_flight import InFlightMessage
from sea_mq_worker.application.inbox.leases import InboxLeases
from sea_mq_worker.application.waiting import IMMEDIATE_REDELIVERY_SECONDS, StoppedError, cancel_on_stop
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.inbound import InvalidMessage
from sea_mq_worker.domain.inbox_results import Leased
from sea_mq_worker.domain.messages import DeadLetter, HandlerRequest
from sea_mq_worker.domain.outcomes import (
    Accepted,
    BatchFailed,
    GivenBack,
    HandlingOutcome,
    LeaseLost,
    NotDelivered,
    Poison,
    Processed,
    Retry,
)
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.handler import EventHandler

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

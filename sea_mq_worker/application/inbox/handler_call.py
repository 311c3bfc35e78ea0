"""One message's way through the handler (SDS-047 POL-047-005 to 007)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from sea_mq_worker.application.circuit_breaker import Permit
from sea_mq_worker.application.inbox.dead_lettering import DeadLetterer
from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.inbox.receiving import InFlightMessage
from sea_mq_worker.application.waiting import IMMEDIATE_REDELIVERY_SECONDS, StoppedError, cancel_on_stop
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.inbound import InvalidMessage, ParsedMessage
from sea_mq_worker.domain.inbox_results import Leased
from sea_mq_worker.domain.messages import DeadLetter, HandlerRequest
from sea_mq_worker.domain.outcomes import (
    Accepted,
    Ending,
    GivenBack,
    LeaseLost,
    NotDelivered,
    Poison,
    Processed,
    Retried,
    Retry,
)
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.handler import EventHandler

Holds: TypeAlias = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCaller:
    """Asks the handler about a message until there is an ending.

    Attributes:
        attempts_max: after so many attempts without an effect a message is dead-lettered as EXHAUSTED;
            below the consumer's max_deliver, so that the worker decides before the server gives up.
    """

    handler: EventHandler
    health: HandlerHealth
    dead_letterer: DeadLetterer
    backoff: Backoff
    attempts_max: int

    async def handle(
        self, item: InFlightMessage, run: Leased, stop: asyncio.Event, *, holds: Holds
    ) -> Ending:
        """Work on a leased message to its end, or give it back when asked to stop while waiting.

        ``holds`` is asked before each call of the handler: what waited for a sick handler while the process
        stood still, or the database was away, may be another worker's by now, and handled.
        """
        try:
            if (
                item.refusal is None and run.attempts > self.attempts_max
            ):  # not opened: that may be what kills
                detail = "its attempts ended with the worker, not with an answer"
                return await self._dead_letter(item, run, Reason.EXHAUSTED, detail, stop)
            match item.open():
                case InvalidMessage(_, reason, detail):
                    return await self._dead_letter(item, run, reason, detail, stop)
                case ParsedMessage(_, request):
                    return await self._call_handler(item, run, request, stop, holds)
        except StoppedError as error:
            waited_for = str(error) or self.health.breaker.reason
            return GivenBack(
                f"the worker stopped while it waited: {waited_for}", IMMEDIATE_REDELIVERY_SECONDS
            )

    async def _call_handler(
        self, item: InFlightMessage, run: Leased, request: HandlerRequest, stop: asyncio.Event, holds: Holds
    ) -> Ending:
        wait = self.health.take_call(request.event_type, repeated=item.message.deliveries > 1)
        if wait is None:
            return self._in_turn(item, request, self.health.error(request.event_type))
        if wait:
            await cancel_on_stop(stop, asyncio.sleep(wait))
        while (permit := await self.health.breaker.enter(stop)) is not Permit.STOPPED:
            if not await holds():
                if permit is Permit.PROBE:
                    self.health.breaker.release()
                return LeaseLost()
            with self.health.calling(request.event_type):
                result = await self.handler.handle(request)
            if not isinstance(result, NotDelivered):
                self._note_reached(result)
                return await self._conclude(item, run, request, result, stop)
            self.health.breaker.record_failure(result.error)
        raise StoppedError(self.health.breaker.reason)

    def _note_reached(self, result: Accepted | Poison | Retry) -> None:
        """Open the gate for an answer; a call that broke off does not show that the handler is back."""
        if isinstance(result, Retry) and not result.answered:
            self.health.breaker.release()
        else:
            self.health.breaker.record_success()

    async def _conclude(
        self,
        item: InFlightMessage,
        run: Leased,
        request: HandlerRequest,
        result: Accepted | Poison | Retry,
        stop: asyncio.Event,
    ) -> Ending:
        if isinstance(result, Accepted):
            self.health.took(request.event_type)
            return Processed(result.status)
        counts = self.health.is_message_fault(request.event_type, request.message_id, result)
        match result:
            case Poison(detail) if counts:
                return await self._dead_letter(item, run, Reason.REJECTED, detail, stop)
            case Poison(detail):
                return self._in_turn(item, request, detail)
            case Retry(error, after_seconds) if not counts:
                deliveries = max(1, item.message.deliveries)
                return self._in_turn(item, request, error, deliveries=deliveries, least=after_seconds)
            case Retry(error) if run.attempts >= self.attempts_max:
                return await self._dead_letter(item, run, Reason.EXHAUSTED, error, stop)
            case Retry(error, after_seconds):
                return Retried(error, max(after_seconds, self.backoff.delay_seconds(run.attempts)))
            case _:
                assert_never(result)

    def _in_turn(
        self,
        item: InFlightMessage,
        request: HandlerRequest,
        error: str,
        *,
        deliveries: int = 0,
        least: float = 0.0,
    ) -> GivenBack:
        """Give a message of a slow type back; what nobody delivered has no place in the line."""
        health, delivered = self.health, bool(item.message.reply)
        delay = health.delay_seconds(request.event_type, deliveries=deliveries, in_line=delivered)
        return GivenBack(error, max(delay, least), request.event_type, least)

    async def _dead_letter(
        self, item: InFlightMessage, run: Leased, reason: str, detail: str, stop: asyncio.Event
    ) -> Ending:
        letter = DeadLetter(
            message_id=run.lease.message_id,
            original_subject=item.message.subject,
            reason=reason,
            attempts=run.attempts,
            detail=detail,
            source=item.message,
        )
        return await self.dead_letterer.dead_letter(letter, run, stop)

"""One message's way through the handler (SDS-047 POL-047-005 to 007)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from sea_mq_worker.application.burial import Burial
from sea_mq_worker.application.gate import Gate, Passage
from sea_mq_worker.application.pacing import AT_ONCE_SECONDS, StoppedError, unless_stopped
from sea_mq_worker.application.reception import InHand
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.envelopes import Invalid, Valid
from sea_mq_worker.domain.messages import DeadLetter, HandlerRequest
from sea_mq_worker.domain.outcomes import (
    Accepted,
    Ending,
    HandlerResult,
    LeaseLost,
    NotDelivered,
    Poison,
    Processed,
    Retried,
    Retry,
)
from sea_mq_worker.domain.receipts import Run
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.handler import EventHandler

Holds: TypeAlias = Callable[[], Awaitable[bool]]


@dataclass(slots=True, kw_only=True)
class HandlerHealth:
    """Tells a sick handler from sick messages.

    When ``run_max`` different messages in a row got no effect, it is the handler or its deployment that
    is wrong, and burying them would bury good ones: the gate closes. While it is closed no attempt counts;
    one message after the other probes, and the first effect opens it.
    """

    gate: Gate
    run_max: int
    _failing: set[str] = field(default_factory=set)

    def believes(self, message_id: str, result: HandlerResult) -> bool:
        """Note a result; tell whether it is the message's, or it must wait at the gate and ask again."""
        match result:
            case Accepted():
                self._failing.clear()
                self.gate.resume()
                return True
            case NotDelivered(error):
                self.gate.pause(error)
                return False
            case Retry() | Poison():
                self._failing.add(message_id)
                if self.gate.is_open and len(self._failing) < self.run_max:
                    return True
                self.gate.pause(_sickness(result))
                return False
            case _:
                assert_never(result)


def _sickness(result: Retry | Poison) -> str:
    match result:
        case Retry(error):
            return f"the handler fails message after message: {error}"
        case Poison(detail):
            return f"the handler rejects message after message: {detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Asks the handler about a message until there is an ending.

    Attributes:
        attempts_max: after so many attempts without an effect a message is dead-lettered as EXHAUSTED;
            below the consumer's max_deliver, so that the worker decides before the server gives up.
    """

    handler: EventHandler
    health: HandlerHealth
    burial: Burial
    backoff: Backoff
    attempts_max: int

    async def handle(self, item: InHand, run: Run, stop: asyncio.Event, *, holds: Holds) -> Ending:
        """Work on a leased message to its end, or give it back when asked to stop while waiting.

        ``holds`` is asked before each call of the handler: what waited for a sick handler while the process
        stood still, or the database was away, may be another worker's by now, and handled.
        """
        try:
            if (
                item.refusal is None and run.attempts > self.attempts_max
            ):  # not opened: that may be what kills
                detail = "its attempts ended with the worker, not with an answer"
                return await self._bury(item, run, Reason.EXHAUSTED, detail, stop)
            match item.open():
                case Invalid(_, reason, detail):
                    return await self._bury(item, run, reason, detail, stop)
                case Valid(_, request):
                    return await self._conclude(item, run, await self._ask(request, stop, holds), stop)
        except StoppedError as error:
            waited_for = str(error) or self.health.gate.reason
            return Retried(
                f"the worker stopped while it waited: {waited_for}", AT_ONCE_SECONDS, counted=False
            )

    async def _ask(
        self, request: HandlerRequest, stop: asyncio.Event, holds: Holds
    ) -> HandlerResult | LeaseLost:
        while (passage := await self.health.gate.enter(stop)) is not Passage.STOPPED:
            if not await holds():
                if passage is Passage.PROBE:
                    self.health.gate.skip()
                return LeaseLost()
            result = await self.handler.handle(request)
            if self.health.believes(request.message_id, result):
                return result
            if isinstance(result, Retry) and result.after_seconds:
                await unless_stopped(stop, asyncio.sleep(result.after_seconds))
        raise StoppedError(self.health.gate.reason)

    async def _conclude(
        self, item: InHand, run: Run, result: HandlerResult | LeaseLost, stop: asyncio.Event
    ) -> Ending:
        match result:
            case LeaseLost():
                return result
            case Accepted(status):
                return Processed(status)
            case Poison(detail):
                return await self._bury(item, run, Reason.REJECTED, detail, stop)
            case Retry(error) if run.attempts >= self.attempts_max:
                return await self._bury(item, run, Reason.EXHAUSTED, error, stop)
            case Retry(error, after_seconds):
                delay = max(after_seconds, self.backoff.delay_seconds(run.attempts))
                return Retried(error, delay, counted=True)
            case NotDelivered(error):
                return Retried(error, AT_ONCE_SECONDS, counted=False)
            case _:
                assert_never(result)

    async def _bury(self, item: InHand, run: Run, reason: str, detail: str, stop: asyncio.Event) -> Ending:
        letter = DeadLetter(
            message_id=run.lease.message_id,
            original_subject=item.message.subject,
            reason=reason,
            attempts=run.attempts,
            detail=detail,
            source=item.message,
        )
        return await self.burial.bury(letter, run, stop)

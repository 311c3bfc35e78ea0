"""In-memory stand-in for a service's event handler: a table of effects, and a script of its behaviour."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import assert_never

from sea_mq_worker.inbox.message import (
    ACCEPT_STATUSES,
    BatchFailed,
    HandlerRequest,
    HandlerResult,
    NotDelivered,
    Retry,
    result_for_status,
)
from sea_mq_worker.ports import EventHandler

_ALREADY = 409
_NOT_REACHED = "the handler cannot be reached"
_SUCCESS = range(200, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Answer ``status`` after ``slow_seconds``; a 2xx has the effect, or is a 409 if it already had it."""

    status: int = 200
    slow_seconds: float = 0.0
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LoseResponse:
    """Have the effect, then fail before the answer."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answer."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Refuse the connection."""


@dataclass(frozen=True, slots=True)
class FailBatch:
    """Fail the batch that the message is in, without an answer; the next one has ``batch_max`` messages."""

    batch_max: int


Behaviour = Respond | LoseResponse | Hang | Unreachable | FailBatch
Script = Callable[[HandlerRequest, int], Behaviour]
"""Chooses the behaviour for a request; the number counts the calls for its message id, from 1.
0 stands for a connection without a call."""


def obliging(_request: HandlerRequest, _call: int) -> Behaviour:
    """Accept every message."""
    return Respond()


@dataclass(eq=False)
class InMemoryHandler(EventHandler):
    """Behaves as ``script`` chooses; ``script`` may be replaced at any time.

    Attributes:
        effects: number of effects by message id; never above one.
        calls: number of calls by message id.
        requests: all requests, in order.
    """

    script: Script = obliging
    _: KW_ONLY
    timeout_seconds: float = 30.0
    accept_statuses: frozenset[int] = ACCEPT_STATUSES
    effects: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    requests: list[HandlerRequest] = field(default_factory=list)

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Behave as the script chooses; see ports/handler.py."""
        behaviour = self.script(request, self.calls[request.message_id] + 1)
        if isinstance(behaviour, Unreachable):
            return NotDelivered(_NOT_REACHED)
        self.calls[request.message_id] += 1
        self.requests.append(request)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._behave(request, behaviour)
        except TimeoutError:
            return Retry(
                f"the handler gave no whole answer within {self.timeout_seconds:g} s", answered=False
            )

    async def reach(self) -> NotDelivered | None:
        """Ask the script with a request that no other has, and the number 0."""
        behaviour = self.script(HandlerRequest.new("connection", b"{}"), 0)
        return NotDelivered(_NOT_REACHED) if isinstance(behaviour, Unreachable) else None

    async def _behave(
        self, request: HandlerRequest, behaviour: Respond | LoseResponse | Hang | FailBatch
    ) -> HandlerResult:
        match behaviour:
            case Respond():
                if behaviour.slow_seconds > 0:
                    await asyncio.sleep(behaviour.slow_seconds)
                return self._answer(request, behaviour)
            case LoseResponse():
                self._take(request)
                return Retry("the handler closed the connection without a whole answer", answered=False)
            case FailBatch(batch_max):
                return BatchFailed("the batch got no answer", batch_max=batch_max, answered=False)
            case Hang():
                await asyncio.Event().wait()
                raise AssertionError("nobody sets this event")
            case _:
                assert_never(behaviour)

    def _answer(self, request: HandlerRequest, answer: Respond) -> HandlerResult:
        status = answer.status
        if status in _SUCCESS and not self._take(request):
            status = _ALREADY
        return result_for_status(
            status, accept_statuses=self.accept_statuses, after_seconds=answer.retry_after_seconds
        )

    def _take(self, request: HandlerRequest) -> bool:
        is_new = request.message_id not in self.effects
        self.effects[request.message_id] = 1
        return is_new

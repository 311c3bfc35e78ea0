"""HttpBatchHandler: PORT-047-005 with several messages per request, for a handler that has a batch endpoint.

Calls that begin in the same turn of the event loop share a request, up to the limits of a batch. A lone
message goes to the single endpoint. If a batch fails and one of its messages may be the cause, the caller
repeats each call with half the batch size, down to single calls. An example with a message X that kills the
handler::

    A B X C    no answer: BatchFailed for each
    A B | X C  A and B are answered; BatchFailed for X and C
    X | C      single calls: C is answered, only X fails
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sea_mq_worker.adapters.http.client.response import Response
from sea_mq_worker.adapters.http.handler import HttpEventHandler
from sea_mq_worker.adapters.http.wire_format import BatchAnswerError, read_statuses, request_body
from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import BatchFailed, HandlerResult, NotDelivered, Retry
from sea_mq_worker.ports.handler import EventHandler

_OK = 200


class _Call(NamedTuple):
    request: HandlerRequest
    body: tuple[bytes, ...]
    result: asyncio.Future[HandlerResult]

    @property
    def size(self) -> int:
        return sum(map(len, self.body)) + 1


@dataclass(kw_only=True, eq=False, repr=False)
class HttpBatchHandler(EventHandler):
    """Sends messages in batches to one endpoint, and lone messages to another.

    Attributes:
        single: client of the endpoint for one message.
        batch: client of the batch endpoint; its response limit must suffice for a whole batch.
        concurrency: most requests at a time, to both endpoints together.
        messages_max: most messages in a batch.
        bytes_max: most bytes of a batch's body; a larger message is sent alone.
        on_failed: called with the error of a batch that is divided for the first time.
    """

    single: HttpEventHandler
    batch: HttpEventHandler
    concurrency: int
    messages_max: int
    bytes_max: int
    on_failed: Callable[[str], None]

    def __post_init__(self) -> None:
        self._free = self.concurrency
        self._calls: deque[_Call] = deque()
        self._requests: set[asyncio.Task[Sequence[HandlerResult]]] = set()
        self._is_due = False

    async def close(self) -> None:
        """End requests under way and close all connections; safe twice."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.single.close()
        await self.batch.close()

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once, with other messages or alone; see ports/handler.py."""
        result: asyncio.Future[HandlerResult] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(request, request_body(request), result))
        self._send_soon()
        return await result

    async def reach(self) -> NotDelivered | None:
        """Try both endpoints; see ports/handler.py."""
        return await self.single.reach() or await self.batch.reach()

    def _send_soon(self) -> None:
        """Send at the end of this turn of the loop, when the other calls of the turn are here, too."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._is_due = False
        while self._calls and self._free:
            calls = self._next_batch()
            if calls:
                self._free -= 1
                request = asyncio.create_task(self._send(calls))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
                request.add_done_callback(partial(_deliver, calls))

    def _next_batch(self) -> list[_Call]:
        """Take the longest waiting call, and those behind it that fit and have the same limit.

        Messages of a failed batch do not mix with others, which would then fail with them.
        """
        chosen: list[_Call] = []
        others: list[_Call] = []
        limit = self._limit(self._calls[0])
        room = self.bytes_max - 1
        while self._calls and len(chosen) < limit:
            call = self._calls.popleft()
            if call.result.cancelled():
                continue
            if self._limit(call) != limit:
                others.append(call)
            elif chosen and call.size > room:
                others.append(call)
                break
            else:
                chosen.append(call)
                room -= call.size
        self._calls.extendleft(reversed(others))
        return chosen

    def _limit(self, call: _Call) -> int:
        return min(call.request.batch_max or self.messages_max, self.messages_max)

    async def _send(self, calls: Sequence[_Call]) -> Sequence[HandlerResult]:
        try:
            if len(calls) == 1:
                return [await self.single.handle_request(calls[0].request)]
            return await self._send_batch(calls)
        finally:
            self._free += 1
            self._send_soon()

    async def _send_batch(self, calls: Sequence[_Call]) -> Sequence[HandlerResult]:
        answer = await self.batch.post((), _array(calls))
        if isinstance(answer, NotDelivered):
            return [answer] * len(calls)
        if isinstance(answer, Retry):
            return self._divide(calls, answer.error, answered=False)
        if answer.status == _OK:
            return self._judge(calls, answer)
        if self.batch.may_be_one_message(answer.status):
            return self._divide(calls, f"the handler answered {answer.status}", answered=True)
        return [self.batch.result(answer)] * len(calls)

    def _judge(self, calls: Sequence[_Call], answer: Response) -> Sequence[HandlerResult]:
        if len(answer.body) > self.batch.response_bytes_max:
            text = f"the handler's answer has more than {self.batch.response_bytes_max} bytes"
            return self._divide(calls, text, answered=True)
        try:
            statuses = read_statuses(answer.body, {call.request.message_id for call in calls})
        except BatchAnswerError as error:
            return self._divide(calls, f"the handler's answer {error}", answered=True)
        return [self.batch.status_result(*statuses[call.request.message_id]) for call in calls]

    def _divide(self, calls: Sequence[_Call], error: str, *, answered: bool) -> Sequence[HandlerResult]:
        """Return for each message that the batch failed; half of it may be sent together next."""
        text = f"{error}, to a batch of {len(calls)} messages"
        if not calls[0].request.batch_max:
            self.on_failed(f"{text}: the worker sends them again in halves")
        return [BatchFailed(text, batch_max=-(-len(calls) // 2), answered=answered)] * len(calls)


def _array(calls: Sequence[_Call]) -> list[bytes]:
    parts = [part for call in calls for part in (b",", *call.body)]
    return [b"[", *parts[1:], b"]"]


def _deliver(calls: Sequence[_Call], request: asyncio.Task[Sequence[HandlerResult]]) -> None:
    """Give each call its result, or what ended the request."""
    error = None if request.cancelled() else request.exception()
    for index, call in enumerate(calls):
        if call.result.done():
            continue
        if request.cancelled():
            call.result.cancel()
        elif error is not None:
            call.result.set_exception(error)
        else:
            call.result.set_result(request.result()[index])

"""HttpEventHandler: PORT-047-005 over HTTP; HttpBatchHandler, the same with several messages per request.

One deadline covers a call from the connection to the response's last byte. Three failures are distinct:
nothing was sent (NotDelivered), the outcome is unknown (Retry), and a response without success (see
``message.result_for_status``). Error texts name status and address, never the response body, which may repeat
the payload; ``keep_problem`` adds the type and title of problem details.
"""

import asyncio
import json
import math
import re
import ssl
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from json.encoder import encode_basestring_ascii as _text
from typing import cast

import httpx2

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.inbox.http_client import DisconnectedError, HandlerTransport, Header, Response
from sea_mq_worker.inbox.message import (
    ACCEPT_STATUSES,
    BatchFailed,
    HandlerRequest,
    HandlerResult,
    NotDelivered,
    Retry,
    may_be_one_message,
    result_for_status,
)
from sea_mq_worker.ports import EventHandler
from sea_mq_worker.runtime.addresses import http_problem, is_metadata_host

_KEEPALIVE_SECONDS = 1.5
"""An idle connection is not used again after this long: less than the keep-alive time-outs of handlers
(uvicorn 5 s, gunicorn 2 s), or calls meet connections that are closing."""
_STEP_SHARE = 1 / 3
"""Share of the deadline for the wait for a slot, and again for the connect."""
_RETRY_AFTER_MAX_SECONDS = 300.0
"""Bound of the wait that a handler may ask for."""
_DIGITS = re.compile(r"[0-9]{1,9}")
_TROUBLE_CHARS_MAX = 200
_PROBLEM_CHARS_MAX = 120
_ERRORS_MAX = 5
_STATUSES = range(100, 600)
_OK = 200
_UNREACHABLE = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_BROKEN = (httpx2.HTTPError, OSError, ValueError)


def request_body(request: HandlerRequest) -> tuple[bytes, bytes, bytes]:
    """Write SDS-047's JSON in its order; the payload is a part of its own, untouched and not copied.

    Only the strings are encoded: encoding the whole object takes ten times as long.
    """
    correlation_id, causation_id = request.correlation_id, request.causation_id
    head = (
        f'{{"message_id": {_text(request.message_id)}'
        f', "subject": {_text(request.subject)}'
        f', "event_type": {_text(request.event_type)}'
        f', "event_version": {request.event_version}'
        f', "occurred_at": {_text(request.occurred_at)}'
        f', "correlation_id": {"null" if correlation_id is None else _text(correlation_id)}'
        f', "causation_id": {"null" if causation_id is None else _text(causation_id)}'
        ', "payload": '
    )
    return head.encode(), request.payload, b"}"


class HttpEventHandler(EventHandler):
    """Posts to one URL; connects at the first call and holds at most ``concurrency`` connections.

    Args:
        timeout_seconds: total deadline of one call.
        connect_timeout_seconds: until a connection counts as not to be had; at most a third of the deadline.
        token: returns the bearer token of a request, or an empty text for none. If the token is unavailable,
            nothing is sent.
        response_bytes_max: an answer's body is not read any further.
        verify: trust and client certificates for https; without one, the system's trust store.
        keep_problem: an error names the type and title of an answer's RFC 9457 problem details.
        forbidden: addresses that nothing is sent to, whatever name leads there.
    """

    def __init__(
        self,
        *,
        url: str,
        timeout_seconds: float,
        concurrency: int,
        connect_timeout_seconds: float = 2.0,
        accept_statuses: frozenset[int] = ACCEPT_STATUSES,
        token: Callable[[], str] = str,
        response_bytes_max: int = 65536,
        verify: ssl.SSLContext | None = None,
        keep_problem: bool = False,
        forbidden: Callable[[str], bool] = is_metadata_host,
    ) -> None:
        if problem := http_problem(url):  # omits the URL, which may hold a password
            raise ValueError(f"the handler's URL: {problem}")
        try:
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise ValueError("the handler's URL names no valid host") from None
        if verify is None and parsed.scheme == "https":
            verify = httpx2.create_ssl_context(trust_env=False)
        self.response_bytes_max = response_bytes_max
        self._where = f"{parsed.scheme}://{parsed.netloc.decode()}"
        self._timeout_seconds = timeout_seconds
        self.accept_statuses = accept_statuses
        self._keep_problem = keep_problem
        self._token = token
        self._authorization()
        self._transport = HandlerTransport(
            parsed,
            headers=[
                (b"host", parsed.netloc),
                (b"content-type", b"application/json"),
                (b"accept-encoding", b"identity"),
                (b"user-agent", b"sea-mq-worker"),
            ],
            size=concurrency,
            keepalive_seconds=_KEEPALIVE_SECONDS,
            deadline_seconds=timeout_seconds,
            connect_seconds=min(connect_timeout_seconds, timeout_seconds * _STEP_SHARE),
            body_bytes_max=response_bytes_max,
            tls=verify or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # plain http reads no trust store
            forbidden=forbidden,
        )

    async def close(self) -> None:
        """Close all connections; safe twice."""
        await self._transport.aclose()

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once; see ports.EventHandler."""
        message_id = request.message_id.encode()
        headers = [(b"idempotency-key", message_id), (b"x-message-id", message_id)]
        headers += [(name.encode(), value.encode()) for name, value in request.trace_headers.items()]
        answer = await self.post(headers, request_body(request))
        return self.result(answer) if isinstance(answer, Response) else answer

    async def post(self, headers: Sequence[Header], body: Sequence[bytes]) -> Response | NotDelivered | Retry:
        """Send one request, whose body is given in parts; return its answer, or the reason for none."""
        try:
            authorization = self._authorization()
        except (UnavailableError, ValueError) as error:
            return NotDelivered(str(error))
        try:
            return await self._transport.post([*headers, *authorization], body)
        except _UNREACHABLE as error:
            return self._not_reached(error)
        except httpx2.TimeoutException:
            text = f"the handler gave no whole answer within {self._timeout_seconds:g} s"
        except (DisconnectedError, httpx2.NetworkError):
            text = "the handler closed the connection without a whole answer"
        except _BROKEN as error:  # its text may quote the handler's bytes
            text = f"the handler's answer is broken or not HTTP ({type(error).__name__})"
        return Retry(text, answered=False)

    async def reach(self) -> NotDelivered | None:
        """Try the token and a connection alone; see ports.EventHandler."""
        try:
            self._authorization()
            await self._transport.reach()
        except (UnavailableError, ValueError) as error:
            return NotDelivered(str(error))
        except _UNREACHABLE as error:
            return self._not_reached(error)
        return None

    def _not_reached(self, error: Exception) -> NotDelivered:
        text = " ".join(str(error).split())[:_TROUBLE_CHARS_MAX]
        why = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return NotDelivered(f"the handler at {self._where} cannot be reached: {why}")

    def result(self, answer: Response) -> HandlerResult:
        """Judge a request's answer by its status; an error tells the problem, or the size of the body."""
        if answer.status in self.accept_statuses:  # nothing else of it matters
            return result_for_status(answer.status, accept_statuses=self.accept_statuses)
        headers = {name.lower(): value.decode("latin-1") for name, value in reversed(answer.headers)}
        problem = _problem_text(headers.get(b"content-type", ""), answer.body) if self._keep_problem else ""
        size = len(answer.body)
        most = self.response_bytes_max
        sized = f"with {size} bytes" if size <= most else f"with more than {most} bytes"
        return result_for_status(
            answer.status,
            accept_statuses=self.accept_statuses,
            after_seconds=_wait_asked(headers.get(b"retry-after", ""), date=headers.get(b"date", "")),
            detail=f" ({problem or sized})",
        )

    def result_of_element(self, element: Mapping[str, object]) -> HandlerResult:
        """Judge one message of a batch by its element of the answer, whose ``status`` is one of HTTP."""
        asked, seconds = element.get("retry_after"), 0.0
        if isinstance(asked, int | float) and not isinstance(asked, bool) and asked > 0:
            seconds = float(min(asked, _RETRY_AFTER_MAX_SECONDS))
        problem = _type_and_title(element.get("problem")) if self._keep_problem else ""
        return result_for_status(
            cast("int", element["status"]),
            accept_statuses=self.accept_statuses,
            after_seconds=seconds,
            detail=f" ({problem})" if problem else "",
        )

    def _authorization(self) -> list[Header]:
        token = self._token()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the handler's token holds a space or a character outside visible ASCII")
        return [(b"authorization", b"Bearer " + token.encode())] if token else []


def _wait_asked(value: str, *, date: str) -> float:
    """Read a Retry-After header, seconds or an HTTP-date, as seconds from now; 0 if it is unusable.

    A date is compared with the answer's own ``Date``, so that only the handler's clock is asked.
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text) if _DIGITS.fullmatch(text) else math.inf, _RETRY_AFTER_MAX_SECONDS)
    until, now = _http_date(text), _http_date(date) or datetime.now(UTC)
    return min(max((until - now).total_seconds(), 0.0), _RETRY_AFTER_MAX_SECONDS) if until else 0.0


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _problem_text(content_type: str, body: bytes) -> str:
    """Return type and title of a response's problem details (RFC 9457), or what FastAPI's validation found.

    The latter are places and types, such as ``body.payload.order: missing``. Empty if it has none. Each is on
    one line and cut. Other members, such as ``detail`` and ``instance`` of the former and ``msg``, ``input``
    and ``ctx`` of the latter, may repeat the payload: they are never read.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in {"application/problem+json", "application/json"}:
        return ""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if kind == "application/problem+json":
        return _type_and_title(members)
    lines = []
    match members:
        case {"detail": [*errors]}:
            for error in errors[:_ERRORS_MAX]:
                match error:
                    case {"loc": [*loc], "type": str(what)}:
                        place = ".".join(str(part) for part in loc if isinstance(part, str | int))
                        lines.append(_line(f"{place}: {what}"))
    return ", ".join(filter(None, lines))


def _type_and_title(members: object) -> str:
    if not isinstance(members, dict):
        return ""
    return ", ".join(filter(None, (_line(members.get(name)) for name in ("type", "title"))))


def _line(member: object) -> str:
    text = " ".join(member.split()) if isinstance(member, str) else ""
    return "".join(filter(str.isprintable, text))[:_PROBLEM_CHARS_MAX]


def read_elements(body: bytes, message_ids: Collection[str]) -> Mapping[str, Mapping[str, object]] | str:
    """Return each message's element of a batch's answer; or what is wrong if not each has exactly one.

    The text repeats nothing of the answer. The order of the array does not matter. An example for two
    messages, of which the second must wait::

        [{"message_id": "01a1ff20-26d5-749f-b632-89ed53936650", "status": 200},
         {"message_id": "01a1ff20-26d5-749f-b632-89ed53936651", "status": 503, "retry_after": 30,
          "problem": {"title": "The stock is locked"}}]
    """
    try:
        elements = json.loads(body)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(elements, list) or len(elements) != len(message_ids):
        return "is no array with one element for each message"
    found = {}
    for element in elements:
        match element:
            case {"message_id": str(message_id), "status": int(status)} if status in _STATUSES:
                found[message_id.lower()] = element
            case _:
                return "has an element without message_id and status"
    return found if found.keys() == set(message_ids) else "does not name each message once"


@dataclass(frozen=True, slots=True)
class _Call:
    request: HandlerRequest
    body: tuple[bytes, ...]
    result: asyncio.Future[HandlerResult]


@dataclass(kw_only=True, eq=False)
class HttpBatchHandler(EventHandler):
    """Sends messages in batches to one endpoint, and lone messages to another.

    Calls that begin in the same turn of the event loop share a request, up to the limits of a batch. If a
    batch fails and one of its messages may be the cause, the caller repeats each call with half the batch
    size, down to single calls. An example with a message X that kills the handler::

        A B X C    no answer: BatchFailed for each
        A B | X C  A and B are answered; BatchFailed for X and C
        X | C      single calls: C is answered, only X fails

    Attributes:
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
    _under_way: int = 0
    _calls: deque[_Call] = field(default_factory=deque)
    _requests: set[asyncio.Task[Sequence[HandlerResult]]] = field(default_factory=set)
    _is_due: bool = False

    async def close(self) -> None:
        """End requests under way and close all connections; safe twice."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.single.close()
        await self.batch.close()

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once, with other messages or alone; see ports.EventHandler."""
        result: asyncio.Future[HandlerResult] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(request, request_body(request), result))
        self._send_soon()
        return await result

    async def reach(self) -> NotDelivered | None:
        """Try both endpoints; see ports.EventHandler."""
        return await self.single.reach() or await self.batch.reach()

    def _send_soon(self) -> None:
        """Send at the end of this turn of the loop, when the other calls of the turn are here, too."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._is_due = False
        while self._calls and self._under_way < self.concurrency:
            if calls := self._next_batch():
                self._under_way += 1
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
            size = sum(map(len, call.body)) + 1
            if self._limit(call) != limit:
                others.append(call)
            elif chosen and size > room:
                others.append(call)
                break
            else:
                chosen.append(call)
                room -= size
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
            self._under_way -= 1
            self._send_soon()

    async def _send_batch(self, calls: Sequence[_Call]) -> Sequence[HandlerResult]:
        client, most = self.batch, self.batch.response_bytes_max
        parts = [part for call in calls for part in (b",", *call.body)]
        answer = await client.post((), [b"[", *parts[1:], b"]"])
        if isinstance(answer, NotDelivered):
            return [answer] * len(calls)
        if isinstance(answer, Retry):
            return self._divide(calls, answer.error, answered=False)
        if answer.status != _OK:
            if not may_be_one_message(answer.status, accept_statuses=client.accept_statuses):
                return [client.result(answer)] * len(calls)
            trouble = f"the handler answered {answer.status}"
        elif len(answer.body) > most:
            trouble = f"the handler's answer has more than {most} bytes"
        else:
            ids = [call.request.message_id for call in calls]
            elements = read_elements(answer.body, ids)
            if not isinstance(elements, str):
                return [client.result_of_element(elements[message_id]) for message_id in ids]
            trouble = f"the handler's answer {elements}"
        return self._divide(calls, trouble, answered=True)

    def _divide(self, calls: Sequence[_Call], error: str, *, answered: bool) -> Sequence[HandlerResult]:
        """Return for each message that the batch failed; half of it may be sent together next."""
        text = f"{error}, to a batch of {len(calls)} messages"
        if not calls[0].request.batch_max:
            self.on_failed(f"{text}: the worker sends them again in halves")
        return [BatchFailed(text, batch_max=-(-len(calls) // 2), answered=answered)] * len(calls)


def _deliver(calls: Sequence[_Call], request: asyncio.Task[Sequence[HandlerResult]]) -> None:
    """Give each call its result, or what ended the request, perhaps before it began."""
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

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
import json
import math
import re
import ssl
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from json.encoder import encode_basestring_ascii as _text
from typing import NamedTuple

import httpx2

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.inbox.http_client import ConnectionPool, HandlerTransport, Header, Response
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

# --- Encodes requests to the handler, and reads its answers (SDS-047, handler contract).

_SECONDS = re.compile(r"[0-9]{1,9}")
_SECONDS_MAX = 31_536_000
_PROBLEM_CHARS_MAX = 120
_ERRORS_MAX = 5
_STATUSES = range(100, 600)


def request_body(request: HandlerRequest) -> tuple[bytes, bytes, bytes]:
    """Write SDS-047's JSON in its order; the payload is a part of its own, untouched and not copied.

    Only the strings are encoded: encoding the whole object takes ten times as long.
    """
    head = (
        f'{{"message_id": {_text(request.message_id)}'
        f', "subject": {_text(request.subject)}'
        f', "event_type": {_text(request.event_type)}'
        f', "event_version": {request.event_version}'
        f', "occurred_at": {_text(request.occurred_at)}'
        f', "correlation_id": {_text_or_null(request.correlation_id)}'
        f', "causation_id": {_text_or_null(request.causation_id)}'
        ', "payload": '
    )
    return head.encode(), request.payload, b"}"


def _text_or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def retry_after_seconds(value: str, *, date: str, max_seconds: float) -> float:
    """Read a Retry-After header, seconds or an HTTP-date, as seconds from now; 0 if it is unusable.

    A date is compared with the answer's own ``Date``, so that only the handler's clock is asked.
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text) if _SECONDS.fullmatch(text) else math.inf, max_seconds)
    until = _http_date(text)
    if until is None:
        return 0.0
    now = _http_date(date) or datetime.now(UTC)
    return min(max((until - now).total_seconds(), 0.0), max_seconds)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def problem_text(headers: list[tuple[bytes, bytes]], body: bytes) -> str:
    """Return type and title of a response's problem details (RFC 9457), or what FastAPI's validation found.

    Empty if it has none. Each is on one line and cut. Other members, such as ``detail`` and ``instance`` of
    the former and ``msg``, ``input`` and ``ctx`` of the latter, may repeat the payload: they are never read.
    """
    named = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    read = _READERS.get(named.partition(b";")[0].strip().lower())
    if read is None:
        return ""
    try:
        return read(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def members_text(members: object) -> str:
    """Return type and title of problem details that are read already; empty if they are none."""
    if not isinstance(members, dict):
        return ""
    return ", ".join(filter(None, (_line(members.get(name)) for name in ("type", "title"))))


def _validation_text(members: object) -> str:
    """Return places and types of FastAPI's validation errors, such as ``body.payload.order: missing``."""
    match members:
        case {"detail": [*errors]}:
            return ", ".join(filter(None, map(_error_line, errors[:_ERRORS_MAX])))
    return ""


def _error_line(error: object) -> str:
    match error:
        case {"loc": [*loc], "type": str(kind)}:
            place = ".".join(str(part) for part in loc if isinstance(part, str | int))
            return _line(f"{place}: {kind}")
    return ""


_READERS = {b"application/problem+json": members_text, b"application/json": _validation_text}


def _line(member: object) -> str:
    text = " ".join(member.split()) if isinstance(member, str) else ""
    return "".join(filter(str.isprintable, text))[:_PROBLEM_CHARS_MAX]


class MessageStatus(NamedTuple):
    """Status of one message, the seconds that the handler asks to wait (0: none), and its problem details."""

    status: int
    retry_after: float
    problem: str


class BatchAnswerError(Exception):
    """The answer does not give each message exactly one status; the text repeats nothing of the answer."""


def read_statuses(body: bytes, message_ids: Collection[str]) -> Mapping[str, MessageStatus]:
    """Return the status of every message by its ID; the order of the array does not matter.

    An example for two messages, of which the second must wait::

        [{"message_id": "01a1ff20-26d5-749f-b632-89ed53936650", "status": 200},
         {"message_id": "01a1ff20-26d5-749f-b632-89ed53936651", "status": 503, "retry_after": 30,
          "problem": {"title": "The stock is locked"}}]

    Raises:
        BatchAnswerError: the answer is not JSON, no array, or incomplete, or names another message.
    """
    try:
        elements = json.loads(body)
    except (ValueError, RecursionError):
        raise BatchAnswerError("is not JSON") from None
    if not isinstance(elements, list) or len(elements) != len(message_ids):
        raise BatchAnswerError("is no array with one element for each message")
    statuses = dict(map(_element, elements))
    if statuses.keys() != set(message_ids):
        raise BatchAnswerError("does not name each message once")
    return statuses


def _element(element: object) -> tuple[str, MessageStatus]:
    match element:
        case {"message_id": str(message_id), "status": int(status), **others} if status in _STATUSES:
            seconds, problem = _seconds(others.get("retry_after")), members_text(others.get("problem"))
            return message_id.lower(), MessageStatus(status, seconds, problem)
    raise BatchAnswerError("has an element without message_id and status")


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(min(value, _SECONDS_MAX))
    return 0.0


# --- HttpEventHandler: PORT-047-005 over HTTP.
#
# One deadline covers a call from the connection to the response's last byte. Three failures are distinct:
# nothing was sent (NotDelivered), the outcome is unknown (Retry), and a response without success (see
# domain/handler_status.py). Error texts name status and address, never the response body, which may repeat
# the payload; ``keep_problem`` adds the type and title of problem details.

_TROUBLE_CHARS_MAX = 200
_RETRY_AFTER_MAX_SECONDS = 300.0
"""Bound of the wait that a handler may ask for."""
_KEEPALIVE_SECONDS = 1.5
"""An idle connection is not used again after this long: less than the keep-alive time-outs of handlers
(uvicorn 5 s, gunicorn 2 s), or calls meet connections that are closing."""
_STEP_SHARE = 1 / 3
"""Share of the deadline for the wait for a slot, and again for the connect."""
_UNREACHABLE = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_BROKEN = (httpx2.HTTPError, OSError, ValueError)


class HttpEventHandler(EventHandler):
    """Posts to one URL; connects at the first call and holds at most ``concurrency`` connections.

    Args:
        url: where to POST; http or https, without user and password.
        timeout_seconds: total deadline of one call.
        concurrency: how many calls run side by side at most.
        connect_timeout_seconds: until a connection counts as not to be had; at most a third of the deadline.
        accept_statuses: statuses that mean that the effect is there.
        token: returns the bearer token of a request, or an empty text for none. If the token is unavailable,
            nothing is sent.
        response_bytes_max: an answer's body is not read any further.
        verify: trust and client certificates for https; without one, the system's trust store.
        keep_problem: an error names the type and title of an answer's RFC 9457 problem details.
        forbidden: addresses that nothing is sent to, whatever name leads there.

    Raises:
        ValueError: the URL or the token cannot be used.
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
        parsed = _checked_url(url)
        self._where = f"{parsed.scheme}://{parsed.netloc.decode()}"
        self._timeout_seconds = timeout_seconds
        self._accept_statuses = accept_statuses
        self.response_bytes_max = response_bytes_max
        self._keep_problem = keep_problem
        self._token = token
        self._authorization()
        step_seconds = min(connect_timeout_seconds, timeout_seconds * _STEP_SHARE)
        self._transport = HandlerTransport(
            parsed,
            ConnectionPool(size=concurrency, wait_seconds=step_seconds, keepalive_seconds=_KEEPALIVE_SECONDS),
            headers=_constant_headers(parsed),
            deadline_seconds=timeout_seconds,
            connect_seconds=step_seconds,
            body_bytes_max=response_bytes_max,
            tls=verify or _trust(parsed.scheme),
            forbidden=forbidden,
        )

    async def close(self) -> None:
        """Close all connections; safe twice."""
        await self._transport.aclose()

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once; see ports/handler.py."""
        answer = await self.post(_headers(request), request_body(request))
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
            return Retry(
                f"the handler gave no whole answer within {self._timeout_seconds:g} s", answered=False
            )
        except _BROKEN as error:
            return Retry(_broken(error), answered=False)

    async def reach(self) -> NotDelivered | None:
        """Try the token and a connection alone; see ports/handler.py."""
        try:
            self._authorization()
            await self._transport.reach()
        except (UnavailableError, ValueError) as error:
            return NotDelivered(str(error))
        except _UNREACHABLE as error:
            return self._not_reached(error)
        return None

    def _not_reached(self, error: Exception) -> NotDelivered:
        return NotDelivered(f"the handler at {self._where} cannot be reached: {_one_line(error)}")

    def result(self, answer: Response) -> HandlerResult:
        """Judge a request's answer by its status."""
        if answer.status in self._accept_statuses:  # nothing else of it matters
            return result_for_status(answer.status, accept_statuses=self._accept_statuses)
        return result_for_status(
            answer.status,
            accept_statuses=self._accept_statuses,
            after_seconds=self._wait_asked(httpx2.Headers(answer.headers)),
            detail=self._detail(answer),
        )

    def may_be_one_message(self, status: int) -> bool:
        """Return whether a batch's status may be due to one of its messages."""
        return may_be_one_message(status, accept_statuses=self._accept_statuses)

    def status_result(self, status: int, retry_after: float, problem: str) -> HandlerResult:
        """Judge the status of one message of a batch."""
        return result_for_status(
            status,
            accept_statuses=self._accept_statuses,
            after_seconds=min(retry_after, _RETRY_AFTER_MAX_SECONDS),
            detail=f" ({problem})" if self._keep_problem and problem else "",
        )

    def _authorization(self) -> list[Header]:
        token = self._token()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the handler's token holds a space or a character outside visible ASCII")
        return [(b"authorization", b"Bearer " + token.encode())] if token else []

    def _wait_asked(self, headers: httpx2.Headers) -> float:
        value = headers.get("retry-after", "")
        if not value:
            return 0.0
        return retry_after_seconds(value, date=headers.get("date", ""), max_seconds=_RETRY_AFTER_MAX_SECONDS)

    def _detail(self, answer: Response) -> str:
        """Return the problem details if they are kept, else the size of the body on the wire."""
        body = answer.body
        if self._keep_problem and (problem := problem_text(answer.headers, body)):
            return f" ({problem})"
        if len(body) > self.response_bytes_max:
            return f" (with more than {self.response_bytes_max} bytes)"
        return f" (with {len(body)} bytes)"


def _headers(request: HandlerRequest) -> list[Header]:
    message_id = request.message_id.encode()
    headers = [(b"idempotency-key", message_id), (b"x-message-id", message_id)]
    headers += [(name.encode(), value.encode()) for name, value in request.trace_headers.items()]
    return headers


def _constant_headers(url: httpx2.URL) -> list[Header]:
    return [
        (b"host", url.netloc),
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"sea-mq-worker"),
    ]


def _checked_url(url: str) -> httpx2.URL:
    """Raise for a URL that fails at every call; the text omits the URL, which may hold a password."""
    if problem := http_problem(url):
        raise ValueError(f"the handler's URL: {problem}")
    try:
        return httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ValueError("the handler's URL names no valid host") from None


def _trust(scheme: str) -> ssl.SSLContext:
    """Return the context to verify with; plain http gets an empty one, without the trust store."""
    if scheme == "https":
        return httpx2.create_ssl_context(trust_env=False)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:_TROUBLE_CHARS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _broken(error: Exception) -> str:
    """Describe an error without its text, which may quote the handler's bytes.

    RemoteProtocolError means that the connection ended, or bytes that are not HTTP.
    """
    is_cut = isinstance(error, httpx2.HTTPError) and "disconnected" in str(error)
    if is_cut or isinstance(error, httpx2.NetworkError):
        return "the handler closed the connection without a whole answer"
    return f"the handler's answer is broken or not HTTP ({type(error).__name__})"


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

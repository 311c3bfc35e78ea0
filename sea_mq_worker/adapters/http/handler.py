"""HttpEventHandler: PORT-047-005 over HTTP.

One deadline covers a call from the connection to the response's last byte. Three failures are distinct:
nothing was sent (NotDelivered), the outcome is unknown (Retry), and a response without success (see
domain/handler_status.py). Error texts name status and address, never the response body, which may repeat the
payload; ``keep_problem`` adds the type and title of problem details.
"""

import ssl
from collections.abc import Callable, Sequence

import httpx2

from sea_mq_worker.adapters.http.client.pool import ConnectionPool
from sea_mq_worker.adapters.http.client.response import Response
from sea_mq_worker.adapters.http.client.transport import HandlerTransport, Header
from sea_mq_worker.adapters.http.wire_format import problem_text, request_body, retry_after_seconds
from sea_mq_worker.domain.addresses import http_problem
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.domain.handler_status import ACCEPT_STATUSES, may_be_one_message, result_for_status
from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import HandlerResult, NotDelivered, Retry
from sea_mq_worker.ports.handler import EventHandler

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

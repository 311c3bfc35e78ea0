"""HttpEventHandler: PORT-047-005 over HTTP, on httpx2's transport.

One total deadline covers everything from the connection to the answer's last byte. Three kinds of trouble
are kept apart: nothing was sent (NotDelivered), the outcome is unknown (Retry) and an answer that is no
success (see domain/answers.py). Texts name the status and the place, never the handler's words, which may
repeat the payload.

The client layer of httpx2 is left out: it would cost more than the rest of the call and brings only what
is not wanted here, redirects, cookies and proxies from the environment.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Any

import httpx2

from sea_mq_worker.adapters.http.envelope import request_body, retry_after_seconds
from sea_mq_worker.domain.answers import ACCEPT_STATUSES, result_of
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import HandlerResult, NotDelivered, Retry

_TROUBLE_CHARS_MAX = 200
_STEP_SHARE = 1 / 3
"""A free slot, the connection and the TLS handshake come to an end, each of its own, before the deadline."""
_UNREACHABLE = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_BROKEN = (httpx2.HTTPError, OSError, ValueError)
_LEFT_OVER = attrgetter("_httpcore_stream._stream._connection._h11_state.trailing_data")
"""Bytes that came behind an answer; httpx2 has no public way to them."""


class _ForbiddenError(Exception):
    """The connection leads where no handler is looked for."""


class HttpEventHandler:
    """Asks one URL; connects when first asked and holds at most ``concurrency`` connections.

    Args:
        url: where to POST; http or https, without user and password.
        timeout_seconds: total deadline of one call.
        concurrency: how many calls run side by side at most.
        connect_timeout_seconds: until a connection counts as not to be had; at most a third of the deadline.
        accept_statuses: statuses that mean that the effect is there.
        uds: path of a Unix socket to connect to instead of the URL's host, or empty.
        token: sent as a bearer token, unless empty.
        response_bytes_max: an answer's body is not read any further.
        retry_after_max_seconds: bound of the wait that a handler may ask for.
        keepalive_seconds: an idle connection is not used again after this long. Keep it below the handler's
            own keep-alive time-out (uvicorn 5 s, gunicorn 2 s), or calls meet connections that are closing.
        verify: trust and client certificates for https; without one, the system's trust store.
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
        uds: str = "",
        token: str = "",
        response_bytes_max: int = 65536,
        retry_after_max_seconds: float = 300.0,
        keepalive_seconds: float = 1.5,
        verify: ssl.SSLContext | None = None,
        forbidden: Callable[[str], bool] = is_metadata_host,
    ) -> None:
        self._forbidden = forbidden
        self._url = _checked_url(url)
        self._where = f"{self._url.scheme}://{self._url.netloc.decode()}"
        self._timeout_seconds = timeout_seconds
        self._accept_statuses = accept_statuses
        self._response_bytes_max = response_bytes_max
        self._retry_after_max_seconds = retry_after_max_seconds
        self._headers = _constant_headers(token)
        step_seconds = min(connect_timeout_seconds, timeout_seconds * _STEP_SHARE)
        self._timeouts = {"connect": step_seconds, "pool": step_seconds}
        self._transport = httpx2.AsyncHTTPTransport(
            verify=verify or _trust(self._url.scheme),
            uds=uds or None,
            trust_env=False,
            limits=httpx2.Limits(
                max_connections=concurrency,
                max_keepalive_connections=concurrency,
                keepalive_expiry=keepalive_seconds,
            ),
        )

    async def close(self) -> None:
        """Close all connections; safe twice."""
        await self._transport.aclose()

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Ask the handler once; see ports/handler.py."""
        progress = _Progress(self._forbidden)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._ask_past_dead_connection(request, progress)
        except _UNREACHABLE as error:
            return NotDelivered(f"the handler at {self._where} cannot be reached: {_one_line(error)}")
        except _ForbiddenError:
            return NotDelivered(
                f"the handler at {self._where} is link-local or a cloud's metadata service: nothing is sent"
            )
        except TimeoutError:
            if not progress.sent:
                return NotDelivered(f"no connection to the handler at {self._where} before the deadline")
            return Retry(f"the handler gave no whole answer within {self._timeout_seconds:g} s")
        except _BROKEN as error:
            return Retry(_broken(error))

    async def _ask_past_dead_connection(
        self, request: HandlerRequest, progress: "_Progress"
    ) -> HandlerResult:
        """Ask again, once, if the connection was an idle one that the server was just closing.

        Then the handler most probably saw nothing; if it did, it knows the message id. A second try that
        finds nobody says nothing about the first one: its outcome stays unknown.
        """
        try:
            return await self._ask(request, progress)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            if not (progress.reused and _hung_up(error)):
                raise
            try:
                return await self._ask(request, progress)
            except _UNREACHABLE:
                raise error from None

    async def _ask(self, request: HandlerRequest, progress: "_Progress") -> HandlerResult:
        response = await self._transport.handle_async_request(
            httpx2.Request(
                "POST",
                self._url,
                headers=[*self._headers, *_headers_of(request)],
                content=request_body(request),
                extensions={"timeout": self._timeouts, "trace": progress.note},
            )
        )
        progress.response = response
        size = await self._read(response)
        return result_of(
            response.status_code,
            accept_statuses=self._accept_statuses,
            after_seconds=self._wait_asked(response.headers),
            detail=size,
        )

    async def _read(self, response: httpx2.Response) -> str:
        """Read the body away, so that the connection is free for the next call; describe its size.

        The status has been told by then, so a body beyond the bound changes nothing but costs the connection.
        """
        size = 0
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > self._response_bytes_max:
                    return f" (with more than {self._response_bytes_max} bytes)"
        return f" (with {size} bytes)"

    def _wait_asked(self, headers: httpx2.Headers) -> float:
        value = headers.get("retry-after", "")
        if not value:
            return 0.0
        return retry_after_seconds(
            value, date=headers.get("date", ""), max_seconds=self._retry_after_max_seconds
        )


class _Progress:
    """How far a call got, as httpx2's ``trace`` extension tells it; steps in where it must not go on."""

    __slots__ = ("_connected", "_forbidden", "response", "sent")

    def __init__(self, forbidden: Callable[[str], bool]) -> None:
        self._forbidden = forbidden
        self._connected = False
        self.sent = False
        self.response: httpx2.Response | None = None

    @property
    def reused(self) -> bool:
        """The call went out on a connection from an earlier one and has no answer."""
        return self.sent and not self._connected and self.response is None

    async def note(self, name: str, info: Mapping[str, Any]) -> None:
        if name == "http11.send_request_headers.started":
            self.sent = True
        elif name == "connection.connect_tcp.complete":
            await self._check_peer(info["return_value"])
        elif name.startswith("connection."):
            self._connected = True
        elif name == "http11.response_closed.started" and self.response is not None:
            await _forget_if_more_was_said(self.response)

    async def _check_peer(self, stream: Any) -> None:
        """Look at whom a name has led to, before anything is sent."""
        address, *_ = stream.get_extra_info("server_addr")
        if self._forbidden(address):
            await stream.aclose()
            raise _ForbiddenError


async def _forget_if_more_was_said(response: httpx2.Response) -> None:
    """Give a connection up on which more came than one answer: the next call would take it for its own."""
    try:
        left_over, _ = _LEFT_OVER(response.stream)
    except AttributeError:  # httpx2 keeps it elsewhere now, so nobody can tell
        left_over = b"?"
    if left_over:
        await response.extensions["network_stream"].aclose()


def _hung_up(error: httpx2.HTTPError) -> bool:
    """Tell a connection that ended from bytes that are not HTTP; both can be a RemoteProtocolError."""
    return isinstance(error, httpx2.NetworkError) or "disconnected" in str(error)


def _headers_of(request: HandlerRequest) -> Sequence[tuple[str, str]]:
    mine = (("idempotency-key", request.message_id), ("x-message-id", request.message_id))
    return (*mine, *request.trace_headers.items())


def _constant_headers(token: str) -> list[tuple[str, str]]:
    headers = [
        ("content-type", "application/json"),
        ("accept-encoding", "identity"),
        ("user-agent", "sea-mq-worker"),
    ]
    if token:
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the handler's token holds a space or a character outside visible ASCII")
        headers.append(("authorization", f"Bearer {token}"))
    return headers


def _checked_url(url: str) -> httpx2.URL:
    """Refuse what would fail at every call; the text leaves the URL out, it may hold a password."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ValueError("the handler's URL is not a URL") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or "%" in parsed.host:
        raise ValueError("the handler's URL must begin with http:// or https:// and name a host")
    if parsed.userinfo:
        raise ValueError("the handler's URL must not hold a user or password; use a token")
    return parsed


def _trust(scheme: str) -> Any:
    """Without https nothing is verified; an empty context saves reading the trust store."""
    return True if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:_TROUBLE_CHARS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _broken(error: Exception) -> str:
    """Leave the error's text out: of an answer that is no HTTP it quotes the handler's bytes."""
    if isinstance(error, httpx2.HTTPError) and _hung_up(error):
        return "the handler closed the connection without a whole answer"
    return f"the handler's answer is broken or not HTTP ({type(error).__name__})"

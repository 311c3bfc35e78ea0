"""The admin server: health, metrics, status and one small page; it reads, and changes nothing.

On the worker's own loop on purpose: a loop that is stuck must fail its liveness probe. Every answer is made
of numbers that are at hand, so it comes at once even while a database or a broker hangs.

With a token, /metrics and /status ask for it; probes get no secrets, so /healthz and /readyz do not, but
then tell no reasons. The page itself holds no data and asks the reader for the token.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from sea_mq_worker.domain.errors import WorkerError

Reasons: TypeAlias = Mapping[str, str]
"""What is wrong, by the name of the part; empty: nothing is."""

_HEAD_BYTES_MAX = 8192
_HEAD_SECONDS_MAX = 5.0
_WRITE_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 32
_PAGE = Path(__file__).with_name("page.html")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)

_log = logging.getLogger("sea_mq_worker")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


_UNAUTHORIZED = _Answer(HTTPStatus.UNAUTHORIZED, headers=("www-authenticate: Bearer",))


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    authorization: str


@dataclass(kw_only=True)
class AdminServer:
    """Serves GET and HEAD, one request a connection.

    Attributes:
        port: 0 takes a free one; after ``start`` it is the port in use.
        ready: why it cannot work now.
        metrics: the Prometheus exposition.
        status: what the page shows; JSON data.
        live: why the process should be restarted, beyond a loop that is stuck and so does not answer at all.
        token: asked for on what tells more than health; empty: nobody is asked.
    """

    host: str
    port: int
    ready: Callable[[], Reasons]
    metrics: Callable[[], bytes]
    status: Callable[[], Mapping[str, object]]
    live: Callable[[], Reasons] = dict
    token: str = field(default="", repr=False)
    _server: asyncio.Server | None = field(default=None, init=False, repr=False)
    _open: dict[asyncio.Task[None], asyncio.WriteTransport] = field(
        default_factory=dict, init=False, repr=False
    )

    async def start(self) -> None:
        """Listen.

        Raises:
            WorkerError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, self.host, self.port, limit=_HEAD_BYTES_MAX
            )
        except OSError as error:
            raise WorkerError(
                f"the admin address {self.host}:{self.port} cannot be bound ({error.strerror}): "
                f"choose another admin host or port, or stop what listens there"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end open connections; safe twice and before ``start``."""
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError
        if len(self._open) >= _CONNECTIONS_MAX:
            self._end_oldest()
        self._open[task] = writer.transport
        try:
            request = await _read_request(reader)
            answer = request if isinstance(request, _Answer) else self._answer(request)
            head_only = isinstance(request, _Request) and request.method == "HEAD"
            writer.write(_bytes_of(answer, head_only=head_only))
            async with asyncio.timeout(_WRITE_SECONDS_MAX):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()  # whoever asked is gone, or reads too slowly
        finally:
            self._open.pop(task, None)
            writer.close()

    def _end_oldest(self) -> None:
        """A probe is over in milliseconds: who has been here longest is slow, perhaps on purpose."""
        oldest = next(iter(self._open))
        self._open.pop(oldest).abort()

    def _answer(self, request: _Request) -> _Answer:
        if request.method not in {"GET", "HEAD"}:
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, headers=("allow: GET, HEAD",))
        try:
            return self._route(request.path, authorized=self._is_authorized(request.authorization))
        except Exception:  # noqa: BLE001  (a callback that fails must not end the server)
            _log.exception("%s could not be answered", request.path, extra={"event": "admin_request_failed"})
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _route(self, path: str, *, authorized: bool) -> _Answer:
        match path:
            case "/healthz":
                return _health(self.live(), authorized=authorized)
            case "/readyz":
                return _health(self.ready(), authorized=authorized)
            case "/":
                policy = (f"content-security-policy: {_PAGE_POLICY}",)
                return _Answer(HTTPStatus.OK, _PAGE.read_bytes(), "text/html; charset=utf-8", policy)
            case "/metrics" | "/status":
                return self._data(path) if authorized else _UNAUTHORIZED
            case _:
                return _Answer(HTTPStatus.NOT_FOUND)

    def _data(self, path: str) -> _Answer:
        if path == "/metrics":
            return _Answer(HTTPStatus.OK, self.metrics(), _METRICS_TYPE)
        return _json(HTTPStatus.OK, self.status())

    def _is_authorized(self, authorization: str) -> bool:
        if not self.token:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())


async def _read_request(reader: asyncio.StreamReader) -> _Request | _Answer:
    """Read the head alone: GET and HEAD have no body, and others are refused."""
    try:
        async with asyncio.timeout(_HEAD_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except TimeoutError:
        return _Answer(HTTPStatus.REQUEST_TIMEOUT)
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004
        return _Answer(HTTPStatus.BAD_REQUEST)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Request(words[0], words[1].partition("?")[0], headers.get("authorization", ""))


def _health(reasons: Reasons, *, authorized: bool) -> _Answer:
    if not reasons:
        return _json(HTTPStatus.OK, {"ok": True})
    told = {"ok": False, "reasons": dict(reasons)} if authorized else {"ok": False}
    return _json(HTTPStatus.SERVICE_UNAVAILABLE, told)


def _json(status: HTTPStatus, data: Mapping[str, object]) -> _Answer:
    return _Answer(status, json.dumps(data).encode(), "application/json")


def _bytes_of(answer: _Answer, *, head_only: bool) -> bytes:
    body = answer.body or f"{answer.status.phrase}\n".encode()
    lines = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *answer.headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + (b"" if head_only else body)

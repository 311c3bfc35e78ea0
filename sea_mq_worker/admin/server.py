"""Connections of the admin server: few and short, so that a probe always gets its answer.

The server runs on the worker's own event loop: a stuck loop must fail its liveness probe. Only the operator
API queries servers; every other answer comes at once, even while a database or a broker hangs.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from sea_mq_worker.admin.api import OperatorApi, dispatch
from sea_mq_worker.admin.http import (
    HEAD_BYTES_MAX,
    AdminResponse,
    Request,
    TokenAuth,
    health,
    json_response,
    read_request,
)
from sea_mq_worker.errors import WorkerError

# --- Routes of the admin server, and their authorization.
#
# Probes carry no token, so /healthz and /readyz require none; without the token they name the unready parts
# and not the reasons. The page itself holds no data and asks the user for the token.

Reasons: TypeAlias = Mapping[str, str]
"""Reason by the name of the unready part; empty: all parts are ready."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = ("action_form", "api", "operator_panel", "page", "rendering", "side_cards")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
_POLICY = (
    "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Answers requests.

    Attributes:
        ready: why the worker is not ready, by part.
        warnings: troubles, by name, in spite of which the worker is ready.
        metrics: the exposition.
        status: the data of ``/status``.
        access: authorizes all but health.
        operator_api: queries and changes with the token; None: there are none.
    """

    ready: Callable[[], Reasons]
    metrics: Callable[[], bytes]
    status: Callable[[], object]
    access: TokenAuth
    operator_api: OperatorApi | None
    warnings: Callable[[], Reasons] = dict

    async def answer(self, request: Request) -> AdminResponse:
        """Answer at once; only a request to the operator API may take a while."""
        if request.path.startswith("/api/") and request.method in {"GET", "POST"}:
            return await self._operator(request)
        if request.method not in {"GET", "HEAD"}:
            return AdminResponse(HTTPStatus.METHOD_NOT_ALLOWED, headers=("allow: GET, HEAD",))
        if request.path in _FILES:
            return _file(*_FILES[request.path])
        return self._numbers(request)

    def _numbers(self, request: Request) -> AdminResponse:
        refused = self.access.refuse_numbers(request)
        match request.path:
            case "/healthz":
                return json_response({"ok": True})  # a stuck loop does not even answer
            case "/readyz":
                return health(self.ready(), self.warnings(), authorized=refused is None)
            case "/metrics":
                return refused or AdminResponse(HTTPStatus.OK, self.metrics(), _METRICS_TYPE)
            case "/status":
                return refused or json_response(self.status())
            case _:
                return AdminResponse(HTTPStatus.NOT_FOUND)

    async def _operator(self, request: Request) -> AdminResponse:
        refused = self.access.refuse_operator(request)
        if refused is not None or self.operator_api is None:
            return refused or AdminResponse(HTTPStatus.NOT_FOUND)
        return await dispatch(self.operator_api, request)


def _file(name: str, content_type: str) -> AdminResponse:
    return AdminResponse(HTTPStatus.OK, (_FOLDER / name).read_bytes(), content_type, (_POLICY,))


_WRITE_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 32

_log = logging.getLogger("sea_mq_worker")


@dataclass(kw_only=True)
class AdminServer:
    """Serves one request per connection.

    Attributes:
        port: 0 selects a free port; after ``start`` it is the port in use.
    """

    host: str
    port: int
    routes: Routes
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
            self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise WorkerError(
                f"{self.host}:{self.port} cannot be bound ({_reason(error)}): "
                "choose another address, or stop the program that listens there"
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
            peer = (writer.get_extra_info("peername") or ("",))[0]
            request = await read_request(reader, peer=peer)
            answer = request if isinstance(request, AdminResponse) else await self._answer(request)
            head_only = isinstance(request, Request) and request.method == "HEAD"
            writer.write(answer.to_bytes(head_only=head_only))
            async with asyncio.timeout(_WRITE_SECONDS_MAX):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client is gone, or reads too slowly
        finally:
            self._open.pop(task, None)
            writer.close()

    def _end_oldest(self) -> None:
        """Abort the oldest connection: a probe takes milliseconds, so its client is slow."""
        oldest = next(iter(self._open))
        self._open.pop(oldest).abort()

    async def _answer(self, request: Request) -> AdminResponse:
        try:
            return await self.routes.answer(request)
        except Exception:  # noqa: BLE001  (a callback that fails must not end the server)
            _log.exception("%s could not be answered", request.path, extra={"event": "admin_request_failed"})
            return AdminResponse(HTTPStatus.INTERNAL_SERVER_ERROR)


def _reason(error: OSError) -> str:
    """Return the system's text, because asyncio's own text repeats the address."""
    number = error.errno or 0
    return (
        os.strerror(number) if number > 0 else str(error.strerror)
    )  # a name that does not resolve has a number below 0

"""The admin server: health, metrics, status and the page, on few and short connections.

It runs on the worker's own event loop: a stuck loop must fail its liveness probe. Only the operator API
queries servers; every other answer comes at once, even while a database or a broker hangs.

Probes carry no token, so /healthz and /readyz require none; without the token they name the unready parts
and not the reasons. The page itself holds no data and asks the user for the token.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.http import (
    HEAD_BYTES_MAX,
    RefusedError,
    Request,
    Response,
    TokenAuth,
    json_response,
    read_request,
)
from sea_mq_worker.errors import WorkerError

_CONNECTIONS_MAX = 32
_WRITE_SECONDS_MAX = 5.0
_STATES = {"stop": "stopping", "start": "starting"}
"""State of a worker by its unready part; any other part means paused."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = [*Path(__file__).with_name("page").iterdir()]
_PAGE = {f"/{file.name}": file for file in _FILES if file.suffix in _TYPES}
_POLICY = (
    "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)

_log = logging.getLogger("sea_mq_worker")


@dataclass(kw_only=True)
class AdminServer:
    """Serves one request per connection.

    Attributes:
        port: 0 selects a free port; after ``start`` it is the port in use.
        reasons: why the worker is not ready, by part.
        warnings: troubles, by name, in spite of which the worker is ready.
        metrics: the exposition.
        status: the data of ``/status``.
        token: as of ``TokenAuth``.
        operator_api: queries and changes with the token; None: there are none.
    """

    host: str
    port: int
    reasons: Callable[[], Mapping[str, str]] = dict
    warnings: Callable[[], Mapping[str, str]] = dict
    metrics: Callable[[], bytes] = bytes
    status: Callable[[], object] = dict
    token: Callable[[], str] = str
    operator_api: OperatorApi | None = None
    _server: asyncio.Server | None = field(default=None, init=False, repr=False)
    _open: dict[asyncio.Task[None], asyncio.WriteTransport] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._access = TokenAuth(self.token)

    async def start(self) -> None:
        """Listen.

        Raises:
            WorkerError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            number = error.errno or 0  # asyncio's own text repeats the address
            why = os.strerror(number) if number > 0 else error.strerror  # below 0: no such host
            raise WorkerError(
                f"{self.host}:{self.port} cannot be bound ({why}): "
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
        if len(self._open) >= _CONNECTIONS_MAX:  # a probe takes milliseconds: the oldest client is slow
            self._open.pop(next(iter(self._open))).abort()
        self._open[task] = writer.transport
        head_only = False
        try:
            try:
                peer = (writer.get_extra_info("peername") or ("",))[0]
                request = await read_request(reader, peer=peer)
                head_only = request.method == "HEAD"
                response = await self._answer_always(request)
            except RefusedError as refused:
                response = refused.response
            writer.write(response.to_bytes(head_only=head_only))
            async with asyncio.timeout(_WRITE_SECONDS_MAX):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client is gone, or reads too slowly
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _answer_always(self, request: Request) -> Response:
        """Answer also if a callback fails, which must not end the server."""
        try:
            return await self._answer(request)
        except RefusedError:
            raise
        except Exception:  # noqa: BLE001  (logged)
            _log.exception("%s could not be answered", request.path, extra={"event": "admin_request_failed"})
            return RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR).response

    async def _answer(self, request: Request) -> Response:
        """Answer at once; only a request to the operator API may take a while."""
        if request.path.startswith("/api/") and request.method in {"GET", "POST"}:
            self._access.check_operator(request)
            if self.operator_api is None:
                raise RefusedError(HTTPStatus.NOT_FOUND)
            return await self.operator_api.answer(request)
        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "", "allow: GET, HEAD")
        path = "/index.html" if request.path == "/" else request.path
        if file := _PAGE.get(path):
            content_type = f"{_TYPES[file.suffix]}; charset=utf-8"
            return Response(file.read_bytes(), content_type, headers=(_POLICY,))
        match path:
            case "/healthz":
                return json_response({"ok": True})  # a stuck loop does not even answer
            case "/readyz":
                return self._readiness(request)
            case "/metrics":
                self._access.check_numbers(request)
                return Response(self.metrics(), _METRICS_TYPE)
            case "/status":
                self._access.check_numbers(request)
                return json_response(self.status())
            case _:
                raise RefusedError(HTTPStatus.NOT_FOUND)

    def _readiness(self, request: Request) -> Response:
        """Answer a probe with the unready parts; who may read numbers learns why, and the warnings."""
        reasons, more = self.reasons(), dict[str, object]()
        try:
            self._access.check_numbers(request)
        except RefusedError:
            pass
        else:
            more = {"reasons": reasons} if reasons else {}
            if warnings := self.warnings():
                more["warnings"] = warnings
        if not reasons:
            return json_response({"ok": True, **more})
        state = next((name for part, name in _STATES.items() if part in reasons), "paused")
        answer = {"ok": False, "state": state, "parts": sorted(reasons), **more}
        return json_response(answer, HTTPStatus.SERVICE_UNAVAILABLE)

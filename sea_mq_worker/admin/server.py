"""The admin server's connections: few, short, and never in the way of a probe.

On the worker's own loop on purpose: a loop that is stuck must fail its liveness probe. Every answer but the
desk's is made of what is at hand, so it comes at once even while a database or a broker hangs.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from sea_mq_worker.admin.auth import TokenAuth
from sea_mq_worker.admin.operator_api import OperatorApi
from sea_mq_worker.admin.requests import HEAD_BYTES_MAX, Request, read_request
from sea_mq_worker.admin.responses import AdminResponse
from sea_mq_worker.admin.routes import Reasons, Routes
from sea_mq_worker.domain.errors import WorkerError

_WRITE_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 32

_log = logging.getLogger("sea_mq_worker")


@dataclass(kw_only=True)
class AdminServer:
    """Serves one request a connection.

    Attributes:
        port: 0 takes a free one; after ``start`` it is the port in use.
        ready: why it cannot work now.
        metrics: the Prometheus exposition; told True it is OpenMetrics.
        status: what the page shows; JSON data.
        history: how that went during the last hour; JSON data.
        live: why the process should be restarted, beyond a loop that is stuck and so does not answer at all.
        token: asked for on what tells more than health; empty: numbers are for everybody, and the desk is
            closed.
        desk: what is asked and done with the token.
    """

    host: str
    port: int
    ready: Callable[[], Reasons]
    metrics: Callable[[bool], bytes]
    status: Callable[[], Mapping[str, object]]
    history: Callable[[], Mapping[str, object]] = dict
    live: Callable[[], Reasons] = dict
    token: str = field(default="", repr=False)
    desk: OperatorApi | None = None
    _server: asyncio.Server | None = field(default=None, init=False, repr=False)
    _open: dict[asyncio.Task[None], asyncio.WriteTransport] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._routes = Routes(
            live=self.live,
            ready=self.ready,
            metrics=self.metrics,
            status=self.status,
            history=self.history,
            access=TokenAuth(self.token),
            desk=self.desk,
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
                "choose another, or stop what listens there"
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
            writer.transport.abort()  # whoever asked is gone, or reads too slowly
        finally:
            self._open.pop(task, None)
            writer.close()

    def _end_oldest(self) -> None:
        """A probe is over in milliseconds: who has been here longest is slow, perhaps on purpose."""
        oldest = next(iter(self._open))
        self._open.pop(oldest).abort()

    async def _answer(self, request: Request) -> AdminResponse:
        try:
            return await self._routes.answer(request)
        except Exception:  # noqa: BLE001  (a callback that fails must not end the server)
            _log.exception("%s could not be answered", request.path, extra={"event": "admin_request_failed"})
            return AdminResponse(HTTPStatus.INTERNAL_SERVER_ERROR)


def _reason(error: OSError) -> str:
    """Word it as the system does: asyncio's own text tells the address again."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else str(error.strerror)  # of a name that leads nowhere: below 0

"""Connections of the admin server: few and short, so that a probe always gets its answer.

The server runs on the worker's own event loop: a stuck loop must fail its liveness probe. Only the operator
API queries servers; every other answer comes at once, even while a database or a broker hangs.
"""

import asyncio
import logging
import os
from dataclasses import dataclass, field
from http import HTTPStatus

from sea_mq_worker.admin.requests import HEAD_BYTES_MAX, Request, read_request
from sea_mq_worker.admin.responses import AdminResponse
from sea_mq_worker.admin.routes import Routes
from sea_mq_worker.domain.errors import WorkerError

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

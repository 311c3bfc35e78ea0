"""One HTTP/1.1 connection to the handler, for one request at a time."""

import asyncio
import select
import socket
from collections.abc import Mapping, Sequence
from typing import cast

import httpx2

from sea_mq_worker.adapters.http.client.response import Response, ResponseParser

_SILENT_MILLISECONDS = 8000
_TCP = {"TCP_USER_TIMEOUT": _SILENT_MILLISECONDS, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
"""Detect a vanished peer within ten seconds, also while a call waits for its response."""
_LARGE_BYTES = 65_536
"""A peer's buffer takes a smaller request even while the peer does not read."""
_INTERIM_MAX = 100
"""Cap on 1xx responses; after it the connection is not read any more, and the deadline ends the call."""


class Connection(asyncio.Protocol):
    """Sends requests and reads responses; unexpected bytes end the connection.

    Attributes:
        closed: done once the connection has ended.
        received_any: bytes arrived since the last request.
        idle_since: on the loop's clock; set by the pool.
    """

    def __init__(self, *, body_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()
        self.received_any = False
        self.idle_since = 0.0
        self._reader = ResponseParser(body_bytes_max)
        self._waiter: asyncio.Future[Response | httpx2.TransportError] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._may_stall = False

    def use(self, transport: asyncio.Transport) -> None:
        """Use this transport: the socket's, or TLS over it."""
        self._transport = transport

    @property
    def is_reusable(self) -> bool:
        """Whether the last response leaves it open, and no byte of a request or response is in flight."""
        transport = self._transport
        return self._reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()

    @property
    def is_quiet(self) -> bool:
        """Whether neither bytes nor an end arrived, including those that the loop has not read yet."""
        return not self._transport.is_closing() and not self._arrivals.poll(0)

    def abort(self) -> None:
        self._transport.abort()

    async def exchange(self, request: Sequence[bytes], deadline: float) -> Response:
        """Send one request, head and body, and return the response; without one the connection ends.

        A small request goes out in one write; a large one is written in parts, without a copy.

        Raises:
            httpx2.ConnectError: the connection has already ended; nothing was sent.
            httpx2.ReadTimeout: no response before the deadline, on the loop's clock.
            httpx2.ReadError, httpx2.RemoteProtocolError: the connection broke, or the bytes are not HTTP.
        """
        if self._transport.is_closing():
            raise httpx2.ConnectError("the connection has ended")
        self.received_any = False
        self._reader.begin()
        waiter: asyncio.Future[Response | httpx2.TransportError] = self._loop.create_future()
        self._waiter = waiter
        self._watch(deadline)
        is_large = sum(map(len, request)) > _LARGE_BYTES
        try:
            self._let_stall(is_large)
            if is_large:
                self._transport.writelines(request)
            else:
                self._transport.write(b"".join(request))
            outcome = await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None
        if isinstance(outcome, httpx2.TransportError):
            self.abort()
            raise outcome
        return outcome

    def _let_stall(self, may_stall: bool) -> None:
        """Let a busy peer leave a large request unread: to the system, its full buffer is a vanished peer."""
        if may_stall != self._may_stall:
            self._may_stall = may_stall
            _set_tcp(self._socket, {"TCP_USER_TIMEOUT": 0 if may_stall else _SILENT_MILLISECONDS})

    def _watch(self, deadline: float) -> None:
        """Set the timer unless it fires earlier anyway; one timer serves many requests."""
        self._deadline = deadline
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._watch(self._deadline)
        else:
            self._end(httpx2.ReadTimeout("no whole answer before the deadline"))

    def _end(self, outcome: Response | httpx2.TransportError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(outcome)

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(cast("asyncio.Transport", transport))
        self._socket = transport.get_extra_info("socket")
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _set_tcp(self._socket, _TCP)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.abort()
            return
        self.received_any = True
        reader = self._reader
        try:
            reader.feed(data)
        except httpx2.RemoteProtocolError as error:
            self._end(error)
        if reader.answer is not None:
            self._end(reader.answer)
        elif reader.interim > _INTERIM_MAX:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            self._end(httpx2.ReadError(str(exc)))
            return
        self._reader.feed_eof()
        self._end(self._reader.answer or httpx2.RemoteProtocolError("Server disconnected without an answer."))


def _set_tcp(end: socket.socket, options: Mapping[str, int]) -> None:
    for name, value in options.items():
        if hasattr(socket, name):  # if the platform has the option
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

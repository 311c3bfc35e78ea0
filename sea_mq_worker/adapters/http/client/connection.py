"""One HTTP/1.1 connection to the handler, for one request at a time."""

import asyncio
import select
import socket
from collections.abc import Sequence
from typing import cast

import httpx2

from sea_mq_worker.adapters.http.client.response import Response, ResponseParser

_TCP = {"TCP_USER_TIMEOUT": 8000, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
"""A peer that vanished without a word is noticed within ten seconds, also while an answer is waited for."""
_LARGE_BYTES = 65_536
_INTERIM_MAX = 100
"""Whoever sends more 1xx than this is not listened to any more; the deadline ends the wait."""


class Connection(asyncio.Protocol):
    """Asks and listens; anything that nobody asked for ends it.

    Attributes:
        lost: done when it has ended.
        received_any: something has come since the last request.
        idle_since: on the loop's clock; kept by whoever holds idle connections.
    """

    def __init__(self, *, body_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self.received_any = False
        self.idle_since = 0.0
        self._reader = ResponseParser(body_bytes_max)
        self._waiter: asyncio.Future[Response | httpx2.TransportError] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def use(self, transport: asyncio.Transport) -> None:
        """Talk over this: what it was made with, or TLS over that."""
        self._transport = transport

    @property
    def is_reusable(self) -> bool:
        """The last answer leaves it open, and there is nothing of a request or an answer on its way."""
        transport = self._transport
        return self._reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()

    @property
    def is_quiet(self) -> bool:
        """Nothing has come, no end and no bytes; the loop may not have read yet what has."""
        return not self._transport.is_closing() and not self._arrivals.poll(0)

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    async def exchange(self, request: Sequence[bytes], deadline: float) -> Response:
        """Send one request, head and body, and return the answer; the connection ends if there is none.

        A small one goes out in one write; a large one is not copied for that.

        Raises:
            httpx2.ConnectError: it has ended already; nothing was sent.
            httpx2.ReadTimeout: there was none before the deadline, on the loop's clock.
            httpx2.ReadError, httpx2.RemoteProtocolError: there will be none, or it is none.
        """
        if self._transport.is_closing():
            raise httpx2.ConnectError("the connection has ended")
        self.received_any = False
        self._reader.begin()
        waiter: asyncio.Future[Response | httpx2.TransportError] = self._loop.create_future()
        self._waiter = waiter
        self._watch(deadline)
        try:
            if sum(map(len, request)) > _LARGE_BYTES:
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

    def _watch(self, deadline: float) -> None:
        """Set the timer, unless it rings before anyway: it serves many requests, most of which need none."""
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
        end = transport.get_extra_info("socket")
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)
        if end.family != socket.AF_UNIX:
            _notice_silence(end)

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
        self.lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            self._end(httpx2.ReadError(str(exc)))
            return
        self._reader.feed_eof()
        self._end(self._reader.answer or httpx2.RemoteProtocolError("Server disconnected without an answer."))


def _notice_silence(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):  # as far as the platform has them
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

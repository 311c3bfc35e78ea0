"""HandlerTransport: many small requests to one URL, with httpx2's URL, TLS context and errors.

It speaks HTTP/1.1 over TCP or TLS: one write per request, one deadline per exchange, limits
per response. httpx2's own transport costs several times as much CPU per request, its request and response
objects as much again, and it takes unrequested bytes for the next response.
"""

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import cast

import httptools
import httpx2

_HEAD_BYTES_MAX = 65536
_HEADER_BYTES = 32
"""Bytes counted per header besides its text, as in HTTP/2; so the cap also limits their number."""
_SUCCESS = 200
_SWITCHING_PROTOCOLS = 101
_INTERIM_MAX = 100
"""Cap on 1xx responses; after it the connection is not read any more, and the deadline ends the call."""
_SILENT_MILLISECONDS = 8000
_TCP = {"TCP_USER_TIMEOUT": _SILENT_MILLISECONDS, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
"""Detect a vanished peer within ten seconds, also while a call waits for its response."""
_LARGE_BYTES = 65_536
"""A peer's buffer takes a smaller request even while the peer does not read."""
_PORTS = {"http": 80, "https": 443}

Header = tuple[bytes, bytes]


class DisconnectedError(httpx2.RemoteProtocolError):
    """The connection ended properly, but before a whole response."""


@dataclass(frozen=True, slots=True)
class Response:
    """One response; ``body`` is as it came over the wire, cut if it was too long."""

    status: int
    headers: list[Header]
    body: bytes


class ResponseParser:
    """Reads one response after another from a connection's bytes; call ``begin`` before each.

    llhttp parses; this class keeps the parts and sets limits. Bytes after a response are no part of the next
    one: they end the connection.
    A body beyond ``body_bytes_max`` is cut.
    """

    answer: Response | None
    """The response, once it is complete or cut."""
    interim: int
    """Number of 1xx responses before it."""
    reusable: bool
    """Whether the connection can take another request."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        self.answer = None
        self.interim = 0
        self.reusable = False
        self._head_bytes = self._other_bytes = self._body_bytes = 0
        self.on_message_begin()

    def feed(self, data: bytes) -> None:
        """Parse more bytes; raise httpx2.RemoteProtocolError if they are no HTTP, or the head is too long."""
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if self.answer is None:
                raise httpx2.RemoteProtocolError(str(error)) from error
        if self.answer is None and (
            self._body_bytes > self._body_bytes_max or self._other_bytes > _HEAD_BYTES_MAX
        ):
            if self._status is None:
                raise httpx2.RemoteProtocolError("the head is too long")
            self._finish(self._status)  # cut: of so long a response, only the status matters

    def feed_eof(self) -> None:
        """End a response that announces no length with the connection."""
        if self._status is not None and self.answer is None:
            names = {name.lower() for name, _ in self._headers}
            if names.isdisjoint((b"content-length", b"transfer-encoding")):
                self._finish(self._status)

    def _finish(self, status: int) -> None:
        self.answer = Response(status, self._headers, b"".join(self._chunks))

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.answer is not None:
            self.reusable = False
        self._status: int | None = None
        self._headers: list[Header] = []
        self._chunks: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + _HEADER_BYTES
        if self._head_bytes > _HEAD_BYTES_MAX:
            raise ValueError("too many headers")
        if self._status is None:  # otherwise a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._other_bytes -= len(body)
        self._body_bytes += len(body)
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._status
        if status is None or self.answer is not None:
            return
        if status < _SUCCESS and status != _SWITCHING_PROTOCOLS:
            self.interim += 1
            self._status = None
            self._other_bytes = 0
            return
        self._finish(status)
        self.reusable = status != _SWITCHING_PROTOCOLS and self._parser.should_keep_alive()


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, for one request at a time; unexpected bytes end it."""

    transport: asyncio.Transport
    """The socket's, or TLS over it."""
    received_any = False
    """Bytes arrived since the last request."""
    idle_since = 0.0
    """On the loop's clock; set by the pool."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()
        self._reader = ResponseParser(body_bytes_max)
        self._waiter: asyncio.Future[Response | httpx2.TransportError] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._may_stall = False

    @property
    def is_reusable(self) -> bool:
        """Whether the last response leaves it open, and no byte of a request or response is in flight."""
        transport = self.transport
        return self._reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()

    @property
    def is_quiet(self) -> bool:
        """Whether neither bytes nor an end arrived, including those that the loop has not read yet."""
        return not self.transport.is_closing() and not self._arrivals.poll(0)

    def abort(self) -> None:
        self.transport.abort()

    async def exchange(self, request: Sequence[bytes], deadline: float) -> Response:
        """Send one request, head and body, and return the response; without one the connection ends.

        A small request goes out in one write; a large one is written in parts, without a copy.
        """
        if self.transport.is_closing():
            raise httpx2.ConnectError("the connection has ended")
        self.received_any = False
        self._reader.begin()
        waiter: asyncio.Future[Response | httpx2.TransportError] = self._loop.create_future()
        self._waiter = waiter
        self._watch(deadline)
        is_large = sum(map(len, request)) > _LARGE_BYTES
        try:
            if is_large != self._may_stall:
                # A busy peer may leave a large request unread: to the system, it would be a vanished peer.
                self._may_stall = is_large
                _set_tcp(self._socket, {"TCP_USER_TIMEOUT": 0 if is_large else _SILENT_MILLISECONDS})
            if is_large:
                self.transport.writelines(request)
            else:
                self.transport.write(b"".join(request))
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
        self.transport = cast("asyncio.Transport", transport)
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
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            self._end(httpx2.ReadError(str(exc)))
            return
        self._reader.feed_eof()
        self._end(self._reader.answer or DisconnectedError("the connection ended without an answer"))


def _set_tcp(end: socket.socket, options: dict[str, int]) -> None:
    for name, value in options.items():
        if hasattr(socket, name):  # if the platform has the option
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@dataclass(slots=True, eq=False)
class HandlerTransport:
    """Posts to one URL over a pool of connections, of which the one used last is used first.

    The pool has no timer: it closes expired connections when a call takes or returns one.

    ``ConnectError``, ``ConnectTimeout`` and ``PoolTimeout`` mean that nothing of a request was sent,
    ``ReadTimeout``, ``ReadError`` and ``RemoteProtocolError`` that its outcome is unknown.

    Attributes:
        headers: of every request.
        size: most connections, and so most calls side by side.
        keepalive_seconds: an idle connection is not used again after this long.
        deadline_seconds: from the call to the answer's last byte.
        connect_seconds: for the wait for a turn, and again for a new connection with its TLS handshake.
        tls: used for https alone.
        forbidden: addresses that no connection is used to, whatever name leads there.
    """

    url: httpx2.URL
    _: KW_ONLY
    headers: Iterable[Header]
    size: int
    keepalive_seconds: float
    deadline_seconds: float
    connect_seconds: float
    body_bytes_max: int
    tls: ssl.SSLContext
    forbidden: Callable[[str], bool]
    _head: bytes = field(init=False)
    _slots: asyncio.Semaphore = field(init=False)
    _idle: deque[Connection] = field(default_factory=deque)
    _open: set[Connection] = field(default_factory=set)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self.tls.set_alpn_protocols(["http/1.1"])
        self._head = b"POST %b HTTP/1.1\r\n" % self.url.raw_path + _lines(self.headers)
        self._slots = asyncio.Semaphore(self.size)

    @property
    def _host(self) -> str:
        return self.url.raw_host.decode("ascii")

    async def post(self, headers: Iterable[Header], body: Sequence[bytes]) -> Response:
        """Send a request, whose body is given in parts, and return its answer, read to its end.

        A request that finds an idle connection just closed by the server is sent once more, on a new one.
        The handler has probably not seen the first request; if it has, it knows the message id. If the new
        connection fails, the outcome of the first request stays unknown.
        """
        deadline = asyncio.get_running_loop().time() + self.deadline_seconds
        length = b"content-length: %d\r\n\r\n" % sum(map(len, body))
        request = (self._head + _lines(headers) + length, *body)
        await self._wait_for_slot()
        try:
            closed: httpx2.TransportError | None = None
            if idle := self._take_idle():
                try:
                    answer = await idle.exchange(request, deadline)
                except (httpx2.ReadError, httpx2.RemoteProtocolError) as error:
                    if idle.received_any:
                        raise
                    closed = error
                else:
                    self._put(idle)
                    return answer
            try:
                connection = await self._connect(deadline)
                answer = await connection.exchange(request, deadline)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if closed is None:
                    raise
                raise closed from None
            self._put(connection)
            return answer
        finally:
            self._slots.release()

    async def reach(self) -> None:
        """Open a connection and close it; raise ConnectError, ConnectTimeout or PoolTimeout without one."""
        await self._wait_for_slot()
        try:
            (await self._connect(asyncio.get_running_loop().time() + self.deadline_seconds)).abort()
        finally:
            self._slots.release()

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        self._is_closed = True
        connections = tuple(self._open)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in connections))

    async def _wait_for_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self.connect_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("all connections are in use") from None

    def _take_idle(self) -> Connection | None:
        """Return the connection used last that is still usable, if there is one."""
        fresh_since = asyncio.get_running_loop().time() - self.keepalive_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > fresh_since and connection.is_quiet:
                return connection
            connection.abort()
        return None

    def _put(self, connection: Connection) -> None:
        """Keep a connection for the next call if it is reusable, else close it."""
        if self._is_closed or not connection.is_reusable:
            connection.abort()
            return
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since <= now - self.keepalive_seconds:
            self._idle.popleft().abort()
        connection.idle_since = now
        self._idle.append(connection)

    async def _connect(self, deadline: float) -> Connection:
        """Connect to the first address of the host that answers; each has an equal share of the time left."""
        if self._is_closed:
            raise httpx2.ConnectError("the transport is closed")
        loop = asyncio.get_running_loop()
        end = min(loop.time() + self.connect_seconds, deadline)
        port = self.url.port or _PORTS[self.url.scheme]
        failure = OSError("the host has no address")
        try:
            async with asyncio.timeout_at(end):
                found = await loop.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
                for left, (*_, address) in zip(range(len(found), 0, -1), found, strict=True):
                    try:
                        async with asyncio.timeout((end - loop.time()) / left):
                            _, connection = await loop.create_connection(
                                lambda: Connection(body_bytes_max=self.body_bytes_max),
                                *(str(address[0]), port),
                            )
                    except OSError as error:
                        failure = error
                        continue
                    try:
                        await self._admit(connection)
                    except BaseException:
                        connection.abort()
                        raise
                    return connection
                raise failure
        except TimeoutError:
            raise httpx2.ConnectTimeout("no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error

    async def _admit(self, connection: Connection) -> None:
        """Check the address that the name resolved to, before anything is sent; begin TLS, and track it."""
        if (peer := connection.transport.get_extra_info("peername")) is None:
            raise ConnectionResetError("the connection has ended")
        if self.forbidden(peer[0]):
            raise httpx2.ConnectError(f"{peer[0]} is link-local or a cloud's metadata service")
        if self.url.scheme == "https":
            secured = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, self.tls, server_hostname=self._host
            )
            if secured is None:
                raise ConnectionResetError("the connection ended in the TLS handshake")
            connection.transport = secured
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))


def _lines(headers: Iterable[Header]) -> bytes:
    """Encode headers; raise httpx2.LocalProtocolError if one would not end where it should."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    encoded = b"".join(lines)
    if not encoded.count(b"\r") == encoded.count(b"\n") == len(lines) or b"\0" in encoded:
        raise httpx2.LocalProtocolError("a header holds a control character")
    return encoded

"""HandlerTransport: many small requests to one URL, with httpx2's URL, TLS context and errors.

It speaks HTTP/1.1 over TCP or TLS: one write per request, one deadline per exchange, limits
per response. httpx2's own transport costs several times as much CPU per request, its request and response
objects as much again, and it takes unrequested bytes for the next response.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

import httpx2

from sea_mq_worker.adapters.http.client.connection import Connection
from sea_mq_worker.adapters.http.client.pool import ConnectionPool
from sea_mq_worker.adapters.http.client.response import Response

_PORTS = {"http": 80, "https": 443}

Header: TypeAlias = tuple[bytes, bytes]


@dataclass(eq=False, repr=False)
class HandlerTransport:
    """Posts to one URL.

    ``ConnectError``, ``ConnectTimeout`` and ``PoolTimeout`` mean that nothing of a request was sent,
    ``ReadTimeout``, ``ReadError`` and ``RemoteProtocolError`` that its outcome is unknown.

    Attributes:
        url: where to POST.
        pool: bounds the calls and keeps the connections.
        headers: of every request.
        deadline_seconds: from the call to the answer's last byte.
        connect_seconds: of these for a new connection, with its TLS handshake.
        body_bytes_max: an answer's body is not read any further.
        tls: for https.
        forbidden: addresses that no connection is used to, whatever name leads there.
    """

    url: httpx2.URL
    pool: ConnectionPool
    _: KW_ONLY
    headers: Iterable[Header]
    deadline_seconds: float
    connect_seconds: float
    body_bytes_max: int
    tls: ssl.SSLContext
    forbidden: Callable[[str], bool]

    def __post_init__(self) -> None:
        self._head = b"POST %b HTTP/1.1\r\n" % self.url.raw_path + _lines(self.headers)
        self.tls.set_alpn_protocols(["http/1.1"])

    async def post(self, headers: Iterable[Header], body: Sequence[bytes]) -> Response:
        """Send a request, whose body is given in parts, and return its answer, read to its end.

        Raises:
            httpx2.TransportError: there is no answer; see the class.
            httpx2.LocalProtocolError: a header would not end where it should.
        """
        deadline = asyncio.get_running_loop().time() + self.deadline_seconds
        length = b"content-length: %d\r\n\r\n" % sum(map(len, body))
        request = (self._head + _lines(headers) + length, *body)
        async with self.pool:
            return await self._send(request, deadline)

    async def reach(self) -> None:
        """Open a connection, and close it.

        Raises:
            httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout: there is none to be had.
        """
        async with self.pool:
            (await self._connect(asyncio.get_running_loop().time() + self.deadline_seconds)).abort()

    async def aclose(self) -> None:
        await self.pool.aclose()

    async def _send(self, request: Sequence[bytes], deadline: float) -> Response:
        """Retry once on a new connection if the server was just closing the idle one.

        The handler has probably not seen the first request; if it has, it knows the message id. If the new
        connection fails, the outcome of the first request stays unknown.
        """
        idle = self.pool.take()
        if idle is None:
            return await self._send_on_new_connection(request, deadline)
        try:
            answer = await idle.exchange(request, deadline)
        except (httpx2.ReadError, httpx2.RemoteProtocolError) as closed:
            if idle.received_any:
                raise
            try:
                return await self._send_on_new_connection(request, deadline)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                raise closed from None
        self.pool.put(idle)
        return answer

    async def _send_on_new_connection(self, request: Sequence[bytes], deadline: float) -> Response:
        connection = await self._connect(deadline)
        answer = await connection.exchange(request, deadline)
        self.pool.put(connection)
        return answer

    async def _connect(self, deadline: float) -> Connection:
        if self.pool.closed:
            raise httpx2.ConnectError("the transport is closed")
        end = min(asyncio.get_running_loop().time() + self.connect_seconds, deadline)
        try:
            async with asyncio.timeout_at(end):
                return await self._open(end)
        except TimeoutError:
            raise httpx2.ConnectTimeout("no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error

    async def _open(self, end: float) -> Connection:
        host = self.url.raw_host.decode("ascii")
        transport, connection = await self._reach(host, end)
        try:
            self._check_peer(transport)
            if self.url.scheme == "https":
                await self._secure(connection, transport, host)
        except BaseException:
            transport.abort()
            raise
        self.pool.add(connection)
        return connection

    async def _reach(self, host: str, end: float) -> tuple[asyncio.Transport, Connection]:
        """Connect to the first address of the host that answers; each has an equal share of the time left."""
        loop, port = asyncio.get_running_loop(), self.url.port or _PORTS[self.url.scheme]
        failure = OSError("the host has no address")
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for left, (*_, address) in zip(range(len(found), 0, -1), found, strict=True):
            try:
                async with asyncio.timeout((end - loop.time()) / left):
                    return await loop.create_connection(
                        lambda: Connection(body_bytes_max=self.body_bytes_max), str(address[0]), port
                    )
            except OSError as error:
                failure = error
        raise failure

    def _check_peer(self, transport: asyncio.Transport) -> None:
        """Check the address that the name resolved to, before anything is sent."""
        peer = transport.get_extra_info("peername")
        if peer is None:
            raise ConnectionResetError("the connection has ended")
        address, *_ = peer
        if self.forbidden(address):
            raise httpx2.ConnectError(f"{address} is link-local or a cloud's metadata service")

    async def _secure(self, connection: Connection, transport: asyncio.Transport, host: str) -> None:
        secured = await asyncio.get_running_loop().start_tls(
            transport, connection, self.tls, server_hostname=host
        )
        if secured is None:
            raise ConnectionResetError("the connection ended in the TLS handshake")
        connection.use(secured)


def _lines(headers: Iterable[Header]) -> bytes:
    """Encode headers.

    Raises:
        httpx2.LocalProtocolError: one would not end where it should.
    """
    lines = [b"%b: %b\r\n" % header for header in headers]
    encoded = b"".join(lines)
    if not encoded.count(b"\r") == encoded.count(b"\n") == len(lines) or b"\0" in encoded:
        raise httpx2.LocalProtocolError("a header holds a control character")
    return encoded

"""HandlerTransport: an httpx2 transport for many small requests to one server.

It does HTTP/1.1 over TCP, TLS or a Unix socket, and what a handler's calls need of it: one write for a
request, one deadline for an exchange, bounds for an answer. The stock transport costs several times as much
CPU for a request, and reads answers that nobody asked for as the next one's.
"""

import asyncio
import ssl
from collections.abc import Callable

import httpx2

from sea_mq_worker.adapters.http.answer import Answer
from sea_mq_worker.adapters.http.connection import Connection
from sea_mq_worker.adapters.http.pool import ConnectionPool

_PORTS = {"http": 80, "https": 443}


class HandlerTransport(httpx2.AsyncBaseTransport):
    """Asks one server.

    ``ConnectError``, ``ConnectTimeout`` and ``PoolTimeout`` tell that nothing of a request was sent,
    ``ReadTimeout``, ``ReadError`` and ``RemoteProtocolError`` that its outcome is unknown.

    Args:
        pool: bounds the calls and keeps the connections.
        deadline_seconds: from the call to the answer's last byte.
        connect_seconds: of these for a new connection, with its TLS handshake.
        body_bytes_max: an answer's body is not read any further.
        tls: for https.
        uds: path of a Unix socket to connect to instead of the URL's host, or empty.
        forbidden: addresses that no connection is used to, whatever name leads there.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        deadline_seconds: float,
        connect_seconds: float,
        body_bytes_max: int,
        tls: ssl.SSLContext,
        uds: str,
        forbidden: Callable[[str], bool],
    ) -> None:
        self._pool = pool
        self._deadline_seconds = deadline_seconds
        self._connect_seconds = connect_seconds
        self._body_bytes_max = body_bytes_max
        tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._uds = uds
        self._forbidden = forbidden

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with a body in hand; the response has been read."""
        deadline = asyncio.get_running_loop().time() + self._deadline_seconds
        wire = _wire(request, await request.aread())
        async with self._pool:
            answer = await self._ask(request.url, wire, deadline)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=httpx2.ByteStream(answer.body), request=request
        )

    async def aclose(self) -> None:
        """Close all connections; safe twice."""
        await self._pool.aclose()

    async def _ask(self, url: httpx2.URL, wire: bytes, deadline: float) -> Answer:
        """Ask again, once, if the connection was an idle one that the server was just closing.

        Then the handler most probably saw nothing; if it did, it knows the message id. A second try that
        finds nobody says nothing about the first one: its outcome stays unknown.
        """
        idle = self._pool.take()
        if idle is None:
            return await self._ask_anew(url, wire, deadline)
        try:
            return await self._ask_over(idle, wire, deadline)
        except (httpx2.ReadError, httpx2.RemoteProtocolError) as closed:
            if idle.heard:
                raise
            try:
                return await self._ask_anew(url, wire, deadline)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                raise closed from None

    async def _ask_anew(self, url: httpx2.URL, wire: bytes, deadline: float) -> Answer:
        return await self._ask_over(await self._connect(url, deadline), wire, deadline)

    async def _ask_over(self, connection: Connection, wire: bytes, deadline: float) -> Answer:
        answer = await connection.exchange(wire, deadline)
        self._pool.put(connection)
        return answer

    async def _connect(self, url: httpx2.URL, deadline: float) -> Connection:
        if self._pool.closed:
            raise httpx2.ConnectError("the transport is closed")
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + self._connect_seconds, deadline)):
                return await self._open(url)
        except TimeoutError:
            raise httpx2.ConnectTimeout("no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error

    async def _open(self, url: httpx2.URL) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(body_bytes_max=self._body_bytes_max)
        host = url.raw_host.decode("ascii")
        if self._uds:
            transport, _ = await loop.create_unix_connection(lambda: connection, self._uds)
        else:
            port = url.port or _PORTS[url.scheme]
            transport, _ = await loop.create_connection(lambda: connection, host, port)
        try:
            if not self._uds:
                self._check_peer(transport)
            if url.scheme == "https":
                await self._secure(connection, transport, host)
        except BaseException:
            transport.abort()
            raise
        self._pool.add(connection)
        return connection

    def _check_peer(self, transport: asyncio.Transport) -> None:
        """Look at whom a name has led to, before anything is sent."""
        peer = transport.get_extra_info("peername")
        if peer is None:
            raise ConnectionResetError("the connection has ended")
        address, *_ = peer
        if self._forbidden(address):
            raise httpx2.ConnectError(f"{address} is link-local or a cloud's metadata service")

    async def _secure(self, connection: Connection, transport: asyncio.Transport, host: str) -> None:
        secured = await asyncio.get_running_loop().start_tls(
            transport, connection, self._tls, server_hostname=host
        )
        if secured is None:
            raise ConnectionResetError("the connection ended in the TLS handshake")
        connection.use(secured)


def _wire(request: httpx2.Request, body: bytes) -> bytes:
    """Encode head and body, for one write.

    Raises:
        httpx2.LocalProtocolError: a header would not end where it should.
    """
    headers = request.headers.raw
    lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"\r\n")
    head = b"".join(lines)
    if not head.count(b"\r") == head.count(b"\n") == len(lines) or b"\0" in head:
        raise httpx2.LocalProtocolError("a header holds a control character")
    return head + body

"""The handler's transport alone: which connection takes a request, and what ends one."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from sea_mq_worker.inbox.http_client import Connection, HandlerTransport
from tests.support.clocks import pass_time
from tests.support.handlers import Call, HandlerServer, answer, hang, in_turn
from tests.support.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

MakeTransport = Callable[..., HandlerTransport]


@pytest.fixture
async def make() -> AsyncIterator[MakeTransport]:
    made: list[HandlerTransport] = []

    def make_transport(
        url: str, *, size: int = 4, keepalive_seconds: float = 60.0, **changes: Any
    ) -> HandlerTransport:
        arguments: dict[str, Any] = {
            "size": size,
            "keepalive_seconds": keepalive_seconds,
            "headers": [(b"host", b"handler")],
            "deadline_seconds": 5.0,
            "connect_seconds": 1.0,
            "body_bytes_max": 1000,
            "tls": ssl.create_default_context(),
            "forbidden": lambda _address: False,
        }
        made.append(HandlerTransport(httpx2.URL(url), **arguments | changes))
        return made[-1]

    yield make_transport
    for transport in made:
        await transport.aclose()


async def status(transport: HandlerTransport, body: bytes = b"{}") -> int:
    return (await transport.post([], [body])).status


async def test_the_connection_used_last_is_used_first(server: HandlerServer, make: MakeTransport) -> None:
    transport = make(server.url, size=4)
    await asyncio.gather(*(status(transport) for _ in range(4)))
    server.calls.clear()
    for _ in range(3):
        await status(transport)
    assert len({call.connection for call in server.calls}) == 1


async def test_a_connection_that_was_idle_for_too_long_is_not_used(
    server: HandlerServer, make: MakeTransport
) -> None:
    transport = make(server.url, keepalive_seconds=0.0)
    for _ in range(3):
        await status(transport)
    assert [call.connection for call in server.calls] == [1, 2, 3]
    await eventually(lambda: server.open_connections == 1)


async def test_each_request_on_a_connection_has_its_own_deadline(
    server: HandlerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    async def answer_later(call: Call, writer: asyncio.StreamWriter) -> None:
        await pass_time(monkeypatch, seconds=70)
        await answer(200)(call, writer)

    server.default = in_turn(answer(200), answer_later, hang)
    port = httpx2.URL(server.url).port
    _, connection = await loop.create_connection(lambda: Connection(body_bytes_max=0), "127.0.0.1", port)
    request = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    assert (await connection.exchange([request], loop.time() + 60)).status == 200
    assert (await connection.exchange([request], loop.time() + 120)).status == 200
    last = asyncio.create_task(connection.exchange([request], loop.time() + 60))
    await server.called(3)
    await pass_time(monkeypatch, seconds=70)
    with pytest.raises(httpx2.ReadTimeout):
        last.result()


async def test_a_peer_that_vanishes_in_a_call_is_noticed_before_the_deadline(server: HandlerServer) -> None:
    loop, port = asyncio.get_running_loop(), httpx2.URL(server.url).port
    transport, connection = await loop.create_connection(
        lambda: Connection(body_bytes_max=0), "127.0.0.1", port
    )
    end = transport.get_extra_info("socket")
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, expected in (("TCP_USER_TIMEOUT", 8000), ("TCP_KEEPIDLE", 5)):
        if hasattr(socket, name):
            assert end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == expected
    connection.abort()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has no such limit")
async def test_a_busy_peer_may_leave_a_large_request_unread_until_the_deadline(server: HandlerServer) -> None:
    loop, port = asyncio.get_running_loop(), httpx2.URL(server.url).port
    transport, connection = await loop.create_connection(
        lambda: Connection(body_bytes_max=0), "127.0.0.1", port
    )
    end, limits = transport.get_extra_info("socket"), []

    async def note_limit(call: Call, writer: asyncio.StreamWriter) -> None:
        limits.append(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        await answer(200)(call, writer)

    server.default = note_limit
    for size in (10, 100_000, 10):
        head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size
        await connection.exchange([head, b"a" * size], loop.time() + 60)
    assert limits == [8000, 0, 8000]
    connection.abort()


async def test_an_answer_is_not_taken_for_the_next_one_although_the_loop_has_not_read_it(
    server: HandlerServer, make: MakeTransport
) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def keep_the_line(_call: Call, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(OK)

    server.default = in_turn(keep_the_line, answer(422))
    transport = make(server.url, size=1)
    await status(transport)
    writers[0].write(OK)
    assert await status(transport) == 422


async def test_a_connection_with_half_a_request_on_it_is_not_used_again(
    server: HandlerServer, make: MakeTransport
) -> None:
    """The rest of it would otherwise come before the next request."""
    done = asyncio.Event()

    async def answer_the_head_alone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST /handle ")
            writer.write(b"HTTP/1.1 413 X\r\ncontent-length: 0\r\n\r\n")
            await done.wait()
        finally:
            writer.transport.abort()

    early = await asyncio.start_server(answer_the_head_alone, "127.0.0.1", 0)
    server.port = early.sockets[0].getsockname()[1]
    transport = make(server.url, size=1)
    async with early:
        for _ in range(2):
            assert await status(transport, b"x" * 20_000_000) == 413
        done.set()


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb: c", "a\rb", "a\0b"])
async def test_a_header_that_would_make_another_is_not_sent(
    server: HandlerServer, make: MakeTransport, value: str
) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        await make(server.url).post([(b"tracestate", value.encode())], [b"{}"])
    assert server.connections == 0


@pytest.mark.fault("S08")
async def test_a_forbidden_address_gets_not_even_a_handshake(make: MakeTransport) -> None:
    got: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as listening:
        url = f"https://localhost:{listening.sockets[0].getsockname()[1]}/"
        transport = make(url, forbidden=lambda address: address == "127.0.0.1")
        with pytest.raises(httpx2.ConnectError, match="link-local"):
            await transport.post([], [])
        await eventually(lambda: got)
    assert got == [b""]


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address whose queue of connections is full, so that it answers none."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


async def test_an_address_of_the_host_that_does_not_answer_is_passed_over(
    silent: tuple[str, int], make: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "127.0.0.2"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(OK)
        writer.close()

    listening = await asyncio.start_server(serve, other, silent[1])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, silent[1])) for host in (silent[0], other)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    async with listening:
        assert await status(make(f"http://handler:{silent[1]}/", connect_seconds=2)) == 200


async def test_closing_ends_calls_and_connections(server: HandlerServer, make: MakeTransport) -> None:
    transport = make(server.url, size=2)
    await status(transport)
    server.default = hang
    call = asyncio.create_task(status(transport))
    await server.called(2)
    await transport.aclose()
    await transport.aclose()
    with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
        await call
    assert server.connections == 1
    with pytest.raises(httpx2.ConnectError):
        await status(transport)

"""Behaviour that only HTTP has: the bytes on the wire, and a server that behaves badly."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from sea_mq_worker.inbox.http import HttpEventHandler
from sea_mq_worker.inbox.message import Accepted, HandlerResult, NotDelivered, Poison, Retry
from tests.support.handlers import (
    Behaviour,
    Call,
    HandlerServer,
    answer,
    handler_request,
    handler_server,
    hang,
    in_turn,
    raw,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "canary-5f2e"
REQUEST = handler_request(
    "550e8400-e29b-41d4-a716-446655440000",
    occurred_at="2025-12-28T22:00:00Z",
    correlation_id="6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    payload=b'{"name": "\xc3\xa9t\xc3\xa9", "amount": 12345678901234567890.12345678901234567890}',
    trace_headers={"traceparent": TRACEPARENT, "tracestate": "a=1"},
)

MakeHandler = Callable[..., HttpEventHandler]


@pytest.fixture
async def make(server: HandlerServer) -> AsyncIterator[MakeHandler]:
    made: list[HttpEventHandler] = []

    def make_handler(**changes: Any) -> HttpEventHandler:
        arguments: dict[str, Any] = {"url": server.url, "timeout_seconds": 5.0, "concurrency": 4} | changes
        made.append(HttpEventHandler(**arguments))
        return made[-1]

    yield make_handler
    for handler in made:
        await handler.close()


async def ask(
    server: HandlerServer, make: MakeHandler, behaviour: Behaviour, **changes: Any
) -> HandlerResult:
    server.default = behaviour
    return await make(**changes).handle_request(REQUEST)


@pytest.mark.clause("handler-request")
async def test_the_body_is_the_contracts_json_in_its_order(server: HandlerServer, make: MakeHandler) -> None:
    assert await make().handle_request(REQUEST) == Accepted(200)
    (call,) = server.calls
    *given, (last, payload) = call.json.items()
    assert given == [
        ("message_id", "550e8400-e29b-41d4-a716-446655440000"),
        ("subject", "vibespro.event.vibe_created.v1"),
        ("event_type", "vibe_created"),
        ("event_version", 1),
        ("occurred_at", "2025-12-28T22:00:00Z"),
        ("correlation_id", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        ("causation_id", None),
    ]
    assert (last, payload["name"]) == ("payload", "été")
    assert (call.method, call.path) == ("POST", "/handle")


@pytest.mark.clause("handler-request")
async def test_the_payload_goes_out_byte_for_byte(server: HandlerServer, make: MakeHandler) -> None:
    """A decimal of 40 digits would not survive a float."""
    for payload in (REQUEST.payload, b" [1.10, 1e400]\n", b"null", b'"\\u0000"'):
        await make().handle_request(REQUEST._replace(payload=payload))
        assert server.calls[-1].body.endswith(b', "payload": ' + payload + b"}")


async def test_headers_carry_id_trace_and_token(server: HandlerServer, make: MakeHandler) -> None:
    await make(token=lambda: "s3cret").handle_request(REQUEST)
    sent = server.calls[0].headers
    assert sent["content-type"] == "application/json"
    assert sent["idempotency-key"] == sent["x-message-id"] == REQUEST.message_id
    assert sent["traceparent"] == TRACEPARENT
    assert sent["tracestate"] == "a=1"
    assert sent["authorization"] == "Bearer s3cret"
    assert sent["accept-encoding"] == "identity"


async def test_settings_may_accept_more_statuses(server: HandlerServer, make: MakeHandler) -> None:
    accepting = {"accept_statuses": frozenset({200, 202, 409})}
    assert await ask(server, make, answer(202), **accepting) == Accepted(202)


BROKEN_ANSWERS = {
    "garbage": raw(CANARY.encode() + b"?\r\n\r\n"),
    "half a status line": raw(b"HTTP/1.1 20", close=True),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", close=True),
    "body cut off": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok", close=True),
    "chunk cut off": raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nok", close=True),
    "reset": raw(b"", reset=True),
    "reset in the body": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok", reset=True),
    "endless header": raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 5_000_000, close=True),
    "status out of range": raw(b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n", close=True),
}
NOT_HTTP = {"garbage", "two lengths", "endless header", "status out of range"}


@pytest.mark.clause("POL-047-007")
@pytest.mark.parametrize("broken", BROKEN_ANSWERS)
async def test_a_broken_answer_is_retried(server: HandlerServer, make: MakeHandler, broken: str) -> None:
    result = await ask(server, make, BROKEN_ANSWERS[broken])
    assert isinstance(result, Retry)
    assert CANARY not in result.error
    assert ("broken or not HTTP" in result.error) == (broken in NOT_HTTP)
    assert len(server.calls) == 1


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


async def at_once(_call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n" + OK)


async def a_little_later(_call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.write(OK)


async def behind_an_answer_without_a_body(_call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 204 X\r\n\r\n" + OK)


async def behind_the_last_chunk(_call: Call, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + OK)


@pytest.mark.fault("N14")
@pytest.mark.parametrize(
    "second", [at_once, a_little_later, behind_an_answer_without_a_body, behind_the_last_chunk]
)
async def test_a_second_answer_is_not_taken_for_the_next_calls(
    server: HandlerServer, make: MakeHandler, second: Behaviour
) -> None:
    """Otherwise a message that the handler has never seen would count as processed."""
    server.default = in_turn(second, answer(422))
    handler = make(concurrency=1)
    await handler.handle_request(REQUEST)
    await asyncio.sleep(0.05)
    assert isinstance(await handler.handle_request(REQUEST), Poison)
    assert [call.connection for call in server.calls] == [1, 2]


PROBLEM = (
    b'{"type": "https://x.example/no-such-currency", "title": "No such\\n currency", "status": 422,'
    b' "detail": "%s", "instance": "/%s"}'
) % (CANARY.encode(), CANARY.encode())
VALIDATION = (
    b'{"detail": [{"type": "missing", "loc": ["body", "payload", "order"], "msg": "%s", "input": "%s"},'
    b' {"type": "int_parsing", "loc": ["body", "payload", "items", 0], "msg": "", "ctx": {"error": "%s"}}]}'
) % (CANARY.encode(), CANARY.encode(), CANARY.encode())


@pytest.mark.parametrize(
    ("content_type", "body", "reported"),
    [
        ("application/problem+json; a=b", PROBLEM, "https://x.example/no-such-currency, No such currency"),
        ("application/problem+json", b'{"title": "%s"}' % (b"x" * 9000), "x" * 120),
        ("application/problem+json", b'{"title": 5}', "with 12 bytes"),
        ("application/json", VALIDATION, "body.payload.order: missing, body.payload.items.0: int_parsing"),
        ("application/json", b'{"detail": [{"loc": [[1], "a"], "type": "x"}, 7, {"type": "y"}]}', "a: x"),
        ("application/json", b'{"detail": "no such vibe"}', "with 26 bytes"),
        ("application/problem+json", b"[1", "with 2 bytes"),
        ("application/problem+json", b"[" * 50_000, "with 50000 bytes"),
        ("application/problem+json", b'{"title": "a\\u001b[2J\\u202eb"}', "a[2Jb"),
        ("application/json", PROBLEM, f"with {len(PROBLEM)} bytes"),
    ],
)
@pytest.mark.parametrize("keep", [True, False])
async def test_of_a_problem_errors_keep_type_and_title_and_only_where_that_is_asked_for(
    *, server: HandlerServer, make: MakeHandler, keep: bool, content_type: str, body: bytes, reported: str
) -> None:
    result = await ask(server, make, answer(422, body, content_type=content_type), keep_problem=keep)
    reported = reported if keep else f"with {len(body)} bytes"
    assert result == Poison(f"the handler answered 422 ({reported})")


@pytest.mark.clause("handler-other")
async def test_a_redirect_is_not_followed(server: HandlerServer, make: MakeHandler) -> None:
    async with handler_server() as other:
        result = await ask(server, make, answer(307, location=other.url))
        assert isinstance(result, Retry)
        assert "307" in result.error
        assert other.calls == []


async def test_proxies_of_the_environment_are_not_used(
    server: HandlerServer, make: MakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with handler_server() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await make().handle_request(REQUEST) == Accepted(200)
        assert proxy.calls == []


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "2"}, 2.0),
        ({"retry_after": "86400"}, 300.0),
        ({"retry_after": "9" * 5000}, 300.0),
        ({"retry_after": "-5"}, 0.0),
        ({"retry_after": "soon"}, 0.0),
        ({"retry_after": "2, 3"}, 0.0),
        ({"retry_after": "\u0663"}, 0.0),
        ({"retry_after": f"Wed, 21 Oct {'9' * 30} 07:28:00 GMT"}, 0.0),
        ({"retry_after": "Wed, 21 Oct 2030 07:28:00 +99999999999999"}, 0.0),
        ({"retry_after": http_date(-60)}, 0.0),
        ({"retry_after": http_date(86400)}, 300.0),
        ({"date": "Wed, 21 Oct 2015 07:28:00 GMT", "retry_after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 30.0),
    ],
)
async def test_retry_after_is_read_and_capped(
    server: HandlerServer, make: MakeHandler, headers: dict[str, str], seconds: float
) -> None:
    """A date counts from the answer's own Date, not from the worker's clock."""
    result = await ask(server, make, answer(429, b"", **headers))
    assert isinstance(result, Retry)
    assert result.after_seconds == seconds


CLOSED = raw(b"", close=True)


@pytest.mark.parametrize(
    ("behaviours", "calls", "result"),
    [
        pytest.param([CLOSED, answer(200)], 3, Accepted, id="closed"),
        pytest.param([BROKEN_ANSWERS["reset"], answer(200)], 3, Accepted, id="reset"),
        pytest.param([CLOSED, CLOSED], 3, Retry, id="closed twice"),
        *(
            pytest.param([BROKEN_ANSWERS[broken], answer(200)], 2, Retry, id=broken)
            for broken in ("garbage", "body cut off", "reset in the body")
        ),
    ],
)
async def test_only_an_idle_connection_that_ends_without_an_answer_costs_one_more_call_and_no_attempt(
    server: HandlerServer, make: MakeHandler, behaviours: list[Behaviour], calls: int, result: type
) -> None:
    server.default = in_turn(answer(200), *behaviours)
    handler = make(concurrency=1)
    await handler.handle_request(REQUEST)
    assert isinstance(await handler.handle_request(REQUEST), result)
    assert [call.connection for call in server.calls] == [1, 1, 2][:calls]


async def test_a_handler_that_dies_of_a_message_has_seen_it(server: HandlerServer, make: MakeHandler) -> None:
    """Nobody answers the second try, but the first one may have had an effect, or been the cause."""

    async def die(_call: Call, writer: asyncio.StreamWriter) -> None:
        server.stop_listening()
        writer.close()

    server.default = in_turn(answer(200), die)
    handler = make(concurrency=1)
    await handler.handle_request(REQUEST)
    assert isinstance(await handler.handle_request(REQUEST), Retry)
    assert isinstance(await handler.handle_request(REQUEST), NotDelivered)


async def test_cancelled_calls_leave_no_slot_taken(server: HandlerServer, make: MakeHandler) -> None:
    server.script["slow"] = hang
    handler = make(concurrency=4)
    for _ in range(5):
        tasks = [
            asyncio.create_task(handler.handle_request(REQUEST._replace(message_id="slow"))) for _ in range(4)
        ]
        await server.called(4)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.calls.clear()
    results = await asyncio.gather(*(handler.handle_request(REQUEST) for _ in range(4)))
    assert results == [Accepted(200)] * 4


async def no_name(make: MakeHandler, server: HandlerServer) -> HttpEventHandler:
    return make(url="http://handler.invalid/handle")


async def no_free_connection(make: MakeHandler, server: HandlerServer) -> HttpEventHandler:
    server.default = hang
    handler = make(concurrency=1, connect_timeout_seconds=0.1, timeout_seconds=30.0)
    busy = asyncio.create_task(handler.handle_request(REQUEST), name="busy")
    await server.called(1)
    assert not busy.done()
    return handler


async def no_handshake(make: MakeHandler, server: HandlerServer) -> HttpEventHandler:
    """A server that does not know TLS keeps silent, so nothing of the message was sent."""
    url = server.url.replace("http:", "https:")
    return make(url=url, verify=ssl.create_default_context(), timeout_seconds=0.6)


async def no_time_to_connect(make: MakeHandler, server: HandlerServer) -> HttpEventHandler:
    return make(timeout_seconds=1e-9)


@pytest.mark.parametrize("unreachable", [no_name, no_free_connection, no_handshake, no_time_to_connect])
async def test_what_cannot_be_reached_is_not_delivered(
    server: HandlerServer,
    make: MakeHandler,
    unreachable: Callable[[MakeHandler, HandlerServer], Awaitable[HttpEventHandler]],
) -> None:
    handler = await unreachable(make, server)
    async with asyncio.timeout(10):
        assert isinstance(await handler.handle_request(REQUEST), NotDelivered)
        assert isinstance(await handler.reach(), NotDelivered)


@pytest.mark.parametrize(
    "bad",
    [
        *("ftp://host/", "host/handle", "http://", "", "http://user:hunter2@host/", "http://[half"),
        *("http://h:x/", "http://h:0/", "http://h:-1/", "http://h:65536/"),
    ],
)
def test_an_unusable_url_is_refused_without_being_shown(bad: str) -> None:
    with pytest.raises(ValueError, match="the handler's URL") as refusal:
        HttpEventHandler(url=bad, timeout_seconds=1.0, concurrency=1)
    assert "hunter2" not in str(refusal.value)


def test_a_token_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(ValueError, match="token"):
        HttpEventHandler(url="http://host/", timeout_seconds=1.0, concurrency=1, token=lambda: "a\r\nb: c")

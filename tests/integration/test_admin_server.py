"""The admin server, asked over real sockets: what it answers to whom, and what it refuses."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sea_mq_worker.admin.http import RefusedError, Request, Response, TokenAuth, json_response
from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.errors import WorkerError

if TYPE_CHECKING:
    from sea_mq_worker.admin.api import OperatorApi

PAGE = Path(inspect.getfile(AdminServer)).with_name("page")
REPLAY = "/api/events/0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10/replay"
WHY = {"actor": "Ann", "reason": "fixed"}
TOKEN = {"authorization": "Bearer s3cret"}


@dataclass
class World:
    """A server, what it asks, changeable by the test, and the requests that reached the operator API."""

    reasons: dict[str, str] = field(default_factory=dict)
    numbers: Callable[[], object] = lambda: {"totals": {"published": 3}}
    asked: list[Request] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        self.asked.append(request)
        return json_response({"items": []})

    def status_json(self) -> object:
        return self.numbers()

    @asynccontextmanager
    async def serve(self, token: str = "") -> AsyncIterator["World"]:
        self.server = AdminServer(
            host="127.0.0.1",
            port=0,
            reasons=lambda: self.reasons,
            metrics=lambda: b"sea_mq_up 1\n",
            status=self.status_json,
            token=lambda: token,
            operator_api=cast("OperatorApi", self),
        )
        await self.server.start()
        yield self
        await self.server.close()

    async def send(self, data: bytes) -> "Reply":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(data)
            async with asyncio.timeout(10):
                whole = await reader.read()
        finally:
            writer.close()
        head, _, body = whole.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return Reply(int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body)

    async def ask(self, path: str, *, method: str = "GET", body: object = None, **headers: str) -> "Reply":
        """Send one request; header names are written with underscores, empty ones are left out."""
        given = {"host": "127.0.0.1", **headers}
        sent = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            given = {"content_type": "application/json", "content_length": str(len(sent)), **given}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in given.items() if v)]
        return await self.send("\r\n".join([*lines, "", ""]).encode() + sent)

    async def status(self, path: str, **given: Any) -> int:
        return (await self.ask(path, **given)).status


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
async def open_to_all() -> AsyncIterator[World]:
    async with World().serve() as world:
        yield world


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    async with World().serve("s3cret") as world:
        yield world


async def test_health_and_readiness_have_reasons(open_to_all: World) -> None:
    world = open_to_all
    assert (await world.status("/healthz"), await world.status("/readyz")) == (200, 200)
    world.reasons["postgres"] = "refused"
    reply = await world.ask("/readyz")
    reported = {"state": "paused", "parts": ["postgres"], "reasons": {"postgres": "refused"}}
    assert (reply.status, reply.json) == (503, {"ok": False, **reported})
    assert await world.status("/healthz") == 200


async def test_the_status_is_served_as_json(open_to_all: World) -> None:
    reply = await open_to_all.ask("/status?now")
    assert (reply.json, reply.headers["content-type"]) == ({"totals": {"published": 3}}, "application/json")


async def test_the_page_needs_nothing_from_elsewhere(open_to_all: World) -> None:
    reply = await open_to_all.ask("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    directives = {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}
    assert {*directives, "require-trusted-types-for 'script'"} <= set(policy.split("; "))
    named = set(re.findall(r'(?:src|href)="([^"]+)"', reply.body.decode())) - {"data:,"}
    named |= set(re.findall(r'from "\./([^"]+)"', "".join(path.read_text() for path in PAGE.glob("*.js"))))
    assert {path.name for path in PAGE.iterdir()} == named | {"index.html"}
    for name in named:
        part = await open_to_all.ask(f"/{name}")
        assert (part.status, b"//" in part.body.replace(b"// ", b"")) == (200, False)


@pytest.mark.parametrize("path", ["/", "/page.css", "/healthz", "/metrics", "/status", "/nothing"])
async def test_no_answer_is_kept_sniffed_or_named_to_another_site(open_to_all: World, path: str) -> None:
    headers = (await open_to_all.ask(path)).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_head_gets_the_head_alone(open_to_all: World) -> None:
    reply = await open_to_all.ask("/metrics", method="HEAD")
    assert (reply.status, reply.headers["content-length"], reply.body) == (200, "12", b"")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST /status HTTP/1.1", 405),
        ("DELETE / HTTP/1.1", 405),
        ("GET /nothing HTTP/1.1", 404),
        ("GET /../page.js HTTP/1.1", 404),
        ("POST /healthz HTTP/1.1", 405),
        ("PUT /api/actions HTTP/1.1", 405),
        ("GET /", 400),
        ("what?", 400),
        ("GET / SMTP", 400),
        (f"GET / HTTP/1.1\r\nx: {'y' * 9000}", 431),
    ],
)
async def test_anything_else_is_refused(open_to_all: World, head: str, status: int) -> None:
    assert (await open_to_all.send(f"{head}\r\n\r\n".encode())).status == status


async def test_a_head_that_never_comes_is_given_up(
    open_to_all: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sea_mq_worker.admin.http._SECONDS_MAX", 0.05)
    assert (await open_to_all.send(b"GET / HT")).status == 408


@pytest.mark.fault("S10")
async def test_slow_clients_are_bounded_and_keep_no_probe_out(open_to_all: World) -> None:
    """A connection above the bound costs the one that is open the longest."""
    slow = [await asyncio.open_connection("127.0.0.1", open_to_all.server.port) for _ in range(32)]
    for _, writer in slow:
        writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
    assert await open_to_all.status("/healthz") == 200
    assert await slow[0][0].read() == b""
    for _, writer in slow[1:]:
        writer.write(b"\r\n\r\n")
    answers = await asyncio.gather(*(reader.read() for reader, _ in slow[1:]))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    for _, writer in slow:
        writer.close()


@pytest.mark.fault("S10")
@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:80", 200), ("[::1]:80", 200), ("evil.example", 403), ("127.0.0.1.evil.example:80", 403)],
)
async def test_without_a_token_a_site_reads_nothing_by_a_name_that_it_leads_here(
    open_to_all: World, host: str, status: int
) -> None:
    open_to_all.reasons["postgres"] = "refused"
    assert await open_to_all.status("/metrics", host=host) == status
    assert (b"refused" in (await open_to_all.ask("/readyz", host=host)).body) == (status == 200)
    assert await open_to_all.status("/healthz", host=host) == 200


@pytest.mark.fault("S10")
async def test_with_a_token_numbers_are_for_its_bearer(guarded: World) -> None:
    assert "s3cret" not in repr(guarded.server)
    for path in ("/metrics", "/status"):
        for wrong in ("", "Bearer s3cre", "Basic s3cret"):
            reply = await guarded.ask(path, authorization=wrong)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert await guarded.status(path, **TOKEN) == 200
        assert await guarded.status(f"{path}?token=s3cret") == 401


@pytest.mark.fault("S10")
async def test_with_a_token_probes_learn_which_part_is_in_the_way_not_why(guarded: World) -> None:
    assert await guarded.status("/healthz") == 200
    guarded.reasons["postgres"] = "db.internal refused"
    named = {"ok": False, "state": "paused", "parts": ["postgres"]}
    assert (await guarded.ask("/readyz")).json == named
    guarded.reasons["start"] = "the worker is starting"
    assert (await guarded.ask("/readyz")).json["state"] == "starting"
    assert b"db.internal" in (await guarded.ask("/readyz", **TOKEN)).body


@pytest.mark.fault("S10")
async def test_without_a_token_set_nothing_is_listed_and_nothing_changed(open_to_all: World) -> None:
    for given in ({"path": "/api/lookup?id=0198"}, {"path": REPLAY, "method": "POST", "body": WHY}):
        reply = await open_to_all.ask(**cast("Any", given))
        assert (reply.status, "SEA_MQ_ADMIN_TOKEN_FILE" in reply.json["error"]) == (403, True)
    assert open_to_all.asked == []


@pytest.mark.fault("S10")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "", "cookie": "token=s3cret"}, 401),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_length": ""}, 411),
        ({"content_length": "-1"}, 411),
        ({"content_length": "4097"}, 413),
        ({"content_length": "9" * 50}, 413),
        ({"transfer_encoding": "chunked"}, 411),
    ],
)
async def test_a_change_that_the_page_did_not_send_is_refused(
    guarded: World, headers: dict[str, str], status: int
) -> None:
    change: Any = {"method": "POST", "body": WHY, "host": "x:1", **TOKEN}
    assert await guarded.status(REPLAY, **{**change, **headers}) == status
    assert guarded.asked == []
    own = {"origin": "http://x:1", "sec_fetch_site": "same-origin"}
    assert await guarded.status(REPLAY, **change, **own) == 200
    assert [request.body for request in guarded.asked] == [WHY]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 4000, b"[{}]"])
async def test_a_body_that_is_no_json_object_is_refused(guarded: World, body: bytes) -> None:
    head = f"POST {REPLAY} HTTP/1.1\r\nauthorization: Bearer s3cret\r\ncontent-type: application/json\r\n"
    reply = await guarded.send(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert (reply.status, guarded.asked) == (400, [])


@pytest.mark.fault("S10")
def test_wrong_tokens_are_throttled_and_keep_the_right_one_out_nowhere() -> None:
    now = 0.0
    access = TokenAuth(lambda: "s3cret", clock=lambda: now)

    def status(peer: str, token: str) -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            access.check_numbers(Request(method="GET", path="/status", headers=headers, peer=peer))
        except RefusedError as refused:
            return refused.response.status
        return 200

    assert [status("a", "") for _ in range(20)] == [401] * 20, "a probe without a token guesses none"
    assert [status("a", "x") for _ in range(10)] == [401] * 10
    assert (status("a", "x"), status("a", "s3cret"), status("b", "x")) == (429, 200, 401)
    for number in range(1000):
        status(f"peer{number}", "x")
    assert len(access._wrong) == 64
    assert [status("a", "x") for _ in range(11)][-1] == 429
    now = 61.0
    assert status("a", "x") == 401


async def test_a_callback_that_fails_costs_one_answer(
    open_to_all: World, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all.numbers = lambda: 1 / 0
    assert (await open_to_all.status("/status"), await open_to_all.status("/healthz")) == (500, 200)
    assert [record.event for record in caplog.records] == ["admin_request_failed"]  # type: ignore[attr-defined]


async def test_a_port_in_use_is_named(open_to_all: World) -> None:
    port = open_to_all.server.port
    second = AdminServer(host="127.0.0.1", port=port)
    with pytest.raises(
        WorkerError, match=rf"^127\.0\.0\.1:{port} cannot be bound \(Address already in use\)"
    ):
        await second.start()
    await second.close()


async def test_close_ends_open_connections_at_once(open_to_all: World) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", open_to_all.server.port)
    await open_to_all.ask("/healthz")
    async with asyncio.timeout(10):
        await open_to_all.server.close()
        await open_to_all.server.close()
        assert await reader.read() == b""
    writer.close()

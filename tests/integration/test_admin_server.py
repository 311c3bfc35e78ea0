"""The admin server, asked over real sockets."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.http import TokenAuth
from sea_mq_worker.admin.server import AdminServer, Routes
from sea_mq_worker.errors import WorkerError

PAGE = Path(inspect.getfile(Routes)).with_name("page")


@dataclass
class Parts:
    """What the server asks, changeable by the test."""

    unready: dict[str, str] = field(default_factory=dict)
    exposition: Callable[[], bytes] = lambda: b"sea_mq_up 1\n"
    numbers: Callable[[], dict[str, object]] = lambda: {"totals": {"published": 3}}

    def server(
        self, *, port: int = 0, token: Callable[[], str] = str, operator_api: OperatorApi | None = None
    ) -> AdminServer:
        routes = Routes(
            ready=lambda: self.unready,
            metrics=self.metrics,
            status=self.status,
            access=TokenAuth(token),
            operator_api=operator_api,
        )
        return AdminServer(host="127.0.0.1", port=port, routes=routes)

    def metrics(self) -> bytes:
        return self.exposition()

    def status(self) -> dict[str, object]:
        return self.numbers()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


async def send(server: AdminServer, data: bytes) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            whole = await reader.read()
    finally:
        writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Reply(int(first.split(" ")[1]), headers, body)


async def get(server: AdminServer, path: str, *, method: str = "GET", **headers: str) -> Reply:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return await send(server, "\r\n".join([*lines, "", ""]).encode())


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
async def server(parts: Parts) -> AsyncIterator[AdminServer]:
    running = parts.server()
    await running.start()
    yield running
    await running.close()


@pytest.fixture
async def guarded(parts: Parts) -> AsyncIterator[AdminServer]:
    running = parts.server(token=lambda: "s3cret")
    await running.start()
    yield running
    await running.close()


async def test_health_and_readiness_have_reasons(server: AdminServer, parts: Parts) -> None:
    assert (await get(server, "/healthz")).status == 200
    assert (await get(server, "/readyz")).status == 200
    parts.unready["postgres"] = "refused"
    reply = await get(server, "/readyz")
    assert reply.status == 503
    reported = {"state": "paused", "parts": ["postgres"], "reasons": {"postgres": "refused"}}
    assert json.loads(reply.body) == {"ok": False, **reported}
    assert (await get(server, "/healthz")).status == 200


async def test_the_status_is_served_as_json(server: AdminServer) -> None:
    status = await get(server, "/status?now")
    assert json.loads(status.body) == {"totals": {"published": 3}}
    assert status.headers["content-type"] == "application/json"


async def test_the_page_needs_nothing_from_elsewhere(server: AdminServer) -> None:
    reply = await get(server, "/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    directives = {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}
    assert {*directives, "require-trusted-types-for 'script'"} <= set(policy.split("; "))
    named = set(re.findall(r'(?:src|href)="([^"]+)"', reply.body.decode())) - {"data:,"}
    scripts = [path for path in PAGE.glob("*.js") if "import" in path.read_text()]
    named |= set(re.findall(r'from "\./([^"]+)"', "".join(path.read_text() for path in scripts)))
    assert {path.name for path in PAGE.iterdir()} == named | {"index.html"}
    for name in named:
        part = await get(server, f"/{name}")
        assert (part.status, b"//" in part.body.replace(b"http://www.w3.org", b"").replace(b"// ", b"")) == (
            200,
            False,
        )


@pytest.mark.parametrize("path", ["/", "/page.css", "/healthz", "/metrics", "/status", "/nothing"])
async def test_no_answer_is_kept_sniffed_or_named_to_another_site(server: AdminServer, path: str) -> None:
    headers = (await get(server, path)).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_head_gets_the_head_alone(server: AdminServer) -> None:
    reply = await get(server, "/metrics", method="HEAD")
    assert (reply.status, reply.headers["content-length"], reply.body) == (200, "12", b"")


@pytest.mark.parametrize(
    ("line", "status"),
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
    ],
)
async def test_anything_else_is_refused(server: AdminServer, line: str, status: int) -> None:
    assert (await send(server, f"{line}\r\n\r\n".encode())).status == status


async def test_a_head_without_end_is_refused(server: AdminServer) -> None:
    assert (await send(server, b"GET / HTTP/1.1\r\nx: " + b"y" * 9000)).status == 431


async def test_a_head_that_never_comes_is_given_up(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sea_mq_worker.admin.http._SECONDS_MAX", 0.05)
    assert (await send(server, b"GET / HT")).status == 408


@pytest.mark.fault("S10")
async def test_slow_clients_are_bounded_and_keep_no_probe_out(server: AdminServer) -> None:
    """A connection above the bound costs the one that is open the longest."""
    slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(32)]
    for _, writer in slow:
        writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
    assert (await get(server, "/healthz")).status == 200
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
    server: AdminServer, parts: Parts, host: str, status: int
) -> None:
    parts.unready["postgres"] = "refused"
    assert (await get(server, "/metrics", host=host)).status == status
    assert (b"refused" in (await get(server, "/readyz", host=host)).body) == (status == 200)
    assert (await get(server, "/healthz", host=host)).status == 200


@pytest.mark.fault("S10")
async def test_with_a_token_numbers_are_for_its_bearer(guarded: AdminServer) -> None:
    assert "s3cret" not in repr(guarded)
    for path in ("/metrics", "/status"):
        for refused in ({}, {"authorization": "Bearer s3cre"}, {"authorization": "Basic s3cret"}):
            reply = await get(guarded, path, **refused)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert (await get(guarded, path, authorization="Bearer s3cret")).status == 200
        assert (await get(guarded, f"{path}?token=s3cret")).status == 401


@pytest.mark.fault("S10")
async def test_with_a_token_probes_learn_which_part_is_in_the_way_not_why(
    guarded: AdminServer, parts: Parts
) -> None:
    assert (await get(guarded, "/healthz")).status == 200
    parts.unready["postgres"] = "db.internal refused"
    named = {"ok": False, "state": "paused", "parts": ["postgres"]}
    assert json.loads((await get(guarded, "/readyz")).body) == named
    parts.unready["start"] = "the worker is starting"
    assert json.loads((await get(guarded, "/readyz")).body)["state"] == "starting"
    assert b"db.internal" in (await get(guarded, "/readyz", authorization="Bearer s3cret")).body


async def test_a_callback_that_fails_costs_one_answer(
    server: AdminServer, parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    parts.numbers = lambda: {"x": 1 / 0}
    assert (await get(server, "/status")).status == 500
    assert (await get(server, "/healthz")).status == 200
    assert [record.event for record in caplog.records] == ["admin_request_failed"]  # type: ignore[attr-defined]


async def test_a_port_in_use_is_named(server: AdminServer, parts: Parts) -> None:
    second = parts.server(port=server.port)
    with pytest.raises(
        WorkerError, match=rf"^127\.0\.0\.1:{server.port} cannot be bound \(Address already in use\)"
    ):
        await second.start()
    await second.close()


async def test_close_ends_open_connections_at_once(parts: Parts) -> None:
    server = parts.server()
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await get(server, "/healthz")
    async with asyncio.timeout(10):
        await server.close()
        await server.close()
        assert await reader.read() == b""
    writer.close()

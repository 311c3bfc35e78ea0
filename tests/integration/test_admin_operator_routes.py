"""Operators' requests through the admin server with its token, and refused requests."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from sea_mq_worker.admin.api import DeadLetterGroup, OperatorBusyError, OperatorTimeoutError
from sea_mq_worker.admin.http import Request, TokenAuth
from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.errors import ContractError, StoreUnavailableError
from tests.integration.test_admin_server import Parts, send

ID = "0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10"
WHY = {"actor": "Ann", "reason": "fixed"}
TOKEN = {"authorization": "Bearer s3cret"}


@dataclass
class ScriptedOperatorApi:
    """Notes what it is asked, and fails as it is told."""

    asked: list[tuple[object, ...]] = field(default_factory=list)
    error: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def note(*asked: object, **given: object) -> object:
            self.asked.append((name, *asked, *given.values()))
            if self.error:
                raise self.error
            return None if name == "event" else {"items": [], "more": False}

        return note


@dataclass
class Served:
    """A server with a desk, and how it is asked."""

    desk: ScriptedOperatorApi
    server: AdminServer

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Send one request; header names are written with underscores."""
        given = {"host": "x:1", **headers}
        if body is not None:
            given = {"content_type": "application/json", "content_length": str(len(body)), **given}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in given.items() if v)]
        reply = await send(self.server, "\r\n".join([*lines, "", ""]).encode() + (body or b""))
        is_json = reply.headers["content-type"] == "application/json"
        return reply.status, json.loads(reply.body) if is_json else {}

    async def act(self, path: str, given: object, **headers: str) -> tuple[int, dict[str, Any]]:
        return await self.ask("POST", path, json.dumps(given).encode(), **{**TOKEN, **headers})


@asynccontextmanager
async def serve(token: str) -> AsyncIterator[Served]:
    desk = ScriptedOperatorApi()
    server = Parts().server(token=lambda: token, operator_api=desk)
    await server.start()
    yield Served(desk, server)
    await server.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve("s3cret") as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("GET", "/api/lookup?id=0198", ("lookup", "0198")),
        ("GET", "/api/events", ("dead_events", "", "", None)),
        ("GET", "/api/events?type=a.b&error=x%20y&below=7", ("dead_events", "a.b", "x y", 7)),
        ("GET", "/api/dead-letters?reason=REJECTED&after=50", ("dead_letters", "REJECTED", 50)),
        ("GET", "/api/dead-letters/9", ("dead_letter", 9)),
        ("GET", "/api/dead-letter-groups", ("dead_letter_groups",)),
        ("GET", "/api/actions", ("actions",)),
        ("POST", f"/api/events/{ID}/replay", ("replay", UUID(ID), "Ann", "fixed")),
        ("POST", "/api/dead-letters/9/redrive", ("redrive", 9, "Ann", "fixed")),
    ],
)
async def test_a_path_with_its_arguments_becomes_one_question(
    served: Served, method: str, path: str, asked: tuple[object, ...]
) -> None:
    body = json.dumps(WHY).encode() if method == "POST" else None
    assert (await served.ask(method, path, body, **TOKEN))[0] == 200
    assert served.desk.asked == [asked]


@pytest.mark.parametrize("act", ["redrive", "purge"])
async def test_a_group_is_named_by_all_of_its_parts(act: str, served: Served) -> None:
    group = {"dlq_reason": "REJECTED", "subject": "a.event.b.v1", "after": 3, "last": 9}
    assert (await served.act(f"/api/dead-letter-groups/{act}", WHY | group))[0] == 200
    reported = DeadLetterGroup(reason="REJECTED", subject="a.event.b.v1", after=3, last=9)
    assert served.desk.asked == [(f"{act}_group", reported, "Ann", "fixed")]
    for name in group:
        for wrong in (None, 0.5, []):
            status, said = await served.act(f"/api/dead-letter-groups/{act}", WHY | group | {name: wrong})
            assert (status, "give the group" in said["error"]) == (400, True)
    assert (await served.act(f"/api/dead-letter-groups/{act}", group))[0] == 400


async def test_a_slow_pace_is_ended_for_one_event_type_or_for_all(served: Served) -> None:
    for event_type in ("order.paid", ""):
        assert (await served.act("/api/slow-types/resume", WHY | {"event_type": event_type}))[0] == 200
        assert served.desk.asked.pop() == ("resume", event_type, "Ann", "fixed")
    for wrong in ({}, {"event_type": None}, {"event_type": "a\0b"}, {"event_type": "x" * 1025}):
        status, said = await served.act("/api/slow-types/resume", WHY | wrong)
        assert (status, "give the event_type" in said["error"]) == (400, True)
    assert (await served.act("/api/slow-types/resume", {"event_type": "order.paid"}))[0] == 400
    assert served.desk.asked == []


async def test_a_missing_item_is_reported(served: Served) -> None:
    assert (await served.ask("GET", f"/api/events/{ID}", **TOKEN))[0] == 404
    assert (await served.ask("GET", "/api/nothing", **TOKEN))[0] == 404
    assert (await served.ask("GET", f"/api/events/{ID}/replay", **TOKEN))[0] == 405
    assert (await served.act("/api/actions", WHY))[0] == 405


@pytest.mark.fault("S10")
async def test_without_a_token_set_nothing_is_listed_and_nothing_changed() -> None:
    async with serve("") as open_to_all:
        for method, path in (("GET", "/api/lookup?id=0198"), ("POST", f"/api/events/{ID}/replay")):
            status, reported = await open_to_all.ask(method, path, json.dumps(WHY).encode())
            assert (status, "SEA_MQ_ADMIN_TOKEN_FILE" in reported["error"]) == (403, True)
    assert open_to_all.desk.asked == []


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
    served: Served, headers: dict[str, str], status: int
) -> None:
    assert (await served.act(f"/api/events/{ID}/replay", WHY, **headers))[0] == status
    assert served.desk.asked == []
    own = {"origin": "http://x:1", "sec_fetch_site": "same-origin"}
    assert (await served.act(f"/api/events/{ID}/replay", WHY, **own))[0] == 200


@pytest.mark.fault("S10")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/api/events/{ID}/replay", {}),
        (f"/api/events/{ID}/replay", {"actor": "Ann", "reason": " "}),
        (f"/api/events/{ID}/replay", {"actor": "Ann", "reason": "a\nb"}),
        (f"/api/events/{ID}/replay", {"actor": "x" * 81, "reason": "fixed"}),
        (f"/api/events/{ID}/replay", {"actor": 7, "reason": "fixed"}),
        (f"/api/events/{ID}/replay", [WHY]),
        ("/api/events/first/replay", WHY),
        ("/api/dead-letters/-1/redrive", WHY),
        (f"/api/dead-letters/{2**63}/redrive", WHY),
    ],
)
async def test_a_change_without_its_reason_or_object_is_refused(
    served: Served, path: str, body: object
) -> None:
    status, reported = await served.act(path, body)
    assert (status, bool(reported["error"])) == (400, True)
    assert served.desk.asked == []


async def test_a_body_that_is_no_json_is_refused(served: Served) -> None:
    for body in (b"", b"{", b"\xff", b"[" * 4000):
        assert (await served.ask("POST", "/api/dead-letters/1/redrive", body, **TOKEN))[0] == 400


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no id"), 400),
        (OperatorBusyError(), 429),
        (OperatorTimeoutError("no answer within 8 s"), 504),
        (StoreUnavailableError("PostgreSQL cannot be reached"), 503),
        (ContractError("grant it"), 409),
    ],
)
async def test_an_error_of_the_desk_has_its_status_and_its_text(
    served: Served, error: Exception, status: int
) -> None:
    served.desk.error = error
    found, reported = await served.ask("GET", "/api/actions", **TOKEN)
    assert (found, str(error) in reported["error"]) == (status, True)


@pytest.mark.fault("S10")
def test_wrong_tokens_are_throttled_and_keep_the_right_one_out_nowhere() -> None:
    now = 0.0
    access = TokenAuth(lambda: "s3cret", clock=lambda: now)

    def status(peer: str, token: str) -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        request = Request(method="GET", path="/status", headers=headers, peer=peer)
        refused = access.refuse_numbers(request)
        return refused.status if refused else 200

    assert [status("a", "") for _ in range(20)] == [401] * 20, "a probe without a token guesses none"
    assert [status("a", "x") for _ in range(10)] == [401] * 10
    assert (status("a", "x"), status("a", "s3cret"), status("b", "x")) == (429, 200, 401)
    for number in range(1000):
        status(f"peer{number}", "x")
    assert len(access._wrong) == 64
    assert [status("a", "x") for _ in range(11)][-1] == 429
    now = 61.0
    assert status("a", "x") == 401

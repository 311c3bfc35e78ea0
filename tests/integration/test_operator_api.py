"""The page's API on real servers: bounded, one request at a time, and clear about what is missing."""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from sea_mq_worker.admin import api as module
from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.http import RefusedError, Request, Response
from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.nats.errors import PublishDeniedError
from sea_mq_worker.settings import Settings
from tests.page.stage import add_dead_event
from tests.support.jetstream import store
from tests.support.servers import Database, PostgresAddress, unique
from tests.support.site import Site

MEGABYTE = 2**20
ID = "0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10"
WHY = {"actor": "Ann", "reason": "fixed"}
REPLAY, RESUME = f"/api/events/{ID}/replay", "/api/slow-types/resume"
REDRIVE_GROUP, PURGE_GROUP = "/api/dead-letter-groups/redrive", "/api/dead-letter-groups/purge"
GROUP = {"dlq_reason": "REJECTED", "subject": "a", "after": 0, "last": 4}


@contextmanager
def memory_below(bytes_max: int) -> Iterator[None]:
    """Assert that a block never allocates more."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


class Client:
    """Asks an API; a refusal becomes its status and its text."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.api = OperatorApi(settings or Settings())

    async def ask(self, path: str, body: object = None, **query: str) -> Any:
        """Return the JSON of an answer, which has to be one with status 200."""
        status, data = await self.reply(path, body, **query)
        assert status == 200, data
        return data

    async def reply(
        self, path: str, body: object = None, *, method: str = "", **query: str
    ) -> tuple[int, Any]:
        given: Any = {} if body is None else body
        method = method or ("GET" if body is None else "POST")
        try:
            response = await self.api.answer(Request(method=method, path=path, query=query, body=given))
        except RefusedError as refused:
            response = refused.response
        return response.status, said(response)


def said(response: Response) -> Any:
    return json.loads(response.body) if response.content_type == "application/json" else response.body


def client(place: Site, *, database_url: str = "") -> Client:
    environment = place.target.environment
    return Client(
        Settings(
            context=place.target.context,
            database_url=SecretStr(database_url or environment["SEA_MQ_DATABASE_URL"]),
            nats_url=SecretStr(environment["SEA_MQ_NATS_URL"]),
        )
    )


@pytest.mark.fault("S10")
@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (REPLAY, {}, "give actor"),
        (REPLAY, {"actor": "Ann", "reason": " "}, "give reason"),
        (REPLAY, {"actor": "Ann", "reason": "a\nb"}, "give reason"),
        (REPLAY, {"actor": "x" * 81, "reason": "fixed"}, "at most 80"),
        (REPLAY, {"actor": 7, "reason": "fixed"}, "give actor"),
        ("/api/events/first/replay", WHY, "an id is a UUID"),
        ("/api/dead-letters/-1/redrive", WHY, "whole number"),
        (f"/api/dead-letters/{2**63}/redrive", WHY, "whole number"),
        (RESUME, {"event_type": "order.paid"}, "give actor"),
        *((RESUME, WHY | wrong, "give the event_type")
          for wrong in ({}, {"event_type": None}, {"event_type": "a\0b"}, {"event_type": "x" * 1025})),
        *((path, GROUP, "give actor") for path in (REDRIVE_GROUP, PURGE_GROUP)),
        *((path, WHY | GROUP | {name: wrong}, "give the group")
          for path in (REDRIVE_GROUP, PURGE_GROUP) for name in GROUP for wrong in (None, 0.5, [])),
    ],
)  # fmt: skip
async def test_a_change_without_its_reason_or_object_is_refused(path: str, body: object, text: str) -> None:
    status, data = await Client().reply(path, body)
    assert (status, text in data["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "query", "method", "status"),
    [
        ("/api/nothing", {}, "GET", 404),
        (REPLAY, {}, "GET", 405),
        ("/api/actions", {}, "POST", 405),
        ("/api/lookup", {"id": "x" * 201}, "GET", 400),
        ("/api/events", {"error": "a\0b"}, "GET", 400),
        ("/api/events", {"below": "x"}, "GET", 400),
        ("/api/dead-letters", {"after": "-1"}, "GET", 400),
    ],
)
async def test_a_question_that_is_none_is_refused(
    path: str, query: dict[str, str], method: str, status: int
) -> None:
    assert (await Client().reply(path, method=method, **query))[0] == status


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (StoreUnavailableError("PostgreSQL cannot be reached"), 503, "PostgreSQL cannot be reached"),
        (ContractError("a table is missing"), 409, "a table is missing"),
        (PublishDeniedError("no permission to publish to x"), 409, "run the command as sea_operator"),
    ],
)
async def test_an_error_has_its_status_and_its_text(
    error: Exception, status: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> object:
        raise error

    monkeypatch.setattr(module, "ROUTES", (("GET", "/api/fails", fails),))
    found, data = await Client().reply("/api/fails")
    assert (found, text in data["error"]) == (status, True)


async def test_a_dead_event_is_listed_found_shown_and_replayed(place: Site) -> None:
    page = client(place)
    ids = [await add_dead_event(place.database, event_type=f"no subject {number}") for number in (1, 2, 3)]
    listed = (await page.ask("/api/events"))["items"]
    assert [each["id"] for each in listed] == ids[::-1]
    assert [each["id"] for each in (await page.ask("/api/events", below=str(listed[1]["seq"])))["items"]] == [
        ids[0]
    ]
    for query, found in (({"type": "no subject 2", "error": "Space or"}, 1), ({"error": "nothing"}, 0)):
        assert len((await page.ask("/api/events", **query))["items"]) == found
    looked = await page.ask("/api/lookup", id=ids[1][:13])
    assert "DEAD" in str(looked["answer"] + looked["matches"])
    assert (await page.reply("/api/lookup", id="no id"))[0] == 400
    shown = await page.ask(f"/api/events/{ids[0]}")
    assert (shown["fields"]["state"], shown["body"]["payload_cut"]) == ("DEAD", False)
    assert await page.reply(f"/api/events/{ID}") == (404, {"error": "it does not exist, or no longer"})
    done = await page.ask(f"/api/events/{ids[0]}/replay", WHY)
    assert (done["done"], done["text"].startswith("it is PENDING again")) == (True, True)
    assert (await page.ask(REPLAY, WHY))["done"] is False
    await page.ask(RESUME, WHY | {"event_type": ""})
    made = (await page.ask("/api/actions"))["items"]
    assert [(each["action"], each["actor"]) for each in made] == [
        ("resume", "Ann (page)"), ("replay", "Ann (page)"),
    ]  # fmt: skip


async def test_a_question_that_is_not_answered_ends_and_lets_the_next_one_come(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REQUEST_SECONDS", 0.4)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.1)
    page = client(place)
    place.to_database.stall()
    first = asyncio.create_task(page.reply("/api/actions"))
    await asyncio.sleep(0)
    assert (await page.reply("/api/actions"))[0] == 429
    async with asyncio.timeout(30):
        status, data = await first
    assert (status, "within 0.4 s" in data["error"]) == (504, True)
    place.to_database.heal()
    monkeypatch.setattr(module, "_REQUEST_SECONDS", 8.0)
    assert (await page.ask("/api/actions"))["items"] == []


async def test_a_change_without_the_right_names_the_grant_and_changes_nothing(
    place: Site, database: Database, postgres_server: PostgresAddress
) -> None:
    event = await add_dead_event(place.database, event_type="no subject")
    login = unique("page_")
    await place.database.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'p'")
    await place.database.execute(
        f"GRANT SELECT ON sea_mq_migrations, sea_mq_context, outbox_events TO {login};"
        f"GRANT UPDATE (state, available_at) ON outbox_events TO {login}"
    )
    parts = urlsplit(database.dsn)
    dsn = parts._replace(netloc=f"{login}:p@{parts.hostname}:{parts.port}").geturl()
    try:
        page = client(place, database_url=dsn)
        assert [each["id"] for each in (await page.ask("/api/events"))["items"]] == [event]
        for path, body in ((f"/api/events/{event}/replay", WHY), ("/api/actions", None)):
            status, data = await page.reply(path, body)
            assert (status, "operator_actions" in data["error"]) == (409, True)
            assert "grant the operator's role to the worker's login, as in sql/roles.sql" in data["error"]
    finally:
        await place.database.execute(f"DROP OWNED BY {login}; DROP ROLE {login}")
    assert (await place.row(event))["state"] == "DEAD"


async def test_an_endless_payload_is_shown_up_to_a_bound(place: Site) -> None:
    event = await add_dead_event(place.database, event_type="x" * MEGABYTE, text="ä" * 8 * MEGABYTE)
    with memory_below(4 * MEGABYTE):
        shown = await client(place).ask(f"/api/events/{event}")
        [listed] = (await client(place).ask("/api/events"))["items"]
    assert len(shown["fields"]["event_type"]) == len(listed["event_type"]) == 1024
    body = shown["body"]
    assert (body["payload_cut"], body["payload_encoding"]) == (True, "utf-8")
    assert body["payload_bytes"] > 16 * MEGABYTE
    assert len(body["payload"].encode()) <= 65_536


async def test_large_dead_letters_are_counted_listed_and_shown_some_at_a_time(place: Site) -> None:
    for number in range(40):
        await store(place.broker, f"{place.target.context}.dlq.{number}", b"\xff" + bytes(900_000))
    with memory_below(16 * MEGABYTE):
        [group] = (await client(place).ask("/api/dead-letter-groups"))["items"]
        listed = (await client(place).ask("/api/dead-letters", after="3"))["items"]
        shown = (await client(place).ask("/api/dead-letters/4"))["body"].values()
    assert (group["count"], len(listed)) == (40, 37)
    assert {"base64", True, 900_001} <= {*shown}


async def test_a_group_of_dead_letters_is_counted_and_purged_some_at_a_time_up_to_its_last(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_MAX", 2)
    page = client(place)
    for subject in ("a", "b", "a", "a", "a"):
        headers = {"Dlq-Reason": "REJECTED", "Dlq-Original-Subject": subject, "Dlq-Detail": "422"}
        await store(place.broker, f"{place.target.context}.dlq.x", headers=headers)
    first, second = (await page.ask("/api/dead-letter-groups"))["items"]
    assert (first["subject"], first["count"], first["last"], second["count"]) == ("a", 4, 5, 1)
    progress = await page.ask(PURGE_GROUP, WHY | GROUP)
    assert progress == {"done": 2, "failed": 0, "after": 3, "text": "", "more": True}
    progress = await page.ask(PURGE_GROUP, WHY | GROUP | {"after": progress["after"]})
    assert progress == {"done": 1, "failed": 0, "after": 4, "text": "", "more": False}
    assert [each["count"] for each in (await page.ask("/api/dead-letter-groups"))["items"]] == [1, 1]
    made = (await page.ask("/api/actions"))["items"]
    assert [(each["action"], each["affected"]) for each in made] == [("purge", 1), ("purge", 2)]


async def test_a_group_of_messages_that_are_no_dead_letters_is_purged_alone(place: Site) -> None:
    page, subject = client(place), f"{place.target.context}.dlq.x"
    for headers in ({}, {"Dlq-Reason": "REJECTED", "Dlq-Original-Subject": "a"}, {}):
        await store(place.broker, subject, headers=headers)
    group = {"dlq_reason": "", "subject": "", "after": 0, "last": 3}
    progress = await page.ask(PURGE_GROUP, WHY | group)
    assert (progress["done"], progress["more"]) == (2, False)
    [left] = (await page.ask("/api/dead-letter-groups"))["items"]
    assert (left["reason"], left["count"]) == ("REJECTED", 1)

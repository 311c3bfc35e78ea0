"""No row that a producer can commit harms another one or is altered on its way, however strange it is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.jetstream import stored_messages
from tests.support.rows import add_event
from tests.support.servers import database_connection
from tests.support.site import Site

IN_BOTH_MODES = pytest.mark.parametrize("mode", ["auto", "atomic"])
MAX_MSG_SIZE = 200_000

NO_SUBJECT = {
    "": "blank",
    "a b": "space",
    "tab\there": "control",
    "line\r\nPUB stolen 0": "control",
    "\x7f": "control",
    "a\u2028b": "control",
    "*": "wildcard",
    "order.>": "wildcard",
    "a..b": "empty token",
    ".a": "empty token",
    "a.": "empty token",
    "x" * 5000: "longer than",
}
NO_HEADERS = {
    "null": "not a JSON object",
    "[]": "not a JSON object",
    "7": "not a JSON object",
    '{"count": 1}': "not a string",
    '{"none": null}': "not a string",
    '{"list": ["a", "b"]}': "not a string",
    '{"": "a"}': "blank",
    '{"a b": "c"}': "blank",
    '{"a:b": "c"}': "blank",
    '{"a\\r\\nb": "c"}': "blank",
    '{"ä": "c"}': "blank",
    '{"a": "b\\r\\nNats-Rollup: all"}': "CR, LF or NUL",
    '{"a": " b"}': "white space",
    '{"Nats-Rollup": "all"}': "reserved",
    '{"nats-msg-id": "another"}': "reserved",
    '{"Nats-Expected-Last-Sequence": "0"}': "reserved",
    '{"Status": "503"}': "reserved",
    '{"ce-id": "another"}': "reserved",
    json.dumps({"long": "x" * 70_000}): "bytes of headers",
}
FINE_PAYLOADS = [
    '{"exact": 12345678901234567890.123456789012345678901, "b": 1.0, "c": 1.00, "d": -0.0}',
    '{"large": 1e400, "small": 1e-300}',
    '{"z": 1, "a": "é\u2028\\u0001", "\\ud83d\\ude00": []}',
    "null",
    '"text"',
    "[" * 500 + "]" * 500,
]
FINE_HEADERS: list[Mapping[str, str]] = [
    {"empty": "", "X-Own": "a=b; c:d", "x-own": "ß \u2028 中"},
    {"ce-tenant": "own", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {f"h{number}": "v" for number in range(500)},
]
FINE_COLUMNS: list[Mapping[str, Any]] = [
    {"aggregate_id": "line\r\nbreak \N{GRINNING FACE} %"},
    {"partition_key": "two words", "metadata": "[]"},
    {"event_type": "größe.geändert", "event_version": 2**31 - 1},
]


@dataclass(frozen=True, slots=True)
class Rows:
    bad: Mapping[str, str]
    """Why, by id."""
    fine: Mapping[str, Mapping[str, Any]]
    """What was given, by id."""


async def insert_all(database: asyncpg.Connection) -> Rows:
    """Commit everything at once, the bad and the fine in turn, so that they share batches."""
    large = json.dumps("x" * (MAX_MSG_SIZE + 1))
    bad: list[tuple[Mapping[str, Any], str]] = [
        *(({"event_type": event_type}, why) for event_type, why in NO_SUBJECT.items()),
        *(({"headers": headers}, why) for headers, why in NO_HEADERS.items()),
        ({"event_version": 0}, "below 1"),
        ({"aggregate_id": "x" * 70_000}, "bytes of headers"),
        ({"payload": large}, "10054"),
        ({"payload": json.dumps("x" * 2**20)}, "max_payload of 1048576"),
    ]
    fine: list[Mapping[str, Any]] = [
        *({"payload": payload} for payload in FINE_PAYLOADS),
        *({"headers": json.dumps(headers)} for headers in FINE_HEADERS),
        *FINE_COLUMNS,
    ]
    fine += [{}] * (100 - len(bad) - len(fine))
    made_bad, made_fine = {}, {}
    async with database.transaction():
        for wrong, right in zip_longest(bad, fine):
            if wrong is not None:
                made_bad[str(await add_event(database, **wrong[0]))] = wrong[1]
            if right is not None:
                made_fine[str(await add_event(database, **right))] = right
    return Rows(made_bad, made_fine)


@IN_BOTH_MODES
@pytest.mark.fault("P20")
@pytest.mark.fault("P23")
@pytest.mark.fault("P25")
@pytest.mark.fault("P39")
@pytest.mark.fault("P41")
async def test_rows_that_can_never_be_sent_die_alone_and_the_others_arrive_as_they_are(
    shared: Site, mode: str
) -> None:
    await shared.change_stream(max_msg_size=MAX_MSG_SIZE)
    overheard = await shared.broker.client.subscribe(">", pending_bytes_limit=0)
    async with shared.worker(outbox_publish_mode=mode) as worker:
        await worker.ready()
        rows = await insert_all(shared.database)
        await shared.published()
        assert "nats_disconnected" not in worker.events()
        assert "circuit_opened" not in worker.events()
    for event_id, why in rows.bad.items():
        row = await shared.row(event_id)
        assert why in row["publish_error"]
        assert (row["state"], row["publish_attempts"]) == ("DEAD", 1)
    assert {(await shared.row(event_id))["publish_attempts"] for event_id in rows.fine} == {1}
    await shared.audit(dead=frozenset(rows.bad))
    for _, _, _, headers in await stored_messages(shared.broker, shared.target.stream):
        wanted = json.loads(rows.fine[headers["Nats-Msg-Id"]].get("headers", "{}"))
        assert headers.items() >= wanted.items()
    seen = {(await overheard.next_msg(1)).subject for _ in range(overheard.pending_msgs)}
    assert {subject for subject in seen if not subject.startswith(("$", "_INBOX"))} == {
        f"{shared.target.context}.event.order.created.v1",
        f"{shared.target.context}.event.größe.geändert.v2147483647",
    }


@pytest.mark.clause("store-01")
@pytest.mark.fault("P26")
async def test_what_commits_late_is_published_and_what_is_rolled_back_is_not(shared: Site) -> None:
    async with (
        database_connection(shared.dsn) as slow,
        database_connection(shared.dsn) as undone,
        shared.worker() as worker,
    ):
        await worker.ready()
        late, never = slow.transaction(), undone.transaction()
        await late.start()
        await never.start()
        [late_id] = await enqueue(slow, enqueueable())
        await enqueue(undone, enqueueable())
        for _ in range(3):
            await shared.commit(10)
            await shared.published()
        await never.rollback()
        await late.commit()
        await shared.published()
    assert (await shared.row(str(late_id)))["state"] == "PUBLISHED"
    await shared.audit()


@pytest.mark.fault("P31")
async def test_an_event_of_the_near_future_is_published_when_it_has_occurred(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        [ahead] = await shared.commit(occurred_at=datetime.now(UTC) + timedelta(seconds=5))
        [now] = await shared.commit()
        await shared.published()
    row = await shared.row(ahead)
    assert (await shared.row(now))["published_at"] < row["occurred_at"] <= row["published_at"]
    assert (row["publish_attempts"], row["failures"]) == (1, 0)
    await shared.audit()

"""Rows that no trigger has judged: whatever their columns hold, they spoil no statement and no other row.

A bulk load with triggers off, a logical subscription, and a superuser's `session_replication_role = replica`
write such rows.
"""

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python

from sea_mq_worker.doctor.database import row_facts
from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.inbox.message import InboxMessage, Lease
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.nats.message import Stored
from sea_mq_worker.operators.changes import close, discard, mark_dead
from sea_mq_worker.operators.lookup import Lookup, lookup_report
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.records import InboxFilter, InboxState, OutboxFilter
from sea_mq_worker.operators.replay import choose
from sea_mq_worker.operators.tables import (
    audit,
    dead_events,
    depth,
    inbox_page,
    outbox_page,
    overview,
    show_outbox,
    summary,
)
from sea_mq_worker.outbox.event import Died, EventState, Published
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from tests.support.rows import add_event, add_message, opened
from tests.support.servers import Database

WHO = {"actor": "ann", "reason": "a test"}
FAR = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
INT, BIGINT = 2**31 - 1, 2**63 - 1
PAST = st.sampled_from(
    ["4714-11-24 00:00:00+00 BC", "0044-03-15 12:00:00+00 BC", "-infinity", "0001-01-01 00:00:00+00", "now"]
)
TIMES = PAST | st.sampled_from(
    [
        "infinity",
        "294276-12-31 23:59:59.999999+00",
        "10000-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
    ]
)
COUNTS = st.sampled_from([0, 1, INT])
SEQS = st.sampled_from([None, 0, 1, -1, BIGINT, -BIGINT - 1])
LONG = {
    "long text": "ö" * 3000,
    "long key": "x" * 2000,
    "digits": "9" * 5000,
    "object of digits": '{"n": ' + "9" * 5000 + "}",
    "deep": "[" * 2000 + "]" * 2000,
    "large": json.dumps("x" * 200_000),
}
"""Values that would hide the others where a failing example is printed."""
TEXTS = st.sampled_from(["", " ", "order.paid", "a..b", "#", "x#1", "\r\n\u2028", "long text"])
JSON = st.sampled_from(
    [
        *("null", "{}", "[]", '"x"', '{"x": "y"}', '{"traceparent": 1e400}', "1e5000"),
        *("digits", "object of digits", "deep", "large"),
    ]
)
EVENTS = st.fixed_dictionaries(
    {"occurred_at": TIMES, "created_at": TIMES, "available_at": TIMES},
    optional={
        "aggregate_type": TEXTS,
        "aggregate_id": TEXTS,
        "event_type": TEXTS,
        "event_version": st.sampled_from([1, 0, -INT, INT]),
        "payload": JSON,
        "headers": JSON,
        "metadata": JSON,
        "partition_key": TEXTS,
        "ordering_key": st.sampled_from(["", "k", "long key"]),
        "correlation_id": st.just(str(uuid.UUID(int=1))),
        "seq": st.sampled_from([0, -1, BIGINT, -BIGINT]),
        "publish_attempts": COUNTS,
        "failures": COUNTS,
        "first_attempt_at": TIMES,
        "stream": TEXTS,
        "stream_seq": SEQS,
        "publish_error": TEXTS,
    },
)
STATES = st.one_of(
    st.just({"state": "PENDING"}),
    st.just({"state": "DEAD"}),
    st.fixed_dictionaries({"state": st.just("CLAIMED"), "claimed_at": TIMES, "claimed_by": TEXTS}),
    st.fixed_dictionaries({"state": st.just("PUBLISHED"), "published_at": TIMES}),
)
MESSAGES = st.fixed_dictionaries(
    {"received_at": TIMES},
    optional={
        "subject": TEXTS,
        "attempts": COUNTS,
        "last_error": TEXTS,
        "consumer": TEXTS,
        "stream": TEXTS,
        "stream_seq": SEQS,
        "content_hash": st.just("\\x01"),
        "reply": TEXTS,
        "dead_letter_reason": TEXTS,
        "dead_letter_begun_at": TIMES,
    },
)
LEASES = st.just({}) | st.fixed_dictionaries({"locked_until": TIMES, "locked_by": TEXTS})
ENDS = st.sampled_from(["open", "processed", "dead-lettered"])

many = settings(
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],  # each example takes a good part of a second
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
async def loader(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A session in which no trigger fires."""
    connection = await asyncpg.connect(
        database.dsn, server_settings={"session_replication_role": "replica", "search_path": "public"}
    )
    yield connection
    await connection.close()


async def load(loader: asyncpg.Connection, table: str, row: Mapping[str, Any]) -> None:
    columns = [name for name, value in row.items() if value is not None]
    types = dict(
        await loader.fetch(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = $1::text::regclass",
            table,
        )
    )
    places = ", ".join(f"${place}::text::{types[name]}" for place, name in enumerate(columns, start=1))
    await loader.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES ({places})",
        *(LONG.get(row[name], str(row[name])) for name in columns),
    )


def event(row: Mapping[str, Any]) -> dict[str, Any]:
    plain = {"aggregate_type": "order", "aggregate_id": "1", "event_type": "order.paid", "payload": "{}"}
    return {"id": str(uuid.uuid4()), **plain, **row}


def message(row: Mapping[str, Any], end: str) -> dict[str, Any]:
    ended: dict[str, Any] = {}
    if end == "processed":
        ended = {"processed_at": "infinity", "locked_until": None, "locked_by": None}
    if end == "dead-lettered":
        ended = {
            "dead_letter_reason": "REJECTED",
            "dead_letter_begun_at": "-infinity",
            "dead_lettered_at": "now",
        }
    return {"message_id": str(uuid.uuid4()), "subject": "a.event.b.v1", **row, **ended}


def as_printed(found: object) -> str:
    """Write as the commands and the page do; JSON knows no infinity."""
    return json.dumps(to_jsonable_python(found), allow_nan=False)


ACTION = (
    "INSERT INTO operator_actions (at, actor, action, reason, selection, affected)"
    " VALUES ('infinity', 'a', 'prune_inbox', 'r', '{\"before\": \"no time\"}', 1)"
)


async def publish_all(pool: asyncpg.Pool, rows: int) -> None:
    """Do what the publisher does with each event that it can claim."""
    clock = itertools.count(0, 100)
    lanes = [
        PostgresOutboxAdapter(
            pool=pool,
            worker="w",
            lease_seconds=0.0,
            ordered=ordered,
            hold_dead_keys=False,
            failures_max=1,
            clock=lambda: float(next(clock)),
        )
        for ordered in (False, True)
    ]
    for lane in lanes:
        await lane.reap()
        for _ in range(3 * rows):
            claim = await lane.find_unpublished(batch_max=2)
            assert claim.refused == ()
            if not claim.events:
                break
            for one in claim.events:
                try:
                    outbound_message(one, context="sea", source="/sea")
                except InvalidEventError as error:
                    await lane.increment_attempts_batch(claim, [Died(one, str(error))])
                else:
                    await lane.mark_published_batch(claim, [Published(one, Stored("SEA_EVENTS", 7))])
        await lane.reap()


async def read_everything(pool: asyncpg.Pool, ids: Sequence[str]) -> None:
    """Do what operators' commands, the page and `doctor` do to read both tables."""
    found: list[Any] = [
        await depth(pool, "outbox"),
        await depth(pool, "inbox"),
        await depth(pool, "outbox", limit=10),
        await depth(pool, "inbox", limit=10),
        await summary(pool, "outbox", read_max=100, groups_max=10),
        await summary(pool, "inbox", read_max=100, groups_max=10),
        await audit(pool, limit=10),
        await overview(pool, sessions="none"),
        await dead_events(pool, event_type=None, error=None, below=None, limit=10),
        await row_facts(pool, "SEA_EVENTS"),
    ]
    for states, limit in (
        ((EventState.PUBLISHED,), 100),
        (tuple(EventState), 100),
        ((EventState.PENDING, EventState.DEAD), 1),
    ):
        found += [await outbox_page(pool, OutboxFilter(states=states, limit=limit))]
    found.append(await inbox_page(pool, InboxFilter(states=tuple(InboxState), limit=100)))
    lookup = Lookup(pool=pool, connection=None, notes=["no broker"])
    for one in ids:
        found.append(await show_outbox(pool, uuid.UUID(one)))
        found.append(await lookup_report(one, lookup))
    for one in found:
        as_printed(one)


@many
@given(rows=st.lists(st.tuples(EVENTS, STATES), max_size=6))
@example(
    rows=[
        ({"occurred_at": t, "created_at": t, "available_at": t}, {"state": "PENDING"})
        for t in ("0044-03-15 12:00:00+00 BC", "-infinity", "infinity", "10000-01-01 00:00:00+00")
    ]
)
@example(
    rows=[
        ({"ordering_key": "k", "seq": 0, "available_at": "infinity"}, {"state": "PENDING"}),
        (
            {"ordering_key": "k", "available_at": "infinity", "created_at": "infinity", "publish_error": ""},
            {"state": "PENDING"},
        ),
    ]
)
async def test_an_event_of_any_columns_ends_and_keeps_no_other_waiting(
    pool: asyncpg.Pool, database: Database, loader: asyncpg.Connection, rows: list[tuple[Any, Any]]
) -> None:
    await loader.execute("TRUNCATE outbox_events, operator_actions")
    await loader.execute(ACTION)
    strange = [event({**row, **state}) for row, state in rows]
    for one in strange:
        await load(loader, "outbox_events", one)
    good = [str(await add_event(pool)), str(await add_event(pool, ordering_key="own"))]

    await read_everything(pool, [one["id"] for one in strange])
    async with opened(database) as workers:
        await publish_all(workers, len(rows) + 2)
    await read_everything(pool, [one["id"] for one in strange])

    states = {
        str(row["id"]): row
        for row in await loader.fetch(
            "SELECT id, state, is_open, publish_error, ordering_key AS key, available_at > now() AS ahead,"
            " occurred_at BETWEEN '0001-01-01Z' AND '9999-12-31Z' AS sayable FROM outbox_events"
        )
    }
    held = {row["key"] for row in states.values() if row["key"] and row["is_open"] and row["ahead"]}
    assert {states[one]["state"] for one in good} == {"PUBLISHED"}
    for one in strange:
        row = states[one["id"]]
        assert row["ahead"] or not row["is_open"] or row["key"] in held
        if one["state"] in {"PENDING", "CLAIMED"} and not row["is_open"]:
            assert row["publish_error"] if row["state"] == "DEAD" else row["sayable"]
    left = [uuid.UUID(one["id"]) for one in strange if states[one["id"]]["is_open"]]
    assert await mark_dead(pool, left, **WHO) == frozenset(left)
    chosen = await choose(pool, OutboxFilter(states=(EventState.DEAD,)), limit=None)
    dead = await loader.fetch("SELECT id FROM outbox_events WHERE state = 'DEAD'")
    assert len(chosen) == len(dead)
    assert len(await discard(pool, [row["id"] for row in dead], selection=OutboxFilter(), **WHO)) == len(dead)
    pruned = await prune(pool, "outbox", FAR, **WHO)
    kept = await loader.fetchval("SELECT count(*) FROM outbox_events WHERE published_at < 'infinity'")
    assert (kept, pruned.deleted > 0) == (0, True)


@many
@given(rows=st.lists(st.tuples(MESSAGES, LEASES, ENDS), max_size=6))
async def test_a_message_of_any_columns_is_handled_and_keeps_no_other_waiting(
    pool: asyncpg.Pool, database: Database, loader: asyncpg.Connection, rows: list[tuple[Any, Any, str]]
) -> None:
    await loader.execute("TRUNCATE inbox_messages, handled_messages, operator_actions")
    strange = [message({**row, **lease}, end) for row, lease, end in rows]
    for one in strange:
        await load(loader, "inbox_messages", one)
    await add_message(pool)
    ids = [one["message_id"] for one in strange]

    await read_everything(pool, ids)
    async with opened(database) as workers:
        inbox = PostgresInboxAdapter(pool=workers, worker="w")
        await inbox.take_over("0000000a")
        for at in ("", *ids):
            await inbox.overdue(
                stream="", consumer="", older_than_seconds=0, lease_seconds=1, after=at, limit=9
            )
        entries = [
            InboxMessage(
                message_id=one,
                subject="a.event.b.v1",
                consumer="d",
                stream="S",
                stream_seq=3,
                content_hash=b"\1",
                reply="r",
            )
            for one in (str(uuid.uuid4()), *ids)
        ]
        receipts = await inbox.insert_batch(entries, lease_seconds=1)
        leases = [receipt for receipt in receipts if isinstance(receipt, Lease)]
        assert leases
        await inbox.extend(leases, lease_seconds=1)
        await inbox.begin_dead_letter(leases[-1], reason="REJECTED", detail="x")
        assert len(await inbox.mark_processed_batch(leases)) == len(leases)
    await read_everything(pool, ids)

    await close(pool, [uuid.UUID(one) for one in ids], **WHO)
    await prune(pool, "inbox", FAR, **WHO)
    assert not await loader.fetchval("SELECT count(*) FROM inbox_messages WHERE processed_at < 'infinity'")

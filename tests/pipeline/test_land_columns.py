"""The columns of silver are those that a plain reading of each message gives, for any headers and bodies."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from sea_mq_worker.pipeline.jobs.land.event_columns import to_bronze, to_silver
from sea_mq_worker.pipeline.sources.jetstream.columns import SCHEMA

UUIDS = st.uuids().flatmap(lambda each: st.sampled_from([str(each), str(each).upper()]))
ODD_TIMES = """\
yesterday|2026-02-30T00:00:00Z|2026-01-02T03:04:60Z|2026-01-02|2026-01-02T03:04:05|2026-01-02 03:04Z|
2026-01-02t03:04:05.123456789z|2026-01-02T03:04:05.5-0530|0000-01-01T00:00:00Z|0001-01-01T00:00:00+01:00|
9999-12-31T23:59:59-00:01""".replace("\n", "").split("|")
EDGES = [
    *(("ce-time", f"{day}T00:00:00Z") for day in ("0000-01-01", "0001-01-01")),
    ("ce-time", "9999-12-31T23:59:59-00:01"),
    *(("ce-eventversion", str(2**31 - offset)) for offset in (0, 1)),
    ("ce-subject", "a%zz%41"),
]
TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda each: each.isoformat().replace("+00:00", "Z"))
VALUES = st.one_of(
    UUIDS,
    TIMES,
    st.sampled_from([*ODD_TIMES, "", "a", "ü", "%C3%BC", "50%", "%zz%41", "1+1", "%2B%20", "%"]),
    st.integers(-(2**40), 2**40).map(str),
    st.sampled_from(["1.5", "2147483647", "2147483648"]),
)
NAMES = """\
Nats-Msg-Id nats-msg-id ce-id CE-Id ce-type ce-eventversion ce-source Ce-Subject ce-time CE-TIME
ce-correlationid ce-causationid ce-partitionkey other ce-\u0131d"""
SUBJECTS = """\
sea.event.order.paid.v1 sea.event.a.v2.v3 sea.event..v1 sea.event.x.v0 Sea.event.x.v1 other
s-1_a.event.x.v9999999999 s.event.ü.v12 sea.event.x.v1x"""
MESSAGES = st.tuples(
    st.sampled_from(SUBJECTS.split()),
    st.lists(st.tuples(st.sampled_from(NAMES.split()), VALUES), max_size=8),
    st.sampled_from([b"", b"{}", "ü".encode(), b"\xff", b"\xc3"]),
    st.timedeltas(timedelta(), timedelta(days=3)),
)


@given(st.lists(MESSAGES, max_size=6), st.integers(0, 3))
@example([("x", [header], b"", timedelta()) for header in EDGES], 0)
def test_each_column_is_as_read_from_one_message(messages: list[Any], skipped: int) -> None:
    rows = [
        {
            "stream": "S", "created": "c", "seq": seq, "subject": subject,
            "time": datetime(2026, 1, 1, tzinfo=UTC) + after,
            "headers": [{"key": key, "value": value} for key, value in headers], "data": data,
        }
        for seq, (subject, headers, data, after) in enumerate(messages, start=1)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).slice(skipped)

    bronze = to_bronze(batch, "first")
    silver = to_silver(bronze).to_pylist()

    assert [
        {**row, "created": "c"} for row in bronze.drop_columns(["incarnation", "date"]).to_pylist()
    ] == rows[skipped:]
    assert silver == [read(row) for row in rows[skipped:]]


def read(message: dict[str, Any]) -> dict[str, Any]:
    """Read the columns of one message without Arrow."""
    headers: dict[str, str] = {}
    for pair in message["headers"]:
        name = re.sub("[A-Z]", lambda letter: letter[0].lower(), pair["key"])
        headers.setdefault(name, pair["value"])

    def attribute(name: str) -> str | None:
        value = headers.get(f"ce-{name}")
        return value if value is None or re.search("%(?![0-9A-Fa-f]{2})", value) else unquote(value)

    parts = re.match(r"([a-z0-9][a-z0-9_-]*)\.event\.(.+)\.v([1-9][0-9]{0,9})$", message["subject"])
    context, kind, version = parts.groups() if parts else (None, None, None)
    message_id = headers.get("nats-msg-id") or attribute("id")
    if message_id and re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", message_id):
        message_id = message_id.lower()
    moment = message["time"].isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "message_id": message_id or f"S/{message['seq']}@{moment}",
        "event_type": kind or attribute("type"),
        "event_version": number(version) or number(attribute("eventversion")),
        "subject": message["subject"],
        "source": attribute("source"),
        "aggregate": attribute("subject"),
        "occurred_at": instant(attribute("time")),
        "published_at": message["time"],
        "correlation_id": attribute("correlationid"),
        "causation_id": attribute("causationid"),
        "partition_key": attribute("partitionkey"),
        "payload": text(message["data"]),
        "bytes": len(message["data"]),
        "stream": "S",
        "incarnation": "first",
        "seq": message["seq"],
        "context": context,
        "date": message["time"].date(),
    }  # fmt: skip


def number(value: str | None) -> int | None:
    if value is None or not re.fullmatch("-?[0-9]{1,10}", value) or abs(int(value)) >= 2**31:
        return None
    return int(value)


def instant(value: str | None) -> datetime | None:
    shape = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)"
    if value is None or not re.fullmatch(shape, value):
        return None
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None

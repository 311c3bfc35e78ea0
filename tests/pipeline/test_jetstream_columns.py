"""The columns of a row are those that a plain reading of its message gives, for any headers and subjects."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sea_mq_worker.pipeline.jetstream.columns import SCHEMA, Frame, to_batch
from sea_mq_worker.pipeline.lake import BRONZE

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
    st.sampled_from([*ODD_TIMES, "", "a", "ü", "%C3%BC", "50%", "%zz%41", "1+1", "%2B%20", "%", "%FF"]),
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
    st.timedeltas(timedelta(), timedelta(days=3)),
)


def test_the_source_has_the_columns_of_bronze_in_their_types() -> None:
    assert set(SCHEMA.names) - {"created"} == set(BRONZE.columns) - {"incarnation", "date"}


@given(st.lists(MESSAGES, max_size=6))
@example([("x", [header], timedelta()) for header in EDGES])
@example([("x", [("ce-id", "a"), ("Nats-Msg-Id", "1"), ("nats-msg-id", "2"), ("ce-ID", "b")], timedelta())])
def test_each_column_is_as_read_from_one_message(messages: list[Any]) -> None:
    rows = [
        (subject, headers, datetime(2026, 1, 1, tzinfo=UTC) + after) for subject, headers, after in messages
    ]
    batch = to_batch("S", "then", [frame(*row, seq=seq) for seq, row in enumerate(rows, 1)])
    assert batch.to_pylist() == [read(*row, seq=seq) for seq, row in enumerate(rows, 1)]


def test_ids_that_are_no_utf8_stay_distinct() -> None:
    heads = [b"Nats-Msg-Id: \xff\r\n", b"Nats-Msg-Id: \xfe\r\n", b"ce-id: %FF\r\n", b"ce-id: %C3\r\n"]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    batch = to_batch("S", "then", [frame("x", [], now, seq=seq, own=own) for seq, own in enumerate(heads)])
    assert batch.column("message_id").to_pylist() == [r"\xff", r"\xfe", r"\xff", r"\xc3"]
    assert batch.column("headers").to_pylist()[0] == [{"key": "Nats-Msg-Id", "value": r"\xff"}]


@pytest.mark.parametrize(
    ("text", "microseconds"), [("22Z", 0), ("22.1Z", 100_000), ("22.123456999Z", 123_456)]
)
def test_a_time_of_storage_is_cut_to_microseconds(text: str, microseconds: int) -> None:
    [row] = to_batch("S", "then", [frame("s.ö", [], f"2026-11-21T07:51:{text}")]).to_pylist()
    assert (row["subject"], row["time"]) == ("s.ö", datetime(2026, 11, 21, 7, 51, 22, microseconds, UTC))


def frame(
    subject: str,
    headers: list[tuple[str, str]],
    time: datetime | str,
    *,
    seq: int = 1,
    own: bytes = b"",
) -> Frame:
    """Return a message as a direct get answers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers).encode() + own
    moment = time if isinstance(time, str) else time.isoformat().replace("+00:00", "Z")
    added = f"Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\nNats-Time-Stamp: {moment}"
    return b"NATS/1.0\r\n" + lines + added.encode() + b"\r\nNats-Num-Pending: 0\r\n\r\n", b"\xff", b"", b""


def read(subject: str, pairs: list[tuple[str, str]], time: datetime, *, seq: int) -> dict[str, Any]:
    """Read the columns of one message without Arrow."""
    headers = {re.sub("[A-Z]", lambda letter: letter[0].lower(), key): value for key, value in pairs}

    def attribute(name: str) -> str | None:
        value = headers.get(f"ce-{name}")
        if value is None or re.search("%(?![0-9A-Fa-f]{2})", value):
            return value
        return unquote(value, errors="backslashreplace")

    parts = re.match(r"([a-z0-9][a-z0-9_-]*)\.event\.(.+)\.v([1-9][0-9]{0,9})$", subject)
    context, kind, version = parts.groups() if parts else (None, None, None)
    message_id = headers.get("nats-msg-id") or attribute("id")
    if message_id and re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", message_id):
        message_id = message_id.lower()
    moment = time.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "stream": "S",
        "created": "then",
        "seq": seq,
        "subject": subject,
        "time": time,
        "headers": [{"key": key, "value": value} for key, value in pairs],
        "data": b"\xff",
        "message_id": message_id or f"S/{seq}@{moment}",
        "event_type": kind or attribute("type"),
        "event_version": number(version) or number(attribute("eventversion")),
        "source": attribute("source"),
        "aggregate": attribute("subject"),
        "occurred_at": instant(attribute("time")),
        "correlation_id": attribute("correlationid"),
        "causation_id": attribute("causationid"),
        "partition_key": attribute("partitionkey"),
        "context": context,
    }


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

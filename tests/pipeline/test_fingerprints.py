"""Fingerprints of rows equal those of the messages that the worker publishes for them."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.inbox.message import content_hash, storage_id
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import EventFingerprints, MessageFingerprints
from sea_mq_worker.pipeline.sources.jetstream.columns import SCHEMA
from tests.support.builders import claimed_event, inbound_message

STORED_AT = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
IDS = st.uuids().map(str)
ODD_TEXTS = ("50%", 'a"b', "o 1", "o\n", "ö", "")
TEXTS = st.sampled_from(("order", *ODD_TEXTS)) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
)
HEADERS = st.dictionaries(st.sampled_from(("X-Own", "x-tenant", "ce-own", "ce-id", "traceparent")), TEXTS)
ROWS = st.fixed_dictionaries(
    {
        "id": IDS,
        "seq": st.integers(1, 2**62),
        "aggregate_type": TEXTS,
        "aggregate_id": TEXTS,
        "event_type": st.sampled_from(("order.paid", "ordér", "order paid", "", "a..b")),
        "event_version": st.integers(0, 3),
        "payload": TEXTS.map(json.dumps),
        "occurred_at": st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
            lambda moment: moment.replace(microsecond=moment.microsecond * (moment.second % 2))
        ),
        "correlation_id": st.none() | IDS,
        "causation_id": st.none() | IDS,
        "partition_key": st.none() | TEXTS,
        "headers": st.none() | HEADERS.map(json.dumps),
        "metadata": st.none() | st.just('{"traceparent": "00-%s-%s-01"}' % ("1" * 32, "2" * 16)),  # noqa: UP031
    }
)
BASE: dict[str, Any] = {
    "id": "00000000-0000-4000-8000-000000000001",
    "aggregate_type": "order",
    "aggregate_id": "o-1",
    "event_type": "order.paid",
    "event_version": 1,
    "payload": "{}",
    "occurred_at": STORED_AT.replace(microsecond=0),
    **dict.fromkeys(("correlation_id", "causation_id", "partition_key", "headers", "metadata")),
}
ODD_ROWS = [
    BASE | {"seq": seq, column: text}
    for seq, (column, text) in enumerate(
        product(("aggregate_type", "aggregate_id", "event_type", "partition_key"), ODD_TEXTS), start=1
    )
]
PASSED = ("ordering_key", "created_at", "published_at", "stream", "stream_seq", "state")
KINDS = dict.fromkeys(("occurred_at", "created_at", "published_at"), pa.timestamp("us", tz="UTC")) | {
    "seq": pa.int64(), "event_version": pa.int32(), "stream_seq": pa.int64()
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@example([BASE | {"seq": 0, "occurred_at": STORED_AT}, *ODD_ROWS], random.Random(7))
@given(st.lists(ROWS, max_size=20, unique_by=lambda row: row["seq"]), st.randoms(use_true_random=False))
def test_a_row_has_the_fingerprints_of_the_message_that_the_worker_sends(
    rows: list[dict[str, Any]], chance: random.Random
) -> None:
    sent = {row["seq"]: message for row in rows if (message := _sent(row))}
    of_messages = {row["seq"]: row for row in _of_messages(sent, chance)}
    named = ["seq", *BASE, *PASSED]
    arrays = [pa.array([row.get(name) for row in rows], KINDS.get(name, pa.string())) for name in named]
    batches = EventFingerprints("sea", "/sea", in_table=True)(
        iter([pa.RecordBatch.from_arrays(arrays, names=named)])
    )
    found = [row for batch in batches for row in batch.to_pylist()]

    assert sorted(row["seq"] for row in found) == sorted(row["seq"] for row in rows)
    for row in found:
        message = of_messages.get(row["seq"], {})
        for name in ("content", "header_hash"):
            assert row[name] == message.get(name)


def _sent(row: dict[str, Any]) -> OutboundMessage | None:
    event = claimed_event(**row | {"payload": row["payload"].encode()})
    try:
        return outbound_message(event, context="sea", source="/other")
    except InvalidEventError:
        return None


def _of_messages(sent: dict[int, OutboundMessage], chance: random.Random) -> list[dict[str, Any]]:
    """Fingerprint messages as the broker stores them, with the headers of a broker, in any order."""
    stored = []
    for seq, message in sent.items():
        headers = [*message.headers.items(), ("traceparent", "00-1-1"), ("Nats-Expected-Stream", "S")]
        chance.shuffle(headers)
        stored.append(stored_message(seq, message.subject, headers, message.payload))
    return fingerprints(stored)


def stored_message(seq: int, subject: str, headers: Sequence[tuple[str, str]], data: bytes) -> dict[str, Any]:
    pairs = [{"key": key, "value": value} for key, value in headers]
    return {"seq": seq, "time": STORED_AT, "subject": subject, "headers": pairs, "data": data}


def fingerprints(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(messages, schema=SCHEMA)
    return [row for each in MessageFingerprints("S")(iter([batch])) for row in each.to_pylist()]


def test_a_message_has_the_id_and_the_content_under_which_the_inbox_records_it() -> None:
    own, other = "00000000-0000-4000-8000-0000000000AA", "00000000-0000-4000-8000-0000000000bb"
    headers = [
        [("Nats-Msg-Id", own), ("ce-id", other)],
        [("Nats-Msg-Id", ""), ("CE-ID", other)],
        [("ce-id", own), ("ce-id", other)],
        [("ce-id", "order 1")],
        [],
        [("Nats-Marker-Reason", "MaxAge")],
        [("Nats-Schedule", "@at 2030-01-01T00:00:00Z"), ("Nats-Msg-Id", own)],
    ]
    found = fingerprints(
        [stored_message(seq, "a.b", pairs, b"{}") for seq, pairs in enumerate(headers, start=1)]
    )
    unnamed = [
        storage_id(inbound_message(stream="S", seq=seq, stored_at=STORED_AT, headers={})) for seq in (4, 5)
    ]
    assert [row["id"] for row in found] == [own.lower(), other, other, *unnamed]
    assert {row["content"] for row in found} == {content_hash(inbound_message(subject="a.b", payload=b"{}"))}

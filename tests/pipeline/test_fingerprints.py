"""Fingerprints of rows equal those of the messages that the worker publishes for them."""

import json
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.inbox.message import content_hash, storage_id
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.pipeline.fingerprints import OF_EVENT, of_events, of_messages
from tests.support.builders import claimed_event, inbound_message

STORED_AT = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
ODD_TEXTS = ("50%", 'a"b', "o 1", "o\n", "ö", "", "a..b", "a.*")
EVENTS = (
    "id BINARY, seq BIGINT, aggregate_type STRING, aggregate_id STRING, event_type STRING,"
    " event_version INT, payload STRING, occurred_at TIMESTAMP, correlation_id STRING,"
    " causation_id STRING, partition_key STRING, headers STRING"
)
MESSAGES = (
    "stream STRING, seq BIGINT, subject STRING, time TIMESTAMP,"
    " headers ARRAY<STRUCT<key: STRING, value: STRING>>, data BINARY, message_id STRING"
)


def keep(rows: DataFrame) -> DataFrame:
    return rows


def rows_of_events() -> list[dict[str, Any]]:
    """Each column with odd text, and columns at random."""
    chance = random.Random(7)
    base = {
        "aggregate_type": "order", "aggregate_id": "o-1", "event_type": "order.paid", "event_version": 1,
        "payload": '{"é": 1}', "occurred_at": STORED_AT,
    } | dict.fromkeys(("correlation_id", "causation_id", "partition_key", "headers"))  # fmt: skip
    odd = product(("aggregate_type", "aggregate_id", "event_type", "partition_key", "payload"), ODD_TEXTS)
    rows = [base | {column: text} for column, text in odd]
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(1500, 2, 28, 1, 2, 3, 40, tzinfo=UTC)]
    moments += [datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), STORED_AT.replace(microsecond=0)]
    rows += [base | {"occurred_at": moment} for moment in [*moments, None]]
    rows += [base | {"event_version": version} for version in (-1, 0, 2**31 - 1)]
    rows += [
        base
        | {
            "correlation_id": chance.choice((None, str(uuid.uuid4()))),
            "causation_id": chance.choice((None, str(uuid.uuid4()))),
            "partition_key": chance.choice((None, "k-1", *ODD_TEXTS)),
            "headers": json.dumps({name: chance.choice(("x", *ODD_TEXTS))}),
        }
        for name in ("X-Own", "x-tenant", "ce-own", "ce-id", "traceparent", "ce-dataschema", "Content-Type")
        for _ in range(4)
    ]
    return [row | {"id": uuid.uuid4().bytes, "seq": seq} for seq, row in enumerate(rows, 1)]


def test_a_row_has_the_fingerprints_of_the_message_that_the_worker_sends(spark: SparkSession) -> None:
    chance, rows, stored = random.Random(7), rows_of_events(), []
    for row in rows:
        if sent := _sent(row):
            headers = [*sent.headers.items(), ("traceparent", "00-1-1"), ("Nats-Batch-Id", "b")]
            headers += [("Nats-Expected-Stream", "S")] * chance.randrange(2)
            chance.shuffle(headers)
            stored.append(stored_message(row["seq"], sent.subject, headers, sent.payload))
    given = [tuple(row[name] for name in OF_EVENT) for row in rows]
    frame = of_events(spark.createDataFrame(given, EVENTS), ["seq"], keep, context="sea", source="/sea")
    found = {row["seq"]: row for row in frame.collect()}
    of_stream = {row["seq"]: row for row in fingerprints(spark, stored).collect()}

    assert 30 < len(of_stream) < len(found) == len(rows)
    for row in rows:
        there = of_stream.get(row["seq"])
        assert found[row["seq"]]["sent"] == (there and there["sent"]), row
        assert there is None or there["id"] == row["id"]


def _sent(row: dict[str, Any]) -> OutboundMessage | None:
    given = {"id": str(uuid.UUID(bytes=row["id"])), "payload": row["payload"].encode()}
    try:
        return outbound_message(claimed_event(**row | given), context="sea", source="/other")
    except InvalidEventError:
        return None


def stored_message(
    seq: int, subject: str, headers: Sequence[tuple[str, str]], data: bytes
) -> tuple[Any, ...]:
    lowered = [(name.lower(), value) for name, value in headers if value]
    ids = [dict(lowered).get(name) for name in ("nats-msg-id", "ce-id")]
    return "S", seq, subject, STORED_AT, [*headers], data, next(filter(None, ids), None)


def fingerprints(spark: SparkSession, messages: list[tuple[Any, ...]]) -> DataFrame:
    return of_messages(spark.createDataFrame(messages, MESSAGES), ["seq"], keep)


def test_a_message_has_the_id_and_the_content_under_which_the_inbox_records_it(spark: SparkSession) -> None:
    own, other = "00000000-0000-4000-8000-0000000000AA", "00000000-0000-4000-8000-0000000000bb"
    structured = json.dumps({"id": other, "source": "/s", "specversion": "1.0", "type": "t"}).encode()
    headers = [
        [("Nats-Msg-Id", own), ("ce-id", other)],
        [("Nats-Msg-Id", ""), ("CE-ID", other)],
        [("ce-id", own), ("ce-id", other)],
        [("Nats-Msg-Id", own)],
        [("ce-id", "order 1"), ("ce-type", "t")],
        [],
        [("Nats-Marker-Reason", "MaxAge")],
        [("Nats-Schedule", "@at 2030-01-01T00:00:00Z"), ("Nats-Msg-Id", own)],
        [("Nats-Incr", "+1")],
    ]
    messages = [stored_message(seq, "a.b", pairs, b"") for seq, pairs in enumerate(headers, start=1)]
    messages.append(stored_message(20, "a.b", [("Nats-Msg-Id", own)], structured))
    found = fingerprints(spark, messages).orderBy("seq").collect()
    unnamed = [
        storage_id(inbound_message(stream="S", seq=seq, stored_at=STORED_AT, headers={})) for seq in (5, 6)
    ]
    ids = [str(uuid.UUID(bytes=bytes(row["id"]))) for row in found]
    assert ids == [own.lower(), other, other, own.lower(), *unnamed, own.lower()]
    assert {bytes(row["content"]) for row in found[:-1]} == {
        content_hash(inbound_message(subject="a.b", payload=b""))[:16]
    }

"""Verdicts on small frames: what is said of an id, and why."""

import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.domain.headers import outbound_message
from sea_mq_worker.domain.inbound import storage_id
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import (
    EVENT_DDL,
    event_fingerprints,
    message_fingerprints,
    named,
)
from sea_mq_worker.pipeline.jobs.reconcile.inbox import ConsumerFacts, covered, covered_copies, judge_inbox
from sea_mq_worker.pipeline.jobs.reconcile.order import outside_longest_run
from sea_mq_worker.pipeline.jobs.reconcile.outbox import (
    Limits,
    StreamEvidence,
    copies_by_id,
    judge_stream,
    matched,
)
from sea_mq_worker.pipeline.jobs.reconcile.replays import AuditedReplay
from tests.support.builders import claimed_event, inbound_message

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MESSAGES = (
    "id string, position bigint, seq bigint, time timestamp, subject string, content binary,"
    " header_hash binary"
)
INBOX = (
    "message_id string, processed_at timestamp, dead_lettered_at timestamp, locked_until timestamp, "
    "content_hash binary, stream_seq bigint"
)
SUBJECT = "sea.event.order.paid.v1"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


FACTS = StreamEvidence(
    stream="SEA_EVENTS",
    created=ago(10_000),
    first_seq=100,
    last_seq=1000,
    first_time=ago(5000),
    asked_at=NOW,
    drops=True,
)
CONSUMER = ConsumerFacts(
    stream="SEA_EVENTS",
    durable="sea__own",
    filters=("sea.event.order.>",),
    start_seq=1,
    start_time=None,
    created=ago(8000),
    settled=500,
    first_position=100,
    read_at=NOW,
)


def event(name: str, seq: int = 1, **given: Any) -> dict[str, Any]:
    """Make a row that was published at 200, without trouble."""
    return {
        "id": name,
        "seq": seq,
        "event_type": "order.paid",
        "occurred_at": ago(1001),
        "created_at": ago(1001),
        "published_at": ago(1000),
        "stream": "SEA_EVENTS",
        "stream_seq": 200,
        "state": "PUBLISHED",
        "sent_as": SUBJECT,
        "content": b"c",
        "header_hash": b"m",
    } | given


def message(name: str, position: int = 200, **given: Any) -> dict[str, Any]:
    return {
        "id": name,
        "position": position,
        "seq": position,
        "time": ago(1000),
        "subject": SUBJECT,
        "content": b"c",
        "header_hash": b"m",
    } | given


def frame(spark: SparkSession, rows: Sequence[dict[str, Any]], ddl: str) -> DataFrame:
    names = [part.strip().split()[0] for part in ddl.split(",")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], ddl)


def findings(judged: DataFrame) -> dict[str, list[str]]:
    return {row.id: row.findings for row in judged.select("id", "findings").collect()}


def stream_findings(
    spark: SparkSession,
    events: Sequence[dict[str, Any]],
    messages: Sequence[dict[str, Any]],
    limits: Limits | None = None,
    facts: StreamEvidence = FACTS,
    **more: Any,
) -> dict[str, list[str]]:
    joined = matched(frame(spark, events, EVENT_DDL), frame(spark, messages, MESSAGES))
    return findings(judge_stream(joined, facts, limits or Limits(), **more))


def test_each_row_and_each_message_gets_what_holds_of_it(spark: SparkSession) -> None:
    events = [
        event("fine"),
        event("lost"),
        event("above-the-last", stream_seq=1001),
        event("since-then", published_at=NOW, stream_seq=1001),
        event("in-grace", published_at=ago(59)),
        event("dropped", stream_seq=99),
        event("of-an-older-stream", stream_seq=99, published_at=ago(20_000)),
        event("elsewhere", stream="OTHER"),
        event("open", state="PENDING", published_at=None, stream=None, stream_seq=None),
        event("held", state="CLAIMED", published_at=None, stream=None, stream_seq=None),
        event("given-up", state="DEAD", published_at=None, stream=None, stream_seq=None, sent_as=None),
        event("other-body"),
        event("other-headers"),
        event("slow", occurred_at=ago(1100)),
        event("slow-and-altered", occurred_at=ago(1100)),
    ]
    copies = [
        message("fine"),
        message("other-body", content=b"x"),
        message("other-headers", header_hash=b"x"),
        message("slow"),
        message("slow-and-altered", header_hash=b"x"),
        message("nobody's"),
        message("pruned", time=ago(3000)),
    ]
    copied_events, more_copies, replays, copied = _copied()
    moved_events, moved_copies, moved = _moved()
    found = stream_findings(
        spark,
        [*events, *copied_events, *moved_events],
        [*copies, *more_copies, *moved_copies],
        Limits(late_seconds=60),
        replays=replays,
        pruned_before=ago(2000),
    )

    assert found == {
        "fine": ["delivered"],
        "lost": ["missing-in-stream"],
        "above-the-last": ["missing-in-stream"],
        "since-then": ["pending"],
        "in-grace": ["pending"],
        "dropped": ["expired"],
        "of-an-older-stream": ["missing-in-stream"],
        "elsewhere": ["expired"],
        "open": ["pending"],
        "held": ["pending"],
        "given-up": ["dead"],
        "other-body": ["altered"],
        "other-headers": ["altered"],
        "slow": ["late"],
        "slow-and-altered": ["altered", "late"],
        "nobody's": ["unexpected"],
        "pruned": ["pruned"],
        **copied,
        **moved,
    }


Rows = list[dict[str, Any]]


def _copied() -> tuple[Rows, Rows, list[AuditedReplay], dict[str, list[str]]]:
    """Make events with further copies: a replay explains one that it selects and that comes after it."""
    explained = {
        "by-id": True,
        "by-key": True,
        "by-correlation": True,
        "unexplained": False,
        "one-replay-two-copies": False,
        "replayed-before-the-first": False,
        "of-another-type": False,
        "created-later": False,
    }
    events = [event(name, ordering_key=f"k-{name}", correlation_id=f"c-{name}") for name in explained]
    two = ((200, ago(980)), (300, ago(500)))
    copies = [message(name, position, time=at) for name in explained for position, at in two]
    copies.append(message("one-replay-two-copies", 400, time=ago(100)))
    given: list[tuple[float, dict[str, Any]]] = [
        (600, {"ids": ["by-id", "one-replay-two-copies"], "states": ["PUBLISHED"]}),
        (600, {"ordering_key": "k-by-key", "states": ["PUBLISHED"], "since": ago(1001).isoformat()}),
        (600, {"correlation_id": "c-by-correlation"}),
        (995, {"ids": ["replayed-before-the-first"]}),
        (600, {"ordering_keys": ["k-of-another-type"], "event_types": ["order.made"]}),
        (600, {"ordering_keys": ["k-created-later"], "until": ago(1001).isoformat()}),
    ]
    replays = [AuditedReplay(at=ago(seconds), selection=selection) for seconds, selection in given]
    verdicts = {name: ["delivered" if known else "duplicated"] for name, known in explained.items()}
    return events, copies, replays, verdicts


def _moved() -> tuple[Rows, Rows, dict[str, list[str]]]:
    """Make keys whose events are stored in another order than they were inserted in, the alphabet's."""
    stored = {
        "order": "abcdefgh",
        "late": "acdefgbh",
        "early": "agbcdefh",
        "swap": "abdcefgh",
        "two": "bcdahefg",
    }
    wrong = {"late-b", "early-g", "swap-c", "two-a", "two-h"}
    letters = [
        (key, letter, 300 + position)
        for key, order in stored.items()
        for position, letter in enumerate(order)
    ]
    events = [event(f"{key}-{letter}", ord(letter), ordering_key=key) for key, letter, _ in letters]
    copies = [message(f"{key}-{letter}", position) for key, letter, position in letters]
    names = [f"{key}-{letter}" for key, letter, _ in letters]
    return events, copies, {name: ["out-of-order" if name in wrong else "delivered"] for name in names}


def test_a_full_stream_that_refuses_drops_only_what_is_old_and_a_part_tells_nothing_of_strangers(
    spark: SparkSession,
) -> None:
    facts = replace(FACTS, first_seq=1001, first_time=None, max_age_seconds=2000, drops=False)
    events = [
        event("purged"),
        event("old", published_at=ago(2001)),
        event("seen-by-its-replay-alone", 1, ordering_key="k"),
        event("later", 2, ordering_key="k"),
    ]
    copies = [
        message("stranger"),
        message("seen-by-its-replay-alone", 300, time=ago(500)),
        message("later", 200, time=ago(900)),
    ]
    replays = [AuditedReplay(at=ago(600), selection={"ids": ["seen-by-its-replay-alone"]})]
    found = stream_findings(spark, events, copies, Limits(since=ago(9000)), facts, replays=replays)
    assert found == {
        "purged": ["missing-in-stream"],
        "old": ["expired"],
        "seen-by-its-replay-alone": ["delivered"],
        "later": ["delivered"],
    }


@given(st.lists(st.integers(0, 1000), unique=True, max_size=60))
def test_the_rest_is_in_order_and_no_fewer_would_do(positions: list[int]) -> None:
    outside = outside_longest_run(positions)
    rest = [position for index, position in enumerate(positions) if index not in outside]
    assert rest == sorted(rest)
    longest = [1] * len(positions)
    for end in range(len(positions)):
        longest[end] += max((longest[i] for i in range(end) if positions[i] < positions[end]), default=0)
    assert len(rest) == max(longest, default=0)


def test_each_covered_message_is_judged_by_the_inbox(spark: SparkSession) -> None:
    done = {"processed_at": ago(990), "content_hash": b"c", "stream_seq": 200}
    rows: dict[str, dict[str, Any]] = {
        "fine": done,
        "slow": done | {"processed_at": ago(100)},
        "another-content": done | {"content_hash": b"x"},
        "by-hand": {"processed_at": ago(990)},
        "dead": {"dead_lettered_at": ago(100)},
        "in-hand": {"locked_until": ago(-60)},
        "settled-without-effect": {"locked_until": ago(60)},
        "waits": {"stream_seq": 501},
    }
    messages = [message(name, 501 if name == "waits" else 200) for name in rows]
    messages += [
        message("lost"),
        message("undelivered", 501),
        message("in-grace", time=ago(30)),
        message("pruned", time=ago(3000)),
        message("before-the-consumer", 50, time=ago(9000)),
        message("not-covered", subject="sea.event.invoice.made.v1"),
    ]
    expected = copies_by_id(covered(frame(spark, messages, MESSAGES), CONSUMER))
    inbox = frame(spark, [row | {"message_id": name} for name, row in rows.items()], INBOX)
    judged = judge_inbox(
        expected.withColumn("before", F.lit(None).cast("string")),
        inbox,
        CONSUMER,
        Limits(late_seconds=60),
        pruned_before=ago(2000),
    )
    assert findings(judged) == {
        "fine": ["delivered"],
        "slow": ["late"],
        "another-content": ["altered"],
        "by-hand": ["delivered"],
        "dead": ["dead"],
        "in-hand": ["pending"],
        "settled-without-effect": ["missing-in-inbox"],
        "waits": ["pending"],
        "lost": ["missing-in-inbox"],
        "undelivered": ["pending"],
        "in-grace": ["pending"],
        "pruned": ["pruned"],
        "before-the-consumer": ["expired"],
    }


def test_an_own_event_keeps_its_verdict_where_it_never_reached_the_stream(spark: SparkSession) -> None:
    events = [event("lost"), event("lost-but-received"), event("open", state="PENDING", published_at=None)]
    events += [event("fine"), event("other", sent_as="sea.event.invoice.made.v1")]
    joined = matched(frame(spark, events, EVENT_DDL), frame(spark, [message("fine")], MESSAGES))
    judged = judge_stream(joined, FACTS, Limits())
    received = {"processed_at": ago(990), "content_hash": b"c", "stream_seq": 200}
    inbox = frame(spark, [{"message_id": "lost-but-received"} | received], INBOX)
    assert findings(judge_inbox(covered_copies(judged, CONSUMER), inbox, CONSUMER, Limits())) == {
        "lost": ["missing-in-stream"],
        "lost-but-received": ["delivered"],
        "open": ["pending"],
        "fine": ["missing-in-inbox"],
    }


def test_a_consumer_covers_what_its_patterns_match_from_its_start_on(spark: SparkSession) -> None:
    subjects = ("a", "a.b", "axb", "a.b.c", "c", "a.$x+")
    rows = frame(
        spark, [message(each, position, subject=each) for position, each in enumerate(subjects)], MESSAGES
    )

    def covers(*patterns: str, **given: Any) -> DataFrame:
        consumer = replace(CONSUMER, filters=patterns, **given)
        return covered(rows, consumer).select(F.lit(str((patterns, given))).alias("asked"), "subject")

    asked = [
        covers(),
        covers("a.*"),
        covers("a.>"),
        covers("a.b", "c"),
        covers("a.$x+"),
        covers(start_seq=4),
        covers(start_time=ago(999)),
    ]
    found = Counter(row.asked for row in functools.reduce(DataFrame.unionByName, asked).collect())
    assert list(found.values()) == [6, 2, 3, 2, 1, 2]


def test_the_worker_s_own_message_has_the_prints_of_its_row(spark: SparkSession) -> None:
    rows = [
        {"id": f"00000000-0000-4000-8000-00000000000{n}", "seq": n, "aggregate_type": "order"}
        | {"aggregate_id": "ö 1%", "event_type": "order.paid", "event_version": 2, "payload": '{"a": "ü"}'}
        | {"occurred_at": ago(n / 7), "partition_key": "k", "headers": '{"X-Own": "ä", "CE-Own": "mine"}'}
        | {"state": "PENDING", "metadata": None, "correlation_id": None, "causation_id": None}
        | {"ordering_key": None, "created_at": None, "published_at": None, "stream": None, "stream_seq": None}
        for n in range(3)
    ]
    kinds = {"seq": "bigint", "stream_seq": "bigint", "event_version": "int"}
    kinds |= dict.fromkeys(("occurred_at", "created_at", "published_at"), "timestamp")
    ddl = ", ".join(f"{name} {kinds.get(name, 'string')}" for name in rows[0])
    printed = event_fingerprints(frame(spark, rows, ddl), context="sea", source="/sea")

    stored = []
    for row in rows:
        of_row = {name: row[name] for name in ("id", "seq", "aggregate_type", "aggregate_id", "event_type")}
        of_row |= {name: row[name] for name in ("event_version", "occurred_at", "partition_key", "headers")}
        sent = outbound_message(
            claimed_event(payload=str(row["payload"]).encode(), **of_row), context="sea", source="/other"
        )
        headers = [*sent.headers.items(), ("traceparent", "00-1-1"), ("Nats-Expected-Stream", "S")]
        random.shuffle(headers)
        stored.append((row["seq"], NOW, sent.subject, headers, sent.payload))
    stored.append((9, ago(0.123457), "nobody", [], b""))
    messages = spark.createDataFrame(
        stored,
        "seq bigint, time timestamp, subject string, headers array<struct<key:string,value:string>>, "
        "data binary",
    )
    fingerprints = {row.seq: row for row in named(message_fingerprints(messages), stream="S").collect()}

    for row in printed.collect():
        other = fingerprints[row.seq]
        assert (row.id, row.sent_as, row.content, row.header_hash) == (
            other.id,
            other.subject,
            other.content,
            other.header_hash,
        )
    nameless = inbound_message(stream="S", seq=9, stored_at=ago(0.123457), headers={})
    assert fingerprints[9].id == storage_id(nameless)

"""Verdicts on small DataFrames: the findings on an ID, and why."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo
from sea_mq_worker.pipeline.jobs.reconcile import _findings, _selected
from sea_mq_worker.pipeline.verdicts import (
    ARCHIVED,
    COPY,
    INCARNATION,
    RECEIVED,
    REPLAYED,
    TABLE,
    Judge,
    Verdict,
    out_of_order,
    outside_longest_run,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWN, OTHER = "SEA_EVENTS", "OTHER"
FACTS = (
    "id BINARY, kind INT, place BIGINT, event STRUCT<state: STRING, occurred_at: TIMESTAMP,"
    " created_at: TIMESTAMP, published_at: TIMESTAMP, seq: BIGINT, stream: STRING, stream_seq: BIGINT,"
    " in_table: BOOLEAN, key: BIGINT, replays: ARRAY<TIMESTAMP>, sent: BINARY>,"
    " received STRUCT<processed_at: TIMESTAMP, dead_lettered_at: TIMESTAMP, locked_until: TIMESTAMP,"
    " content: BINARY, stream_seq: BIGINT>, replayed ARRAY<TIMESTAMP>,"
    " copy STRUCT<time: TIMESTAMP, sent: BINARY, content: BINARY, hops: BIGINT>"
)
Fact = dict[str, Any]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def stream_info(**given: Any) -> StreamInfo:
    """Make a stream of sequences 100 to 1000, which may drop messages when it is full."""
    state = {"messages": 900, "bytes": 0, "first_seq": 100, "last_seq": 1000}
    state |= {"first_ts": ago(5000).isoformat(), "last_ts": ago(1).isoformat()}
    config = given.pop("config", {"max_msgs": 900})
    answer = {"config": config, "created": ago(10_000).isoformat(), "state": state}
    return replace(StreamInfo.from_json(OWN, answer, local_time=0), **given)


def consumer_info(name: str = "own", **config: Any) -> ConsumerInfo:
    """Make a consumer that has settled the messages up to 500."""
    answer = {"name": name, "created": ago(8000).isoformat(), "config": config}
    answer |= {key: {"stream_seq": 500, "consumer_seq": 500} for key in ("delivered", "ack_floor")}
    return ConsumerInfo.from_json(OWN, answer | {"num_pending": 0, "num_ack_pending": 0})


def id_of(name: str) -> bytes:
    return hashlib.md5(name.encode(), usedforsecurity=False).digest()


JUDGE = Judge(
    context="sea",
    consumers=(),
    asked_at=NOW,
    streams={OWN: stream_info(), OTHER: stream_info(name=OTHER)},
    in_part=False,
    grace=timedelta(seconds=60),
    late_seconds=None,
    outbox_removed_before=ago(2000),
    inbox_removed_before=ago(2000),
    erased=[hashlib.sha256(str(uuid.UUID(bytes=id_of("erased"))).encode()).hexdigest()],
)


def event(name: str, seq: int = 1, *, kind: int = TABLE, place: int = 0, **given: Any) -> Fact:
    """Make a row that was published at 200, without trouble."""
    row = {
        "seq": seq,
        "occurred_at": ago(1001),
        "created_at": ago(1001),
        "published_at": ago(1000),
        "stream": OWN,
        "stream_seq": 200,
        "state": "PUBLISHED",
        "sent": b"m",
        "in_table": kind == TABLE,
        "replays": [],
    } | given
    return {"id": name, "kind": kind, "place": place, "event": row}


def message(name: str, position: int = 200, *, stream: int = 0, **given: Any) -> Fact:
    copy = {"time": ago(1000), "sent": b"m", "content": b"c", "hops": 1} | given
    return {"id": name, "kind": COPY + stream, "place": position, "copy": copy}


def received(name: str, **row: Any) -> Fact:
    return {"id": name, "kind": RECEIVED, "place": 0, "received": row}


def replayed(name: str, *seconds: float) -> Fact:
    return {"id": name, "kind": REPLAYED, "place": 0, "replayed": [ago(each) for each in seconds]}


class Judged(NamedTuple):
    """Number of IDs of a hop, and the findings on those that are not delivered."""

    ids: int
    findings: Mapping[str, list[str]]


def judged(findings: Mapping[str, list[str]]) -> Judged:
    return Judged(len(findings), {name: found for name, found in findings.items() if found != ["delivered"]})


def frame(spark: SparkSession, facts: Sequence[Fact]) -> DataFrame:
    columns = ("kind", "place", "event", "received", "replayed", "copy")
    rows = [(id_of(fact["id"]), *(fact.get(name) for name in columns)) for fact in facts]
    return spark.createDataFrame(rows, FACTS)


def judge(spark: SparkSession, facts: Sequence[Fact], how: Judge = JUDGE) -> list[Judged]:
    """Judge the hop from the outbox, then those of the consumers."""
    names = {id_of(fact["id"]): fact["id"] for fact in facts}
    all_judged = how.judge(frame(spark, facts)).cache()
    found = _findings(all_judged, out_of_order(all_judged)).select("id", "hop", "findings").collect()
    all_judged.unpersist()
    assert len({(row["hop"], bytes(row["id"])) for row in found}) == len(found)
    return [
        judged(
            {
                names[bytes(row["id"])]: [each.value for each in Verdict if row["findings"] & each.bit]
                or ["delivered"]
                for row in found
                if row["hop"] == hop
            }
        )
        for hop in range(len(how.hops))
    ]


OPEN = {"published_at": None, "stream": None, "stream_seq": None}
SLOW = {"occurred_at": ago(1100)}
CASES: Mapping[str, tuple[dict[str, Any] | None, dict[str, Any] | None, list[str]]] = {
    "fine": ({}, {}, ["delivered"]),
    "in-table-too": ({}, {}, ["delivered"]),
    "archived-twice": ({"kind": ARCHIVED, "place": -9}, {}, ["delivered"]),
    "lost": ({}, None, ["missing-in-stream"]),
    "above-the-last": ({"stream_seq": 1001}, None, ["missing-in-stream"]),
    "since-then": ({"published_at": NOW, "stream_seq": 1001}, None, ["pending"]),
    "in-grace": ({"published_at": ago(59)}, None, ["pending"]),
    "dropped": ({"stream_seq": 99}, None, ["expired"]),
    "of-an-older-stream": ({"stream_seq": 99, "published_at": ago(20_000)}, None, ["missing-in-stream"]),
    "dropped-by-a-clock-behind": ({"stream_seq": 99, "published_at": ago(10_030)}, None, ["expired"]),
    "dropped-without-a-sequence": ({"stream_seq": None, "published_at": ago(6000)}, None, ["expired"]),
    "lost-without-a-sequence": ({"stream_seq": None}, None, ["missing-in-stream"]),
    "elsewhere": ({"stream": OTHER}, None, ["expired"]),
    "open": ({"state": "PENDING", **OPEN}, None, ["pending"]),
    "held": ({"state": "CLAIMED", **OPEN}, None, ["pending"]),
    "given-up": ({"state": "DEAD", **OPEN}, None, ["dead"]),
    "another-message": ({}, {"sent": b"x"}, ["altered"]),
    "no-message-of-it": ({"sent": None}, {}, ["delivered"]),
    "slow": (SLOW, {}, ["late"]),
    "slow-and-altered": (SLOW, {"sent": b"x"}, ["altered", "late"]),
    "nobody's": (None, {}, ["unexpected"]),
    "pruned": (None, {"time": ago(3000)}, ["pruned"]),
    "pruned-by-a-clock-behind": (None, {"time": ago(1950)}, ["pruned"]),
    "erased": (None, {}, ["pruned"]),
}
"""How row and message differ from those without trouble, if there are any, and the findings."""


def test_each_row_and_each_message_gets_what_holds_of_it(spark: SparkSession) -> None:
    facts = [event(name, **row) for name, (row, _, _) in CASES.items() if row is not None]
    facts += [message(name, **sent) for name, (_, sent, _) in CASES.items() if sent is not None]
    facts.append(message("fine"))  # read from the stream and from the lake
    facts.append(event("in-table-too", kind=ARCHIVED, sent=b"x", published_at=ago(9)))
    facts.append(event("archived-twice", kind=ARCHIVED, content=b"x", place=-8))
    copied, of_copied = _copied()
    moved, of_moved = _moved()
    found = judge(spark, [*facts, *copied, *moved], replace(JUDGE, late_seconds=60))
    wanted = {name: findings for name, (_, _, findings) in CASES.items()}
    assert found[0] == judged(wanted | of_copied | of_moved)


def _copied() -> tuple[list[Fact], dict[str, list[str]]]:
    """Make events with further copies: a replay explains one that comes after it."""
    explained = {
        "by-id": [600],
        "by-a-clock-behind": [983],
        "of-both-streams-with-that-name": [600],
        "unexplained": [],
        "one-replay-two-copies": [600],
        "replayed-before-the-first": [995],
    }
    facts = [replayed(name, *times) for name, times in explained.items() if times]
    facts += [event(name) for name in (*explained, "by-its-filter")]
    facts[-1]["event"]["replays"] = [ago(600)]
    facts += [replayed("pruned-and-replayed", 600)]
    for name in (*explained, "by-its-filter", "pruned-and-replayed"):
        first = 200 - INCARNATION if name.startswith("of-both") else 200
        facts += [message(name, first, time=ago(980)), message(name, 300, time=ago(500))]
    facts.append(message("one-replay-two-copies", 400, time=ago(100)))
    wrong = ("unexplained", "one-replay-two-copies", "replayed-before-the-first")
    verdicts = {
        name: ["duplicated" if name in wrong else "delivered"] for name in (*explained, "by-its-filter")
    }
    return facts, verdicts | {"pruned-and-replayed": ["unexpected"]}


def _moved() -> tuple[list[Fact], dict[str, list[str]]]:
    """Make keys whose events are stored in another order than they were inserted in, the alphabet's."""
    stored = {"order": "abcdefgh", "late": "acdefgbh", "early": "agbcdefh", "swap": "abdcefgh"}
    stored["two"] = "bcdahefg"
    wrong = {"late-b", "early-g", "swap-c", "two-a", "two-h"}
    letters = [
        (key, letter, 300 + position)
        for key, order in stored.items()
        for position, letter in enumerate(order)
    ]
    facts = [event(f"{key}-{letter}", ord(letter), key=hash(key)) for key, letter, _ in letters]
    facts += [message(f"{key}-{letter}", position) for key, letter, position in letters]
    # The first copy of an event has left the stream: the copy of its replay is in order.
    facts += [
        event("replay-1", 1, key=7, occurred_at=ago(510)),
        event("replay-2", 2, key=7, occurred_at=ago(910)),
        replayed("replay-1", 600),
    ]
    facts += [message("replay-1", 300, time=ago(500)), message("replay-2", 200, time=ago(900))]
    names = [f"{key}-{letter}" for key, letter, _ in letters]
    found = {name: ["out-of-order" if name in wrong else "delivered"] for name in names}
    return facts, found | {"replay-1": ["delivered"], "replay-2": ["delivered"]}


def test_a_full_stream_that_refuses_drops_only_what_is_old_and_a_part_tells_nothing_of_strangers(
    spark: SparkSession,
) -> None:
    state = stream_info(first_seq=1001, first_time=None, max_age_seconds=2000, config={}, now=ago(-300))
    facts = [
        event("purged"),
        event("old", published_at=ago(2001)),
        event("old-at-the-end-of-the-read", published_at=ago(1650)),
        message("stranger"),
    ]
    found = judge(spark, facts, replace(JUDGE, streams={OWN: state}, in_part=True, erased=()))
    old = {name: ["expired"] for name in ("old", "old-at-the-end-of-the-read")}
    assert found[0] == judged({"purged": ["missing-in-stream"], **old})


def test_only_what_the_stream_s_retention_may_remove_is_expired(spark: SparkSession) -> None:
    head, middle = {"head"}, {"head", "middle"}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, set()),
        ({"max_msgs": 900, "discard": "old"}, head),
        ({"max_msgs_per_subject": 1, "discard": "new"}, middle),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, set()),
        ({"retention": "workqueue"}, middle),
        ({"allow_msg_ttl": True}, middle),
    ]
    facts = [event("head", stream_seq=99), event("middle"), event("above-the-last", stream_seq=1001)]
    rows = frame(spark, facts).select("event")
    for config, expired in cases:
        answer = {"name": OWN, "config": config, "created": ago(10_000).isoformat()}
        answer["state"] = {
            "messages": 9,
            "bytes": 0,
            "first_seq": 100,
            "last_seq": 1000,
            "first_ts": ago(5000).isoformat(),
        }
        state = StreamInfo.from_json(OWN, answer, local_time=0)
        is_expired = replace(JUDGE, streams={OWN: state})._is_expired()
        flags = [row[0] for row in rows.select(F.coalesce(is_expired, F.lit(False))).collect()]
        names = {fact["id"] for fact, flag in zip(facts, flags, strict=True) if flag}
        assert names == expired, config


@given(st.lists(st.integers(0, 1000), unique=True, max_size=60))
def test_the_rest_is_in_order_and_no_fewer_would_do(positions: list[int]) -> None:
    outside = outside_longest_run(positions)
    rest = [position for index, position in enumerate(positions) if index not in outside]
    assert rest == sorted(rest)
    longest = [1] * len(positions)
    for end in range(len(positions)):
        longest[end] += max((longest[i] for i in range(end) if positions[i] < positions[end]), default=0)
    assert len(rest) == max(longest, default=0)


DONE = {"processed_at": ago(990), "content": b"c", "stream_seq": 200}
RECEIVED_CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any] | None, list[str]]] = {
    "fine": ({}, DONE, ["delivered"]),
    "slow": ({}, DONE | {"processed_at": ago(100)}, ["late"]),
    "another-content": ({}, DONE | {"content": b"x"}, ["altered"]),
    "by-hand": ({}, {"processed_at": ago(990)}, ["delivered"]),
    "dead": ({}, {"dead_lettered_at": ago(100)}, ["dead"]),
    "in-hand": ({}, {"locked_until": ago(-60)}, ["pending"]),
    "settled-without-effect": ({}, {"locked_until": ago(60)}, ["missing-in-inbox"]),
    "waits": ({"position": 501}, {"stream_seq": 501}, ["pending"]),
    "lost": ({}, None, ["missing-in-inbox"]),
    "undelivered": ({"position": 501}, None, ["pending"]),
    "in-grace": ({"time": ago(30)}, None, ["pending"]),
    "pruned": ({"time": ago(3000)}, None, ["pruned"]),
    "pruned-by-a-clock-behind": ({"time": ago(1950)}, None, ["pruned"]),
    "erased": ({}, None, ["pruned"]),
    "before-the-consumer": ({"position": 50, "time": ago(9000)}, None, ["expired"]),
    "before-the-consumer-and-still-there": ({"position": 150, "time": ago(9000)}, None, ["pruned"]),
    "before-the-consumer-and-received": (
        {"position": 50, "time": ago(9000)},
        {"locked_until": ago(60)},
        ["missing-in-inbox"],
    ),
    "second-copy": ({"content": b"x"}, DONE | {"stream_seq": 300, "processed_at": ago(490)}, ["delivered"]),
}
"""How a message differs from one without trouble, its row in the inbox, if there is one, and the findings."""


def test_each_covered_message_is_judged_by_the_inbox(spark: SparkSession) -> None:
    facts = [message(name, **sent) for name, (sent, _, _) in RECEIVED_CASES.items()]
    facts += [received(name, **row) for name, (_, row, _) in RECEIVED_CASES.items() if row]
    facts += [message("not-covered", hops=0), message("second-copy", 300, time=ago(500))]
    facts += [event("lost-before"), message("of-another-stream", stream=1, hops=2)]
    consumers = [consumer_info(), replace(consumer_info("other"), stream=OTHER)]
    found = judge(spark, facts, replace(JUDGE, consumers=consumers, late_seconds=60))
    assert found[0].findings["lost-before"] == ["missing-in-stream"]
    assert found[1] == judged({name: findings for name, (_, _, findings) in RECEIVED_CASES.items()})
    assert found[2] == Judged(1, {"of-another-stream": ["missing-in-inbox"]})
    part = judge(spark, facts, replace(JUDGE, consumers=consumers, in_part=True))
    assert [hop.ids for hop in part] == [1, 0, 1]


def test_a_consumer_covers_what_its_patterns_match_from_its_start_on(spark: SparkSession) -> None:
    subjects = ("a", "a.b", "axb", "a.b.c", "c", "a.$x+")
    given: list[dict[str, Any]] = [{}]
    given += [{"filter_subject": each} for each in ("a.*", "a.>", "a.$x+")]
    given += [{"filter_subjects": ["a.b", "c"]}, {"deliver_policy": "new"}]
    given += [{"deliver_policy": "by_start_sequence", "opt_start_seq": 4}]
    given += [{"deliver_policy": "by_start_time", "opt_start_time": ago(n).isoformat()} for n in (999, 1000)]
    consumers = [consumer_info(f"consumer-{number}", **config) for number, config in enumerate(given)]
    consumers.append(replace(consumer_info("other"), stream=OTHER))
    messages = [(subject, seq, ago(1000)) for seq, subject in enumerate(subjects)]
    rows = spark.createDataFrame(messages, "subject STRING, seq BIGINT, time TIMESTAMP")
    hops = [row[0] for row in rows.select(replace(JUDGE, consumers=consumers).covers(OWN)).collect()]
    counts = [sum(bits >> number & 1 for bits in hops) for number in range(len(consumers))]
    assert counts == [6, 2, 3, 1, 2, 6, 2, 0, 6, 0]


def test_a_replay_applies_to_the_events_that_its_record_selects(spark: SparkSession) -> None:
    selections: Mapping[str, tuple[dict[str, Any], bool]] = {
        "key": ({"ordering_key": "k", "states": ["PUBLISHED"], "since": ago(1001).isoformat()}, True),
        "keys": ({"ordering_keys": ["j", "k"], "event_types": ["order.paid"]}, True),
        "correlation": ({"correlation_id": "c"}, True),
        "everything": ({}, True),
        "another type": ({"ordering_keys": ["k"], "event_types": ["order.made"]}, False),
        "created later": ({"ordering_keys": ["k"], "until": ago(1001).isoformat()}, False),
    }
    row = ("order.paid", "k", "c", ago(1001))
    columns = "event_type STRING, ordering_key STRING, correlation_id STRING, created_at TIMESTAMP"
    rows = spark.createDataFrame([row], columns)
    [times] = rows.select(*(_selected(NOW, chosen) for chosen, _ in selections.values())).collect()
    assert [each is not None for each in times] == [wanted for _, wanted in selections.values()]


@pytest.mark.long
def test_a_key_and_an_id_with_very_many_facts_are_judged(spark: SparkSession) -> None:
    """Events of one key, of which one is late, and as many copies of one ID."""
    count = 300_000
    rows = frame(spark, [event("any"), message("any")]).collect()
    schema = frame(spark, []).schema
    numbers = spark.range(count).withColumnRenamed("id", "n")
    own_id = F.unhex(F.md5(F.col("n").cast("string")))
    row, copy = (spark.createDataFrame([each], schema) for each in rows)
    keyed = F.col("event").withField("seq", F.col("n")).withField("key", F.lit(7))
    place = F.when(F.col("n") == 7, count + 1).otherwise(F.col("n")).cast("bigint")
    facts = (
        numbers.crossJoin(row)
        .withColumns({"id": own_id, "event": keyed})
        .unionByName(numbers.crossJoin(copy).withColumns({"id": own_id, "place": place}))
    )
    facts = facts.unionByName(numbers.crossJoin(copy).withColumn("place", F.col("n")))
    all_judged = replace(JUDGE, erased=()).judge(facts.drop("n")).cache()
    found = _findings(all_judged, out_of_order(all_judged))
    counts = {row["findings"]: row["count"] for row in found.groupBy("findings").count().collect()}
    all_judged.unpersist()
    duplicated = Verdict.UNEXPECTED.bit | Verdict.DUPLICATED.bit
    assert counts == {0: count - 1, Verdict.OUT_OF_ORDER.bit: 1, duplicated: 1}

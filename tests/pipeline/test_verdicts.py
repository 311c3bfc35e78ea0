"""Verdicts on small frames: the findings on an ID, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile import job, sources
from sea_mq_worker.pipeline.jobs.reconcile.audit import Audit, AuditedReplay
from sea_mq_worker.pipeline.jobs.reconcile.exchange import PACKED, pack
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import EVENTS, MESSAGES, RECEIVED
from sea_mq_worker.pipeline.jobs.reconcile.judging import Judge
from sea_mq_worker.pipeline.jobs.reconcile.order import JudgeOrder, outside_longest_run
from sea_mq_worker.pipeline.jobs.reconcile.result import ReconcileRequest, findings_of
from sea_mq_worker.pipeline.lake.erased_ids import id_hash
from sea_mq_worker.settings import Settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SUBJECT = "sea.event.order.paid.v1"
OWN = "SEA_EVENTS"

Rows = list[dict[str, Any]]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def stream_info(**given: Any) -> StreamInfo:
    """Make a stream of sequences 100 to 1000, which may drop messages when it is full."""
    state = {"messages": 900, "bytes": 0, "first_seq": 100, "last_seq": 1000}
    state |= {"first_ts": ago(5000).isoformat(), "last_ts": ago(1).isoformat()}
    answer = {"config": {"max_msgs": 900}, "created": ago(10_000).isoformat(), "state": state}
    return replace(StreamInfo.from_json(OWN, answer, local_time=0), **given)


def consumer_info(name: str = "own", **config: Any) -> ConsumerInfo:
    """Make a consumer that has settled the messages up to 500."""
    answer = {"name": name, "created": ago(8000).isoformat(), "config": config}
    answer |= {key: {"stream_seq": 500, "consumer_seq": 500} for key in ("delivered", "ack_floor")}
    return ConsumerInfo.from_json(OWN, answer | {"num_pending": 0, "num_ack_pending": 0})


CONSUMER = consumer_info(filter_subject="sea.event.order.>")
GONE = Audit(
    outbox_pruned_before=ago(2000),
    archived_before=ago(2500),
    inbox_pruned_before=ago(2000),
    erased=frozenset({id_hash("erased")}),
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
        "content": b"c",
        "header_hash": b"m",
        "in_table": True,
    } | given


def message(name: str, position: int = 200, **given: Any) -> dict[str, Any]:
    return {
        "id": name,
        "stream": OWN,
        "position": position,
        "seq": position,
        "time": ago(1000),
        "subject": SUBJECT,
        "content": b"c",
        "header_hash": b"m",
    } | given


class Judged(NamedTuple):
    """Number of IDs of a hop, and the findings on those that are not delivered."""

    ids: int
    findings: Mapping[str, list[str]]


def judged(findings: Mapping[str, list[str]]) -> Judged:
    return Judged(len(findings), {name: found for name, found in findings.items() if found != ["delivered"]})


def judge(
    events: Rows,
    messages: Rows,
    *,
    state: StreamInfo | None = None,
    wanted: ReconcileRequest | None = None,
    audit: Audit = GONE,
    inbox: Rows | None = None,
    consumers: Sequence[ConsumerInfo] = (),
) -> list[Judged]:
    """Judge the hop from the outbox, then those of the consumers."""
    judging = Judge(
        wanted=wanted or ReconcileRequest(),
        context="sea",
        consumers=consumers,
        received_at=NOW,
        streams={OWN: state or stream_info(), "OTHER": stream_info(name="OTHER")},
        audit=audit,
        buckets=3,
    )
    rows_of = {"outbox": (EVENTS, events), OWN: (MESSAGES, messages), "inbox": (RECEIVED, inbox or [])}
    packed = [
        pack(name, pa.Table.from_pylist(rows, schema), "id", 3) for name, (schema, rows) in rows_of.items()
    ]
    found = pa.Table.from_batches(judging(iter(packed))).to_pylist()
    keyed = [{name: row[name] for name in PACKED.names} for row in found if row["packed"]]
    ordered = JudgeOrder(audit.replays)(iter([pa.RecordBatch.from_pylist(keyed, PACKED)]))
    troubled = [row for row in found if row["id"]] + [row for batch in ordered for row in batch.to_pylist()]
    assert len({(row["hop"], row["id"]) for row in troubled}) == len(troubled)
    return [
        Judged(
            sum(row["rows"] for row in found if row["counted"] == "ids" and row["hop"] == hop),
            {row["id"]: list(findings_of(row["findings"])) for row in troubled if row["hop"] == hop},
        )
        for hop in range(len(judging.hops))
    ]


OPEN = {"published_at": None, "stream": None, "stream_seq": None}
SLOW = {"occurred_at": ago(1100)}
CASES: Mapping[str, tuple[dict[str, Any] | None, dict[str, Any] | None, list[str]]] = {
    "fine": ({}, {}, ["delivered"]),
    "in-table-too": ({}, {}, ["delivered"]),
    "archived-twice": ({"in_table": False}, {}, ["delivered"]),
    "lost": ({}, None, ["missing-in-stream"]),
    "above-the-last": ({"stream_seq": 1001}, None, ["missing-in-stream"]),
    "since-then": ({"published_at": NOW, "stream_seq": 1001}, None, ["pending"]),
    "in-grace": ({"published_at": ago(59)}, None, ["pending"]),
    "dropped": ({"stream_seq": 99}, None, ["expired"]),
    "of-an-older-stream": ({"stream_seq": 99, "published_at": ago(20_000)}, None, ["missing-in-stream"]),
    "dropped-by-a-clock-behind": ({"stream_seq": 99, "published_at": ago(10_030)}, None, ["expired"]),
    "dropped-without-a-sequence": ({"stream_seq": None, "published_at": ago(6000)}, None, ["expired"]),
    "lost-without-a-sequence": ({"stream_seq": None}, None, ["missing-in-stream"]),
    "elsewhere": ({"stream": "OTHER"}, None, ["expired"]),
    "open": ({"state": "PENDING", **OPEN}, None, ["pending"]),
    "held": ({"state": "CLAIMED", **OPEN}, None, ["pending"]),
    "given-up": ({"state": "DEAD", **OPEN}, None, ["dead"]),
    "other-body": ({}, {"content": b"x"}, ["altered"]),
    "other-headers": ({}, {"header_hash": b"x"}, ["altered"]),
    "slow": (SLOW, {}, ["late"]),
    "slow-and-altered": (SLOW, {"header_hash": b"x"}, ["altered", "late"]),
    "nobody's": (None, {}, ["unexpected"]),
    "pruned": (None, {"time": ago(3000)}, ["pruned"]),
    "pruned-by-a-clock-behind": (None, {"time": ago(1950)}, ["pruned"]),
    "erased": (None, {}, ["pruned"]),
}
"""How row and message differ from those without trouble, if there are any, and the findings."""


def test_each_row_and_each_message_gets_what_holds_of_it() -> None:
    events = [event(name, **row) for name, (row, _, _) in CASES.items() if row is not None]
    copies = [message(name, **sent) for name, (_, sent, _) in CASES.items() if sent is not None]
    copies.append(message("fine"))  # read from the stream and from the lake
    events.append(event("in-table-too", content=b"x", in_table=False, published_at=ago(9)))
    events.append(event("archived-twice", content=b"x", in_table=False, published_at=ago(1500)))
    copied_events, more_copies, replays, copied = _copied()
    moved_events, moved_copies, moved = _moved()
    found = judge(
        [*events, *copied_events, *moved_events],
        [*copies, *more_copies, *moved_copies],
        wanted=ReconcileRequest(late_seconds=60),
        audit=replace(GONE, replays=replays),
    )
    wanted = {name: findings for name, (_, _, findings) in CASES.items()}
    assert found[0] == judged(wanted | copied | moved)


def _copied() -> tuple[Rows, Rows, list[AuditedReplay], dict[str, list[str]]]:
    """Make events with further copies: a replay explains one that it selects and that comes after it."""
    explained = {
        "by-id": True,
        "by-key": True,
        "by-correlation": True,
        "by-a-clock-behind": True,
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
        (983, {"ids": ["by-a-clock-behind"]}),
        (995, {"ids": ["replayed-before-the-first"]}),
        (600, {"ordering_keys": ["k-of-another-type"], "event_types": ["order.made"]}),
        (600, {"ordering_keys": ["k-created-later"], "until": ago(1001).isoformat()}),
    ]
    replays = [AuditedReplay(at=ago(seconds), selection=selection) for seconds, selection in given]
    verdicts = {name: ["delivered" if known else "duplicated"] for name, known in explained.items()}
    return events, copies, replays, verdicts


def _moved() -> tuple[Rows, Rows, dict[str, list[str]]]:
    """Make keys whose events are stored in another order than they were inserted in, the alphabet's."""
    stored = {"order": "abcdefgh", "late": "acdefgbh", "early": "agbcdefh", "swap": "abdcefgh"}
    stored["two"] = "bcdahefg"
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


def test_a_full_stream_that_refuses_drops_only_what_is_old_and_a_part_tells_nothing_of_strangers() -> None:
    state = stream_info(first_seq=1001, first_time=None, max_age_seconds=2000, config={}, now=ago(-300))
    events = [
        event("purged"),
        event("old", published_at=ago(2001)),
        event("old-at-the-end-of-the-read", published_at=ago(1650)),
        event("seen-by-its-replay-alone", 1, ordering_key="k"),
        event("later", 2, ordering_key="k"),
    ]
    copies = [
        message("stranger"),
        message("seen-by-its-replay-alone", 300, time=ago(500)),
        message("later", 200, time=ago(900)),
    ]
    replays = [AuditedReplay(at=ago(600), selection={"ids": ["seen-by-its-replay-alone"]})]
    wanted, audit = ReconcileRequest(since=ago(9000)), Audit(replays=replays)
    found = judge(events, copies, state=state, wanted=wanted, audit=audit)
    assert found[0] == judged(
        {
            "purged": ["missing-in-stream"],
            "old": ["expired"],
            "old-at-the-end-of-the-read": ["expired"],
            "seen-by-its-replay-alone": ["delivered"],
            "later": ["delivered"],
        }
    )


@pytest.mark.parametrize(
    ("config", "expired"),
    [
        ({}, set()),
        ({"max_msgs": 900, "discard": "old"}, {"head"}),
        ({"max_msgs_per_subject": 1, "discard": "new"}, {"head", "middle"}),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, set()),
        ({"retention": "workqueue"}, {"head", "middle"}),
        ({"allow_msg_ttl": True}, {"head", "middle"}),
    ],
)
def test_only_what_the_stream_s_retention_may_remove_is_expired(
    config: dict[str, Any], expired: set[str]
) -> None:
    events = [event("head", stream_seq=99), event("middle"), event("above-the-last", stream_seq=1001)]
    found = judge(events, [message("other", 300)], state=stream_info(config=config))
    names = {name for name, findings in found[0].findings.items() if findings == ["expired"]}
    assert names == expired


@given(st.lists(st.integers(0, 1000), unique=True, max_size=60))
def test_the_rest_is_in_order_and_no_fewer_would_do(positions: list[int]) -> None:
    outside = outside_longest_run(positions)
    rest = [position for index, position in enumerate(positions) if index not in outside]
    assert rest == sorted(rest)
    longest = [1] * len(positions)
    for end in range(len(positions)):
        longest[end] += max((longest[i] for i in range(end) if positions[i] < positions[end]), default=0)
    assert len(rest) == max(longest, default=0)


DONE = {"processed_at": ago(990), "content_hash": b"c", "stream_seq": 200}
RECEIVED_CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any] | None, list[str]]] = {
    "fine": ({}, DONE, ["delivered"]),
    "slow": ({}, DONE | {"processed_at": ago(100)}, ["late"]),
    "another-content": ({}, DONE | {"content_hash": b"x"}, ["altered"]),
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


def test_each_covered_message_is_judged_by_the_inbox() -> None:
    messages = [message(name, **sent) for name, (sent, _, _) in RECEIVED_CASES.items()]
    rows = [row | {"id": name} for name, (_, row, _) in RECEIVED_CASES.items() if row]
    found = judge(
        [],
        [
            *messages,
            message("not-covered", subject="sea.event.invoice.made.v1"),
            message("second-copy", 300, time=ago(500)),
        ],
        inbox=rows,
        consumers=[CONSUMER],
        wanted=ReconcileRequest(late_seconds=60),
    )
    assert found[1] == judged({name: findings for name, (_, _, findings) in RECEIVED_CASES.items()})


def test_an_event_that_never_reached_the_stream_has_its_verdict_at_the_first_hop_alone() -> None:
    found = judge([event("lost"), event("fine")], [message("fine")], consumers=[CONSUMER])
    assert found == [Judged(2, {"lost": ["missing-in-stream"]}), Judged(1, {"fine": ["missing-in-inbox"]})]


def test_a_consumer_covers_what_its_patterns_match_from_its_start_on() -> None:
    subjects = ("a", "a.b", "axb", "a.b.c", "c", "a.$x+")
    messages = [message(each, position, subject=each) for position, each in enumerate(subjects)]
    given: list[dict[str, Any]] = [{}]
    given += [{"filter_subject": each} for each in ("a.*", "a.>", "a.$x+")]
    given += [{"filter_subjects": ["a.b", "c"]}, {"deliver_policy": "new"}]
    given += [{"deliver_policy": "by_start_sequence", "opt_start_seq": 4}]
    given += [{"deliver_policy": "by_start_time", "opt_start_time": ago(n).isoformat()} for n in (999, 1000)]
    consumers = [consumer_info(f"consumer-{number}", **config) for number, config in enumerate(given)]
    found = judge([], messages, consumers=consumers)
    assert [hop.ids for hop in found[1:]] == [6, 2, 3, 1, 2, 6, 2, 0, 6]


def test_of_another_stream_only_messages_of_the_period_are_judged() -> None:
    times = {"early": 3000, "in": 2000, "end": 500}
    messages = [message(name, stream="OTHER", time=ago(seconds)) for name, seconds in times.items()]
    consumers = [consumer_info(), replace(consumer_info(), stream="OTHER")]
    wanted = ReconcileRequest(since=ago(2000), until=ago(500))
    found = judge([], [message("own"), *messages], consumers=consumers, wanted=wanted)
    assert [hop.ids for hop in found] == [0, 0, 1]
    for part in (ReconcileRequest(since=ago(2000)), ReconcileRequest(until=ago(500))):
        assert judge([], [message("own")], wanted=part)[0].ids == 0
    assert judge([], messages)[0].ids == 0


def test_an_archived_event_is_unexpected_only_if_the_lake_lacks_it_too() -> None:
    audit = Audit(archived_before=ago(500))
    wanted = [ReconcileRequest(lake=lake) for lake in (None, "lake")]
    found = [judge([], [message("m")], audit=audit, wanted=each)[0].findings for each in wanted]
    assert found == [{"m": ["pruned"]}, {"m": ["unexpected"]}]


def test_notes_name_the_limits_of_the_result() -> None:
    given = {"context": "sea", "consumers": [CONSUMER], "received_at": NOW, "audit": GONE, "buckets": 3}
    behind, current = ({OWN: stream_info(last_seq=last)} for last in (499, 500))
    found = job._notes(Judge(wanted=ReconcileRequest(), streams=behind, **given))
    assert [note.split(" ")[0] for note in found] == ["own", "rows"]
    assert "has settled sequence 500, but SEA_EVENTS ends at 499" in found[0]
    assert f"published before {ago(2500).isoformat()} were archived" in found[1]
    assert job._notes(Judge(wanted=ReconcileRequest(lake="lake"), streams=current, **given)) == []


@pytest.mark.parametrize("change", [{"created": ago(9).isoformat()}, {"last_seq": 999}])
def test_a_stream_that_is_another_after_the_read_is_an_error(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, settings = stream_info(), Settings()
    later = stream_info(last_seq=1001, first_seq=500, now=NOW)
    monkeypatch.setattr(sources, "stream_state", lambda *_: later)
    assert sources._after(settings, before) == replace(before, first_seq=500, now=NOW)
    monkeypatch.setattr(sources, "stream_state", lambda *_: replace(later, **change))
    with pytest.raises(DataLossError, match="recreated or restored during the read"):
        sources._after(settings, before)


def test_results_are_not_added_to_a_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="already exists"):
        job.reconcile(Mock(), Settings(), ReconcileRequest(out=str(tmp_path)), on_progress=print)


def test_landed_messages_precede_the_stream_s_and_give_way_to_a_later_incarnation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created, bronze = nanoseconds(stream_info().created), Mock()
    found = [
        StreamProgress(stream=OWN, created=at, restores=n) for at, n in ((1, 0), (created, 0), (created, 1))
    ]
    monkeypatch.setattr(sources, "incarnations", lambda *_: found)
    bronze.entries.return_value = pa.table({"path": ["file"], "rows": [1]})
    bronze.peek.return_value = pa.table({"seq": [50]})
    parts: Any = [*sources._landed(stream_info(), bronze, None)]
    assert [part.represent.base >> 48 for part in parts] == [0, -1, -2]
    left = [("seq", "<", 100) in call.args[0] for call in bronze.entries.call_args_list]
    assert left == [True, True, False]
    assert ["is_in" in str(part.read.args[-1]) for part in parts] == [False, True, False]

"""Status of the worker: its health summary, and histories in a fixed amount of memory."""

from dataclasses import replace
from typing import Any

import pytest

from sea_mq_worker.admin.activity import ActivityLog, Latencies
from sea_mq_worker.admin.health import Side, Situation, summarize
from sea_mq_worker.admin.records import ConsumerSample, Counters, Level, Sample, WorkerInfo
from sea_mq_worker.admin.status import History, StatusCollector
from tests.support.simulation import Clock


def situation(*sides: Side, **given: Any) -> Situation:
    return Situation(**{"reasons": {}, "since": {}, "sides": sides, **given})


def outbox(**given: Any) -> Side:
    counted = {key: given.pop(key, 0) for key in ("depth", "oldest_seconds", "dead", "scheduled")}
    return Side(name="outbox", sample=Sample(**counted), **{"done": 1, **given})


@pytest.mark.parametrize(
    ("given", "level", "state", "text"),
    [
        (situation(outbox()), "good", "Working", "Nothing waits."),
        (situation(outbox(depth=3, oldest_seconds=2.0)), "good", "Working", "Nothing is late."),
        (situation(outbox(undelivered=1200)), "good", "Working", "the streams have 1,200 more to deliver"),
        (
            situation(
                outbox(),
                paused_consumers=[ConsumerSample(stream="S", durable="d", pending=20, paused_seconds=90.0)],
            ),
            *("warn", "Held", "Consumer d of S is paused for 1.5 min more, and 20 messages wait."),
        ),
        (situation(outbox(done=0, scheduled=1)), "good", "Working", "Nothing waits."),
        (situation(outbox(done=0)), "idle", "Ready", "No event or message yet"),
        (situation(outbox(dead=1)), "warn", "Working", "1 dead event: no retry without an operator."),
        (
            situation(outbox(depth=12_340, oldest_seconds=260.0, before=20_000.0)),
            *(
                "warn",
                "Behind",
                "the oldest of 12,340 waits for 4.3 min, decreasing: none is left in about 8.1 min.",
            ),
        ),
        (
            situation(outbox(undelivered=3000, undelivered_seconds=90.0, before=1.0)),
            *("warn", "Behind", "the oldest of 3,000 waits for 1.5 min, increasing."),
        ),
        (situation(outbox(undelivered=3000, undelivered_seconds=59.0)), "good", "Working", "3,000 more"),
        (situation(outbox(depth=2, oldest_seconds=90, before=1)), "warn", "Behind", "increasing"),
        (
            situation(outbox(depth=2, oldest_seconds=90, undelivered=9, before=10)),
            *("warn", "Behind", "increasing"),
        ),
        (
            situation(outbox(sample_age_seconds=130)),
            "warn",
            "Not sure",
            "could not count the outbox for 2.2 min",
        ),
        (
            situation(reasons={"start": "x"}, since={"start": 1.0}),
            "idle",
            "Starting",
            "The worker connects to its servers.",
        ),
        (
            situation(reasons={"start": "x"}, since={"start": 1.0}, waiting_for="waiting for NATS: refused"),
            *("bad", "Starting", "waiting for NATS: refused"),
        ),
        (situation(outbox(), reasons={"stop": "stopping", "handler": "x"}), "warn", "Stopping", "in flight"),
        (
            situation(
                outbox(dead=1),
                reasons={"handler": "503", "outbox database": "refused"},
                since={"handler": 5.0, "outbox database": 6.0},
            ),
            *("bad", "Paused", "Waiting for PostgreSQL: refused"),
        ),
        (
            situation(
                outbox(), reasons={"exhausted messages": "no leader"}, since={"exhausted messages": 1.0}
            ),
            *("bad", "Paused", "Exhausted messages cannot be read: no leader"),
        ),
        (
            situation(
                outbox(dead=1),
                warnings={"event type a": "the handler answered 503. Fix it", "event type b": "422"},
                since={"event type a": 5.0, "event type b": 6.0},
            ),
            *(
                "warn",
                "Slow",
                "Event type a fails: the handler answered 503. Further failing types: 1. Other",
            ),
        ),
    ],
)
def test_the_most_urgent_problem_comes_first(given: Situation, level: str, state: str, text: str) -> None:
    health = summarize(given)
    assert (health.level, health.state) == (level, state)
    assert text in health.text


def test_a_pause_names_every_cause_and_the_next_steps() -> None:
    reasons = {"handler": "503", "stream SEA_EVENTS": "no leader"}
    health = summarize(situation(outbox(), reasons=reasons, since=dict.fromkeys(reasons, 5.0)))
    assert [cause.part for cause in health.causes] == ["stream SEA_EVENTS", "handler"]
    assert list(health.next_steps) == [
        "python -m sea_mq_worker doctor",
        "python -m sea_mq_worker streams check",
    ]


def test_percentiles_are_those_of_the_last_minute() -> None:
    clock = Clock()
    took = Latencies(clock)
    assert took.percentiles() is None
    for _ in range(95):
        took.observe(0.010)
    for _ in range(5):
        took.observe(2.0)
    clock.now += 50
    found = took.percentiles()
    assert found is not None
    assert found.p50 == found.p95 == pytest.approx(0.010, rel=0.1)
    assert found.p99 == pytest.approx(2.0, rel=0.1)
    clock.now += 20
    took.observe(10_000.0)
    found = took.percentiles()
    assert found is not None
    assert found.p50 == found.p95 == found.p99 == pytest.approx(3816, rel=0.1)


def test_an_hour_is_remembered_and_no_more() -> None:
    clock = Clock()
    history = History("depth", clock=clock)
    for number in range(1000):
        history.add({"depth": None if number == 998 else float(number)})
    data = history.data()
    assert data.series["depth"] == [*map(float, range(760, 998)), None, 999.0]
    assert data.at == clock.now
    assert (history.before("depth", samples=20), history.before("depth", samples=1)) == (979.0, None)


def test_failures_are_kept_by_kind_and_within_bounds() -> None:
    log = ActivityLog(now=lambda: 7.0)
    for number in range(200):
        fail(log, f"error {number}")
        fail(log, "503")
        log.emit("nats_error", text="refused" * 100)
        log.emit("streams_differ", text=str(number))
    groups = log.error_groups()
    assert (groups[0].text, groups[0].count, groups[0].last, len(groups)) == ("503", 200, 7.0, 64)
    events = log.recent_events()
    assert len(events) == 40
    refused = next(event for event in events if event.text.startswith("nats error: refused"))
    assert (refused.times, len(refused.text)) == (200, 301)


def test_a_reason_for_waiting_ends_with_the_next_step() -> None:
    log = ActivityLog()
    log.emit("waiting", text="waiting for NATS: refused")
    assert log.waiting_for == "waiting for NATS: refused"
    log.emit("nats_connected", text="outbox")
    assert log.waiting_for == ""


def fail(log: ActivityLog, error: str) -> None:
    log.emit("message_retried", message_id="m", consumer="c", error=error, attempts=1, delay_seconds=1.0)


def status_collector(
    clock: Clock, reasons: dict[str, str], totals: dict[str, float], *, wall: Clock | None = None
) -> StatusCollector:
    return StatusCollector(
        info=WorkerInfo(worker="w", context="sea", version="1", offers="all", depth_max=100),
        sides=("outbox",),
        counters=lambda: Counters(totals=totals, per_second={"published": 2.0}),
        reasons=lambda: reasons,
        now=wall or clock,
        clock=clock,
        activity=ActivityLog(clock=clock, now=clock),
    )


def test_a_pause_is_dated_from_its_beginning_however_often_its_reason_changes() -> None:
    clock, reasons = Clock(), {"handler": "503"}
    shown = status_collector(clock, reasons, {})
    shown.activity.emit("circuit_opened", circuit="handler", reason="503", retry_seconds=1)
    clock.now = 1200.0
    shown.activity.emit("circuit_opened", circuit="handler", reason="refused", retry_seconds=1)
    health = shown.status().health
    assert (health.state, health.since) == ("Paused", 1000.0)
    shown.activity.emit("circuit_closed", circuit="handler", paused_seconds=200.0)
    reasons.clear()
    health = shown.status().health
    assert (health.level, health.since) == (Level.IDLE, 1200.0)


def test_a_pause_is_dated_by_its_first_cause_also_without_a_circuit_breaker() -> None:
    clock, reasons = Clock(), {"handler": "503"}
    shown = status_collector(clock, reasons, {})
    shown.activity.emit("circuit_opened", circuit="handler", reason="503", retry_seconds=1)
    clock.now = 1200.0
    reasons["nats outbox"] = "the connection is down"
    health = shown.status().health
    assert health.since == 1200.0
    clock.now = 1300.0
    health = shown.status().health
    assert [(cause.part, cause.since) for cause in health.causes] == [
        ("nats outbox", 1200.0),
        ("handler", 1000.0),
    ]
    assert health.since == 1200.0


def test_a_start_is_dated_from_its_beginning_without_an_earlier_query() -> None:
    clock = Clock()
    shown = status_collector(clock, {"start": "the worker is starting"}, {})
    clock.now = 1060.0
    shown.activity.emit("waiting", text="waiting for NATS: refused")
    health = shown.status().health
    assert (health.state, health.since) == ("Starting", 1000.0)


def test_what_could_not_be_counted_keeps_its_age_and_leaves_a_gap() -> None:
    clock, totals = Clock(), {"published": 30.0}
    shown = status_collector(clock, {}, totals)
    shown.tick()
    shown.set_sample("outbox", Sample(depth=5, oldest_seconds=1.0, dead=0))
    shown.tick()
    totals["published"] = 60.0
    clock.now += 70
    shown.tick()
    series = shown.history().series
    assert series == {"outbox_depth": [5, None], "outbox_oldest": [1.0, None], "outbox_rate": [None, 2.0]}
    status = shown.status()
    assert (status.sides["outbox"].at, status.health.state) == (1000.0, "Not sure")


@pytest.mark.parametrize("set_by", [-3600, 3600])
def test_a_clock_that_is_set_makes_nothing_older(set_by: float) -> None:
    clock, wall = Clock(), Clock()
    shown = status_collector(clock, {}, {"published": 30.0}, wall=wall)
    shown.set_sample("outbox", Sample(depth=0, oldest_seconds=0.0, dead=0))
    clock.now += 10
    wall.now += 10 + set_by
    status = shown.status()
    assert status.health.state == "Working"
    at = status.sides["outbox"].at
    assert at is not None
    assert status.now - at == status.now - status.started == 10


def test_what_the_streams_have_still_to_deliver_waits_and_a_paused_consumer_is_named() -> None:
    shown = status_collector(Clock(), {}, {})
    shown.sides = ("inbox",)
    shown.set_sample("inbox", Sample(depth=2, oldest_seconds=1.0, dead=0))
    sample = ConsumerSample(stream="S", durable="d", pending=5)
    shown.set_consumer(sample)
    shown.set_consumer(ConsumerSample(stream="S", durable="gone", error="no answer"))
    status = shown.status()
    assert (status.sides["inbox"].undelivered, status.health.state) == (5, "Working")
    shown.set_consumer(ConsumerSample(stream="S", durable="d", error="no answer"))
    status = shown.status()
    assert (status.sides["inbox"].undelivered, status.consumers[0].error) == (5, "no answer")
    shown.set_consumer(replace(sample, paused_seconds=60.0))
    status = shown.status()
    assert status.health.next_steps == ["nats consumer resume S d"]


def test_slow_event_types_are_named_while_they_are_slow_and_within_a_bound() -> None:
    shown = status_collector(Clock(), {}, {})
    for number in range(10):
        shown.activity.emit("type_slowed", event_type=f"type.{number}", reason="503")
    shown.activity.emit("type_resumed", event_type="type.0", why="an effect", slow_seconds=1.0)
    assert shown.status().slow_types == [f"type.{number}" for number in range(1, 9)]


def test_a_claim_is_timed_by_some_of_its_events() -> None:
    log = ActivityLog()
    for count in (500, 1):
        log.emit("event_published", count=count, latencies=[0.1] * count, duplicates=0, each=list)
    assert 2 <= sum(sum(counts) for counts in log.latencies["outbox"]._ring) <= 20

"""What the page shows: the verdict in words, and what is remembered in a fixed amount of memory."""

from typing import Any

import pytest

from sea_mq_worker.admin.activity import ActivityLog
from sea_mq_worker.admin.health_summary import Held, Level, Side, Situation, summarize
from sea_mq_worker.admin.history import History
from sea_mq_worker.admin.latencies import Latencies
from sea_mq_worker.admin.worker_status import Sample, WorkerStatus
from sea_mq_worker.domain.facts import (
    CircuitClosed,
    CircuitOpened,
    EventsPublished,
    MessageRetried,
    Noticed,
    Progressed,
    TypeResumed,
    TypeSlowed,
)


def situation(*sides: Side, **given: Any) -> Situation:
    return Situation(**{"reasons": {}, "since": {}, "sides": sides, **given})


def outbox(**given: Any) -> Side:
    return Side(name="outbox", **{"depth": 0, "oldest_seconds": 0.0, "dead": 0, "done": 1, **given})


@pytest.mark.parametrize(
    ("given", "level", "state", "text"),
    [
        (situation(outbox()), "good", "Working", "Nothing waits."),
        (situation(outbox(depth=3, oldest_seconds=2.0)), "good", "Working", "Nothing is late."),
        (situation(outbox(undelivered=1200)), "good", "Working", "the streams have 1,200 still to deliver"),
        (
            situation(outbox(), held=[Held(stream="S", durable="d", pending=20, paused_seconds=90.0)]),
            *("warn", "Held", "Consumer d of S is paused for 1.5 min more, and 20 wait for it."),
        ),
        (situation(outbox(done=0, scheduled=1)), "good", "Working", "Nothing waits."),
        (situation(outbox(done=0)), "idle", "Ready", "Nothing has come through yet"),
        (situation(outbox(dead=1)), "warn", "Working", "1 dead event stopped for good"),
        (
            situation(outbox(depth=12_340, oldest_seconds=260.0, before=20_000.0)),
            *("warn", "Behind", "Outbox: the oldest of 12,340 waits for 4.3 min, getting fewer."),
        ),
        (situation(outbox(depth=2, oldest_seconds=90, before=1)), "warn", "Behind", "getting more"),
        (situation(outbox(sample_age_seconds=130)), "warn", "Not sure", "not be counted for 2.2 min"),
        (situation(reasons={"start": "x"}, since={"start": 1.0}), "idle", "Starting", "being connected to"),
        (
            situation(reasons={"start": "x"}, since={"start": 1.0}, waiting_for="waiting for NATS: refused"),
            *("bad", "Starting", "waiting for NATS: refused"),
        ),
        (situation(outbox(), reasons={"stop": "stopping", "handler": "x"}), "warn", "Stopping", "in hand"),
        (
            situation(
                outbox(dead=1),
                reasons={"handler": "503", "outbox database": "refused"},
                since={"handler": 5.0, "outbox database": 6.0},
            ),
            *("bad", "Paused", "PostgreSQL does not serve: refused"),
        ),
    ],
)
def test_the_most_urgent_is_said_first(given: Situation, level: str, state: str, text: str) -> None:
    verdict = summarize(given)
    assert (verdict.level, verdict.state) == (level, state)
    assert text in verdict.text


def test_a_pause_names_every_cause_and_what_helps() -> None:
    reasons = {"handler": "503", "stream SEA_EVENTS": "no leader"}
    verdict = summarize(situation(outbox(), reasons=reasons, since=dict.fromkeys(reasons, 5.0)))
    assert [cause.part for cause in verdict.causes] == ["stream SEA_EVENTS", "handler"]
    assert list(verdict.helps) == ["python -m sea_mq_worker doctor", "python -m sea_mq_worker streams check"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
    assert found["p50"] == found["p95"] == pytest.approx(0.010, rel=0.1)
    assert found["p99"] == pytest.approx(2.0, rel=0.1)
    clock.now += 20
    took.observe(10_000.0)
    assert took.percentiles() == {name: pytest.approx(3816, rel=0.1) for name in ("p50", "p95", "p99")}


def test_an_hour_is_remembered_and_no_more() -> None:
    clock = Clock()
    history = History("depth", clock=clock)
    for number in range(1000):
        history.add({"depth": None if number == 998 else float(number)})
    data: Any = history.data()
    assert data["series"]["depth"] == [*map(float, range(760, 998)), None, 999.0]
    assert data["at"] == clock.now
    assert (history.before("depth", samples=20), history.before("depth", samples=1)) == (979.0, None)


def test_failures_are_kept_by_kind_and_within_bounds() -> None:
    board = ActivityLog(now=lambda: 7.0)
    for number in range(200):
        board.observe(retried(f"error {number}"))
        board.observe(retried("503"))
        board.observe(Noticed(event="nats_error", text="refused" * 100))
        board.observe(Noticed(event="odd", text=str(number)))
    troubles = board.troubles()
    assert (troubles[0].text, troubles[0].count, troubles[0].last, len(troubles)) == ("503", 200, 7.0, 64)
    news = board.news()
    assert len(news) == 40
    told = next(each for each in news if each["text"].startswith("nats error: refused"))
    assert (told["times"], len(told["text"])) == (200, 301)


def test_what_was_waited_for_is_forgotten_at_the_next_step() -> None:
    board = ActivityLog()
    board.observe(Noticed(event="waiting", text="waiting for NATS: refused"))
    assert board.waiting_for == "waiting for NATS: refused"
    board.observe(Progressed(event="nats_connected", text="outbox"))
    assert board.waiting_for == ""


def retried(error: str) -> MessageRetried:
    return MessageRetried(message_id="m", consumer="c", error=error, attempts=1, delay_seconds=1.0)


def standing(
    clock: Clock, reasons: dict[str, str], totals: dict[str, float], *, wall: Clock | None = None
) -> WorkerStatus:
    return WorkerStatus(
        about={"worker": "w"},
        sides=("outbox",),
        numbers=lambda: {"totals": totals, "per_second": {"published": 2.0}},
        reasons=lambda: reasons,
        now=wall or clock,
        clock=clock,
        board=ActivityLog(clock=clock, now=clock),
    )


def test_a_pause_is_dated_from_its_beginning_however_often_its_reason_changes() -> None:
    clock, reasons = Clock(), {"handler": "503"}
    shown = standing(clock, reasons, {})
    shown.board.observe(CircuitOpened(circuit="handler", reason="503", retry_seconds=1))
    clock.now = 1200.0
    shown.board.observe(CircuitOpened(circuit="handler", reason="refused", retry_seconds=1))
    verdict: Any = shown.status()["verdict"]
    assert (verdict["state"], verdict["since"]) == ("Paused", 1000.0)
    shown.board.observe(CircuitClosed(circuit="handler", paused_seconds=200.0))
    reasons.clear()
    verdict = shown.status()["verdict"]
    assert (verdict["level"], verdict["since"]) == (Level.IDLE, 1200.0)


def test_a_pause_is_dated_by_its_first_cause_also_where_no_gate_dates_it() -> None:
    clock, reasons = Clock(), {"handler": "503"}
    shown = standing(clock, reasons, {})
    shown.board.observe(CircuitOpened(circuit="handler", reason="503", retry_seconds=1))
    clock.now = 1200.0
    reasons["nats outbox"] = "the connection is down"
    verdict: Any = shown.status()["verdict"]
    assert verdict["since"] == 1200.0
    clock.now = 1300.0
    verdict = shown.status()["verdict"]
    assert [(cause["part"], cause["since"]) for cause in verdict["causes"]] == [
        ("nats outbox", 1200.0),
        ("handler", 1000.0),
    ]
    assert verdict["since"] == 1200.0


def test_a_start_is_dated_from_its_beginning_although_nobody_looked_then() -> None:
    clock = Clock()
    shown = standing(clock, {"start": "the worker is starting"}, {})
    clock.now = 1060.0
    shown.board.observe(Noticed(event="waiting", text="waiting for NATS: refused"))
    verdict: Any = shown.status()["verdict"]
    assert (verdict["state"], verdict["since"]) == ("Starting", 1000.0)


def test_what_could_not_be_counted_keeps_its_age_and_leaves_a_gap() -> None:
    clock, totals = Clock(), {"published": 30.0}
    shown = standing(clock, {}, totals)
    shown.tick()
    shown.set_sample("outbox", Sample(depth=5, oldest_seconds=1.0, dead=0))
    shown.tick()
    totals["published"] = 60.0
    clock.now += 70
    shown.tick()
    series: Any = shown.history()["series"]
    assert series == {"outbox_depth": [5, None], "outbox_oldest": [1.0, None], "outbox_rate": [None, 2.0]}
    status: Any = shown.status()
    assert (status["sides"]["outbox"]["at"], status["verdict"]["state"]) == (1000.0, "Not sure")


@pytest.mark.parametrize("set_by", [-3600, 3600])
def test_a_clock_that_is_set_makes_nothing_older(set_by: float) -> None:
    clock, wall = Clock(), Clock()
    shown = standing(clock, {}, {"published": 30.0}, wall=wall)
    shown.set_sample("outbox", Sample(depth=0, oldest_seconds=0.0, dead=0))
    clock.now += 10
    wall.now += 10 + set_by
    status: Any = shown.status()
    assert status["verdict"]["state"] == "Working"
    assert status["now"] - status["sides"]["outbox"]["at"] == status["now"] - status["started"] == 10


def test_what_the_streams_have_still_to_deliver_waits_and_a_paused_consumer_is_named() -> None:
    shown = standing(Clock(), {}, {})
    shown.sides = ("inbox",)
    shown.set_sample("inbox", Sample(depth=2, oldest_seconds=1.0, dead=0))
    state = {"stream": "S", "durable": "d", "pending": 5, "paused_seconds": 0.0}
    shown.set_consumer("S/d", state)
    shown.set_consumer("S/gone", {"stream": "S", "durable": "gone", "error": "no answer"})
    status: Any = shown.status()
    assert (status["sides"]["inbox"]["undelivered"], status["verdict"]["state"]) == (5, "Working")
    shown.set_consumer("S/d", state | {"paused_seconds": 60.0})
    status = shown.status()
    assert status["verdict"]["helps"] == ["nats consumer resume S d"]


def test_slow_event_types_are_named_while_they_are_slow_and_within_a_bound() -> None:
    place = standing(Clock(), {}, {})
    for number in range(10):
        place.board.observe(TypeSlowed(event_type=f"type.{number}", reason="503"))
    place.board.observe(TypeResumed(event_type="type.0", why="an effect", slow_seconds=1.0))
    assert place.status()["slow_types"] == [f"type.{number}" for number in range(1, 9)]


def test_a_claim_is_timed_by_some_of_its_events() -> None:
    board = ActivityLog()
    board.observe(EventsPublished(latencies=[0.1] * 500, duplicates=0, each=list))
    board.observe(EventsPublished(latencies=[0.1], duplicates=0, each=list))
    assert 2 <= sum(sum(counts) for counts in board.latencies["outbox"]._ring) <= 20

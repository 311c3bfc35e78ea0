"""The status: its health summary, and what it remembers in a fixed amount of memory."""

from dataclasses import replace
from typing import Any, cast

import pytest

from sea_mq_worker.admin.status import SAMPLE_SECONDS, Status
from sea_mq_worker.admin.summary import HealthSummary, Side, Situation, health_summary
from sea_mq_worker.operators.records import ConsumerState, Depth
from sea_mq_worker.telemetry.metrics import Metrics
from sea_mq_worker.telemetry.metrics import Side as SideName
from tests.support.simulation import Clock

CONSUMER = ConsumerState(
    stream="S",
    durable="d",
    pending=20,
    ack_pending=0,
    ack_pending_max=50,
    redelivered=0,
    paused_seconds=0.0,
    delivered_seq=0,
)


def situation(**given: Any) -> Situation:
    """Return one with an outbox that has published before; a number is one of the outbox."""
    side = {name: given.pop(name) for name in Side.__slots__ if name in given}
    reasons = {**given.get("reasons", {}), **given.get("warnings", {})}
    since = {part: float(place) for place, part in enumerate(reasons)}
    return Situation(**{"sides": [Side(**{"name": "outbox", "done": 1, **side})], "since": since, **given})


@pytest.mark.parametrize(
    ("given", "level", "state", "text"),
    [
        ({}, "good", "Working", "Nothing waits."),
        ({"done": 0, "scheduled": 1}, "good", "Working", "Nothing waits."),
        ({"waiting": 3, "oldest_seconds": 2.0}, "good", "Working", "Nothing is late."),
        ({"waiting": 3000, "undelivered": 3000, "oldest_seconds": 59.0}, "good", "Working",
         "the streams have 3,000 more to deliver"),
        ({"done": 0}, "idle", "Ready", "No event or message yet"),
        ({"dead": 1}, "warn", "Working", "1 dead event: no retry without an operator."),
        ({"waiting": 12_340, "oldest_seconds": 260.0, "before": 20_000.0}, "warn", "Behind",
         "the oldest of 12,340 waits for 4.3 min, decreasing: none is left in about 8.1 min."),
        ({"waiting": 2, "oldest_seconds": 90.0, "before": 1}, "warn", "Behind",
         "Outbox: the oldest of 2 waits for 1.5 min, increasing."),
        ({"waiting": 2, "oldest_seconds": 90.0, "dead": 9, "before": 2}, "warn", "Behind", "1.5 min."),
        ({"sample_age_seconds": 130}, "warn", "Not sure", "could not count the outbox for 2.2 min"),
        ({"paused_consumers": [replace(CONSUMER, paused_seconds=90.0)]}, "warn", "Held",
         "Consumer d of S is paused for 1.5 min more, and 20 messages wait."),
        ({"dead": 1, "warnings": {"event type a": "the handler answered 503. Fix it", "event type b": "422"}},
         "warn", "Slow", "Event type a fails: the handler answered 503. Further failing types: 1. Other"),
        ({"dead": 1, "reasons": {"handler": "503", "outbox database": "refused"}}, "bad", "Paused",
         "Waiting for PostgreSQL: refused"),
        ({"reasons": {"exhausted messages": "no leader"}}, "bad", "Paused",
         "Exhausted messages cannot be read: no leader"),
        ({"reasons": {"start": "x"}}, "idle", "Starting", "The worker connects to its servers."),
        ({"reasons": {"start": "x"}, "waiting_for": "waiting for NATS: refused"}, "bad", "Starting",
         "waiting for NATS: refused"),
        ({"reasons": {"stop": "stopping", "handler": "x"}}, "warn", "Stopping", "in flight"),
    ],
)  # fmt: skip
def test_the_most_urgent_problem_comes_first(
    given: dict[str, Any], level: str, state: str, text: str
) -> None:
    found = health_summary(situation(**given))
    assert (found.level, found.state) == (level, state)
    assert text in found.text


def test_a_pause_names_every_cause_and_the_next_steps() -> None:
    found = health_summary(situation(reasons={"handler": "503", "stream SEA_EVENTS": "no leader"}))
    assert [cause.part for cause in found.causes] == ["stream SEA_EVENTS", "handler"]
    assert list(found.next_steps) == [
        "python -m sea_mq_worker doctor",
        "python -m sea_mq_worker streams check",
    ]


class Shown:
    """A status with clocks, reasons and counts that the test sets."""

    def __init__(self, side: SideName = "outbox", reasons: dict[str, str] | None = None) -> None:
        self.clock, self.wall = Clock(), Clock()
        self.reasons = reasons or {}
        self.metrics = Metrics(clock=self.clock)
        self.status = Status(
            {"worker": "w"},
            sides=[side],
            metrics=self.metrics,
            reasons=lambda: self.reasons,
            now=self.wall,
            clock=self.clock,
        )
        self.emit = self.status.emit

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds

    def counted(self, side: SideName = "outbox", *, waiting: int = 0, seconds: float = 0.0) -> None:
        found = Depth(
            count=waiting, oldest_at=None, waiting=waiting, waiting_seconds=seconds, scheduled=0, dead=0
        )
        self.status.set_depth(side, found)

    def json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.status.status())

    @property
    def health(self) -> HealthSummary:
        return cast("HealthSummary", self.json()["health"])


def test_a_pause_is_dated_from_its_beginning_however_often_its_reason_changes() -> None:
    shown = Shown(reasons={"handler": "503"})
    shown.emit("circuit_opened", circuit="handler", reason="503", retry_seconds=1)
    shown.later(200)
    shown.emit("circuit_opened", circuit="handler", reason="refused", retry_seconds=1)
    assert (shown.health.state, shown.health.since) == ("Paused", 1000.0)
    shown.emit("circuit_closed", circuit="handler", paused_seconds=200.0)
    shown.reasons.clear()
    assert (shown.health.level, shown.health.since) == ("idle", 1200.0)


def test_a_pause_is_dated_by_its_first_cause_also_without_a_circuit_breaker() -> None:
    shown = Shown(reasons={"handler": "503"})
    shown.emit("circuit_opened", circuit="handler", reason="503", retry_seconds=1)
    shown.later(200)
    shown.reasons["nats outbox"] = "the connection is down"
    assert shown.health.since == 1200.0
    shown.later(100)
    found = [(cause.part, cause.since) for cause in shown.health.causes]
    assert found == [("nats outbox", 1200.0), ("handler", 1000.0)]
    assert shown.health.since == 1200.0


def test_a_start_is_dated_from_its_beginning_and_waits_until_a_server_answers() -> None:
    shown = Shown(reasons={"start": "the worker is starting"})
    shown.later(60)
    shown.emit("waiting", text="waiting for NATS: refused")
    found = shown.health
    assert (found.state, found.since, found.text) == ("Starting", 1000.0, "waiting for NATS: refused")
    shown.emit("nats_connected", text="outbox")
    assert shown.health.text == "The worker connects to its servers."


def test_what_could_not_be_counted_keeps_its_age() -> None:
    shown = Shown()
    shown.counted(waiting=5, seconds=1.0)
    shown.later(70)
    found = shown.json()
    assert (found["sides"]["outbox"]["at"], found["health"].state) == (1000.0, "Not sure")


def test_a_backlog_is_compared_with_the_one_of_five_minutes_ago_and_with_no_other() -> None:
    shown = Shown()
    for number in range(100):
        shown.counted(waiting=1000 - number, seconds=90.0)
        shown.later(SAMPLE_SECONDS)
    shown.counted(waiting=900, seconds=90.0)
    assert "decreasing: none is left in about 3.8 h" in shown.health.text  # 20 of 920 in five minutes
    shown.later(600)
    shown.counted(waiting=900, seconds=90.0)
    assert "creasing" not in shown.health.text


@pytest.mark.parametrize("set_by", [-3600, 3600])
def test_a_clock_that_is_set_makes_nothing_older(set_by: float) -> None:
    shown = Shown()
    shown.metrics.emit("event_published", count=30, latencies=(), duplicates=0)
    shown.counted()
    shown.later(10)
    shown.wall.now += set_by
    found = shown.json()
    assert found["health"].state == "Working"
    assert found["now"] - found["sides"]["outbox"]["at"] == found["now"] - found["started"] == 10


def test_what_the_streams_have_still_to_deliver_waits_and_a_paused_consumer_is_named() -> None:
    shown = Shown("inbox")
    shown.counted("inbox", waiting=2, seconds=1.0)
    shown.status.set_consumer(CONSUMER)
    shown.status.set_consumer_error("S", "gone", "no answer")
    assert (shown.json()["sides"]["inbox"]["undelivered"], shown.health.state) == (20, "Working")
    shown.status.set_consumer_error("S", "d", "no answer")
    known, gone = shown.json()["consumers"]
    assert (known["pending"], known["error"], gone["error"]) == (20, "no answer", "no answer")
    shown.status.set_consumer(replace(CONSUMER, paused_seconds=60.0, oldest_seconds=90.0))
    assert shown.health.next_steps == ["nats consumer resume S d"]
    shown.status.set_consumer(replace(CONSUMER, oldest_seconds=90.0))
    assert "Inbox: the oldest of 22 waits for 1.5 min" in shown.health.text


def test_slow_event_types_are_named_while_they_are_slow_and_within_a_bound() -> None:
    shown = Shown()
    for number in range(10):
        shown.emit("type_slowed", event_type=f"type.{number}", reason="503")
    shown.emit("type_resumed", event_type="type.0", why="an effect", slow_seconds=1.0)
    assert shown.json()["slow_types"] == [f"type.{number}" for number in range(1, 9)]


def test_failures_are_kept_by_kind_and_within_bounds() -> None:
    shown = Shown()
    for number in range(200):
        for error in (f"error {number}", "503" * 200):
            shown.emit("message_retried", message_id="m", consumer="c", error=error, attempts=1)
    first, *others = shown.json()["errors"]
    assert (first["text"], first["count"], first["last"]) == (f"{'503' * 100}…", 200, 1000.0)
    assert (len(others), {each["count"] for each in others}, len(shown.status._errors)) == (7, {1}, 64)

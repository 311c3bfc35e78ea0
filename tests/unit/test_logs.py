"""Events become log lines: one a record, bounded, and never a way to forge another."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.ports import Events
from sea_mq_worker.telemetry.events import EVENTS, Fields, Listeners
from sea_mq_worker.telemetry.logs import LOGGER, LogListener, configure
from sea_mq_worker.testing.events import Emitted, RecordingEvents
from tests.support.simulation import Clock

PUBLISHED = {
    "outbox_id": "550e8400-e29b-41d4-a716-446655440000",
    "event_type": "vibe_created",
    "subject": "sea.event.vibe_created.v1",
    "published_at": datetime.fromisoformat("2031-02-03T04:05:06.789012+02:00"),
    "duplicate": False,
    "latency_seconds": 0.25,
}
BATCH: dict[str, Any] = {"count": 1, "latencies": (0.5,), "duplicates": 0, "each": lambda: (PUBLISHED,)}
FORGED = 'x\r\n{"event": "forged"}\x1b[31m\u2028\x9b'


def postpone(events: Events, number: int) -> None:
    retry = {"error": "timeout", "delay_seconds": 1.0, "attempts": number}
    events.emit("event_postponed", outbox_id=str(number), event_type="t", **retry)


def died(error: str, event_type: str = "t") -> dict[str, Any]:
    return {"outbox_id": "b", "event_type": event_type, "error": error, "attempts": 1}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Take what is written, and give logging back as it was."""
    root, worker = logging.getLogger(), logging.getLogger(LOGGER)
    before = list(root.handlers), worker.level
    yield io.StringIO()
    root.handlers[:], worker.level = before[0], worker.level
    worker.setLevel(before[1])
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.clause("EVT-047-001")
def test_a_published_event_is_a_record_with_the_events_fields(stream: io.StringIO) -> None:
    configure(level="debug", format="json", stream=stream)
    LogListener().emit("event_published", **BATCH)
    (line,) = lines(stream)
    expected = PUBLISHED | {"published_at": "2031-02-03T02:05:06.789Z"}
    assert {name: line[name] for name in expected} == expected
    assert (line["event"], line["level"]) == ("event_published", "debug")


def test_every_event_is_a_line_with_its_level_and_fields(stream: io.StringIO) -> None:
    configure(level="debug", format="json", stream=stream)
    events = LogListener(clock=Clock())
    for key, kind in EVENTS.items():
        fields = dict.fromkeys(kind.fields, "x")
        events.emit(key, **({"each": lambda fields=fields: (fields,)} if "each" in kind.emitted else fields))
    written = {line["event"]: line for line in lines(stream)}
    assert written.keys() == EVENTS.keys()
    for key, kind in EVENTS.items():
        assert written[key]["level"] == kind.level
        assert written[key].keys() >= set(kind.fields)
    assert [written[key]["level"] for key in ("loop_died", "streams_differ")] == ["error", "warning"]


def test_at_info_the_hot_path_writes_nothing(stream: io.StringIO) -> None:
    """Not even what it would be made of."""

    def unwanted() -> list[Fields]:
        raise AssertionError

    configure(level="info", format="json", stream=stream)
    LogListener().emit("event_published", **(BATCH | {"each": unwanted}))
    LogListener().emit("circuit_closed", circuit="handler", paused_seconds=1.5)
    assert [line["event"] for line in lines(stream)] == ["circuit_closed"]


def test_an_outage_is_logged_in_at_most_sixty_lines_a_minute(stream: io.StringIO) -> None:
    configure(level="info", format="json", stream=stream)
    clock = Clock()
    events = LogListener(clock=clock)
    for tenth in range(600):
        clock.now = 1000.0 + tenth / 10
        postpone(events, tenth)
        events.emit("message_retried", message_id="m", consumer="c", error="e", attempts=1, delay_seconds=1.0)
        for breaker in ("postgres", "nats"):
            events.emit("circuit_opened", circuit=breaker, reason="refused", retry_seconds=1.0)
    assert len(lines(stream)) <= 60


def test_what_was_left_out_is_counted_on_the_next_line_of_its_kind_alone(stream: io.StringIO) -> None:
    configure(level="info", format="json", stream=stream)
    clock = Clock()
    events = LogListener(clock=clock)
    for number in range(100):
        postpone(events, number)
    events.emit("event_died", **died("too large"))
    for circuit in (*["nats"] * 5, "postgres"):
        events.emit("circuit_opened", circuit=circuit, reason="refused", retry_seconds=1.0)
    clock.now += 10.0
    postpone(events, 100)
    postpone(events, 101)
    written = [
        (line.get("outbox_id") or line["circuit"], line.get("suppressed", 0)) for line in lines(stream)
    ]
    others = [("b", 0), ("nats", 0), ("nats", 0), ("postgres", 0)]
    assert written == [("0", 0), ("1", 0), *others, ("100", 98), ("101", 0)]


@pytest.mark.fault("S12")
@pytest.mark.parametrize("style", ["json", "text"])
def test_text_from_outside_cannot_forge_a_line(stream: io.StringIO, style: Any) -> None:
    configure(level="info", format=style, stream=stream)
    LogListener().emit("event_died", **died(FORGED, FORGED))
    logging.getLogger("nats").error("said %s", FORGED)
    written = stream.getvalue()
    assert written.count("\n") == len(written.splitlines()) == 2
    assert written.replace("\n", "").isprintable()


def lose_the_store() -> None:
    try:
        int("DETAIL: canary-77")
    except ValueError as error:
        raise StoreUnavailableError("PostgreSQL refuses connections") from error


@pytest.mark.fault("S02")
@pytest.mark.parametrize("style", ["json", "text"])
def test_a_foreign_exception_is_reported_without_its_text(stream: io.StringIO, style: Any) -> None:
    """PostgreSQL's errors quote rows; ours say what to do."""
    configure(level="info", format=style, stream=stream)
    try:
        lose_the_store()
    except StoreUnavailableError:
        logging.getLogger(LOGGER).exception("a loop ended", extra={"event": "loop_ended"})
    written = stream.getvalue()
    assert "canary-77" not in written
    assert "builtins.ValueError" in written
    assert "StoreUnavailableError: PostgreSQL refuses connections" in written
    assert "test_logs.py" in written
    assert "loop_ended" in written


@pytest.mark.fault("S12")
def test_the_text_of_an_exception_cannot_forge_a_line_for_people(stream: io.StringIO) -> None:
    configure(level="info", format="text", stream=stream)
    error = StoreUnavailableError(FORGED)
    logging.getLogger(LOGGER).error("", exc_info=(type(error), error, None))
    assert len(stream.getvalue().splitlines()) == 2
    assert stream.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize("style", ["json", "text"])
def test_no_text_makes_a_line_longer_than_a_few_thousand_characters(stream: io.StringIO, style: Any) -> None:
    configure(level="info", format=style, stream=stream)
    LogListener().emit("event_died", **died("x" * 100_000))
    logging.getLogger("nats").error("said %s", "y" * 100_000)
    assert [2000 < len(line) < 2500 for line in stream.getvalue().splitlines()] == [True, True]


def test_a_line_for_people_has_time_level_event_and_values(stream: io.StringIO) -> None:
    configure(level="info", format="text", stream=stream)
    LogListener().emit("circuit_opened", circuit="handler", reason="it refuses", retry_seconds=0.5)
    line = stream.getvalue()
    assert line.endswith('Z WARNING circuit_opened circuit=handler reason="it refuses" retry_seconds=0.500\n')


def test_libraries_are_heard_from_warning_on(stream: io.StringIO, request: pytest.FixtureRequest) -> None:
    """Also where the root hears everything."""
    root = logging.getLogger()
    request.addfinalizer(partial(root.setLevel, root.level))
    root.setLevel(logging.DEBUG)
    configure(level="debug", format="json", stream=stream)
    for name in ("nats", "httpx2", "asyncio"):
        logging.getLogger(name).info("POST http://user:password@host")
        logging.getLogger(name).warning("trouble")
    assert [line["message"] for line in lines(stream)] == ["trouble"] * 3


@pytest.mark.usefixtures("stream")
def test_a_record_that_cannot_be_written_is_counted_and_raises_nothing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        configure(level="info", format="json", stream=file)
        writer = logging.getLogger().handlers[-1]  # pytest's own handler raises
        for args in ((1,), (1, 2)):
            writer.handle(logging.makeLogRecord({"msg": "%s of %s", "args": args}))
    lost, written = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (lost["event"], lost["count"], written["message"]) == ("log_lines_lost", 1, "1 of 2")


def test_configuring_twice_writes_once(stream: io.StringIO) -> None:
    configure(level="info", format="json", stream=stream)
    configure(level="info", format="json", stream=stream)
    LogListener().emit("nats_error", text="")
    assert [line["event"] for line in lines(stream)] == ["nats_error"]


def test_a_listener_that_raises_is_reported_once_and_disturbs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def emit(self, key: str, /, **_fields: Any) -> None:
            raise KeyError(key)

    recorder = RecordingEvents()
    everyone = Listeners([Broken(), recorder])
    for _ in range(3):
        everyone.emit("event_published", **BATCH)
    assert recorder.emitted == [Emitted("event_published", **PUBLISHED)] * 3
    assert len(caplog.records) == 1

"""The vocabulary of metrics, spans and log events has what the code uses, and nothing else."""

import ast
import json
import re
from collections.abc import Iterator
from typing import get_args

from sea_mq_worker.telemetry.events import (
    FACTS,
    LOG_EVENTS,
    NOTICES,
    PROGRESS,
    RECORDS,
    EventPublished,
    EventsPublished,
    Fact,
    Noticed,
    Progressed,
)
from sea_mq_worker.telemetry.metrics import METRICS
from sea_mq_worker.telemetry.tracing import SPANS
from tools.docs.pages import ROOT, TELEMETRY

EXAMPLES = re.compile(r"```json\n(.*?)```", re.DOTALL)
OF_EVERY_LINE = {"ts", "level", "event", "logger"}
NATS = "nats_"
NOTICER = "_notice"


def examples() -> list[dict[str, object]]:
    """Read the lines of log that the document shows."""
    (block,) = EXAMPLES.findall(TELEMETRY.read_text())
    return [json.loads(line) for line in block.splitlines()]


def called(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each call that makes an event by its name: what is called, and the name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        whole = ast.unparse(node.func)
        function = whole if whole == "self.on_event" else whole.rpartition(".")[2]
        given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "event")]
        for value in given:
            if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z_]+", str(value.value)):
                yield function, value.value


def told_by_the_code() -> set[str]:
    """Collect the keys of notices and of progress that stand in the worker's sources."""
    found = set()
    for path in sorted((ROOT / "sea_mq_worker").rglob("*.py")):
        for function, name in called(ast.parse(path.read_text())):
            if function in {"Noticed", "Progressed", "self.on_event"} or function == NOTICER:
                found.add(name)
            elif function == "emit" or (path.parent.name == "nats" and function == "on_event"):
                found.add(NATS + name)
    return found


def test_names_are_used_once() -> None:
    for names in ([m.name for m in METRICS], [s.name for s in SPANS], [e.key for e in LOG_EVENTS]):
        assert len(set(names)) == len(names)


def test_metrics_are_named_as_prometheus_asks() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"sea_mq_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.unit == "s")
        assert metric.unit != "1"  # whoever turns OTLP into Prometheus' names would call it a ratio


def test_every_fact_has_its_line() -> None:
    without = {EventsPublished, Noticed, Progressed}
    assert FACTS.keys() == (set(get_args(Fact)) | {EventPublished}) - without


def test_the_code_notices_what_the_vocabulary_has_and_nothing_else() -> None:
    """A new one belongs into vocabulary/log_events.py."""
    assert told_by_the_code() == {event.key for event in (*NOTICES, *PROGRESS)}


def test_records_that_are_no_facts_are_written_somewhere() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "sea_mq_worker").rglob("*.py"))
    written = set(re.findall(r'"event"[:,] "(\w+)"', sources))
    assert written == {event.key for event in RECORDS}


def test_the_lines_that_are_shown_are_such_lines() -> None:
    known = {event.key: event for event in LOG_EVENTS}
    shown = examples()
    assert len(shown) > 1
    for line in shown:
        event = known[str(line["event"])]
        assert line["level"] == event.level
        assert line.keys() - {"suppressed"} == OF_EVERY_LINE | set(event.fields)

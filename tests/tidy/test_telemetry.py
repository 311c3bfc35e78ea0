"""The vocabulary of metrics, spans and log events has what the code uses, and nothing else."""

import ast
import inspect
import re
from collections.abc import Iterator

from sea_mq_worker.connections import exposures
from sea_mq_worker.telemetry.events import EVENTS, METRICS, TABLE
from sea_mq_worker.telemetry.tracing import SPANS
from tools.docs.pages import ROOT


def emitted(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield the key and the fields of each call that emits an event by a key in the text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) not in {1, 2}:
            continue
        function, key = ast.unparse(node.func).rpartition(".")[2], node.args[0]
        if not isinstance(key, ast.Constant):
            continue
        if function == "emit" and len(node.args) == 1:
            yield key.value, {keyword.arg or "**" for keyword in node.keywords}
        elif function == "emit" or ast.unparse(node.func) == "on_event":  # of a connection
            yield f"nats_{key.value}", {"text"}
        elif function in {"on_event", "_notice"}:
            yield key.value, {"text"}


def emitted_by_the_code() -> list[tuple[str, set[str]]]:
    """Collect the events that the worker's sources emit, with their fields."""
    sources = (ROOT / "sea_mq_worker").rglob("*.py")
    found = [event for path in sources for event in emitted(ast.parse(path.read_text()))]
    exposed = [(key, {"text"}) for key in re.findall(r'yield "(\w+)", ', inspect.getsource(exposures))]
    return [*found, *exposed]


def test_names_are_used_once() -> None:
    assert len({span.name for span in SPANS}) == len(SPANS)
    rows = [row.key for row in TABLE]
    assert len(set(rows)) == len(rows)


def test_metrics_are_named_as_prometheus_asks() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"sea_mq_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.unit == "s")
        assert metric.unit != "1"  # whoever turns OTLP into Prometheus' names would call it a ratio


def test_the_code_emits_the_events_of_the_table_with_their_fields_and_no_others() -> None:
    found = emitted_by_the_code()
    for key, fields in found:
        wanted = set(EVENTS[key].emitted)
        assert fields - {"**"} <= wanted if "**" in fields else fields == wanted, key
    assert {key for key, _ in found} == EVENTS.keys() - logged_alone()


def logged_alone() -> set[str]:
    """Collect the keys of lines that are written to the log without an event."""
    sources = "".join(path.read_text() for path in (ROOT / "sea_mq_worker").rglob("*.py"))
    return set(re.findall(r'"event"[:,] "(\w+)"', sources))

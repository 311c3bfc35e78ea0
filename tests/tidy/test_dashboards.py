"""Dashboard, alerts and scrapes of deploy ask for nothing but what the worker tells."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from sea_mq_worker.cli import app
from sea_mq_worker.telemetry.events import METRICS, NOTICES, PIPELINE_METRICS
from tools.docs.pages import ALERTS as ALERTS_FILE
from tools.docs.pages import PROMETHEUS_RULE

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERT_TESTS = DEPLOY / "prometheus" / "alerts.test.yaml"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS_FILE.read_text())["groups"] for rule in group["rules"]
]
LABELS = {metric.name: set(metric.labels) for metric in (*METRICS, *PIPELINE_METRICS)}
LABELS |= {
    f"{metric.name}_{suffix}": {*metric.labels, "le"} if suffix == "bucket" else set(metric.labels)
    for metric in METRICS
    if metric.kind == "histogram"
    for suffix in ("bucket", "count", "sum")
}
LABELS |= {
    f"process_{name}": set()
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds")
}
SCRAPED = {"job", "instance"}
SELECTOR = re.compile(r"\b((?:sea_mq|process)_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
SHOWN = re.compile(r"\{\{-?\s*(?:\$labels\.)?(\w+)")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression of PromQL, with the texts that are filled from its labels."""
    for alert in ALERTS:
        yield alert["expr"], " ".join(alert["annotations"].values())
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"], target.get("legendFormat", "")


@pytest.mark.parametrize(("expression", "texts"), list(expressions()))
def test_an_expression_names_metrics_and_labels_that_are_there(expression: str, texts: str) -> None:
    selectors = SELECTOR.findall(expression)
    names = {name for name, _ in selectors}
    assert names
    assert names <= LABELS.keys()
    known = SCRAPED.union(*(LABELS[name] for name in names))
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
    assert grouped <= known
    for name, matchers in selectors:
        assert {label for label, _ in MATCHER.findall(matchers)} <= LABELS[name] | SCRAPED
    assert set(SHOWN.findall(texts)) <= grouped | SCRAPED


def test_the_notices_that_raise_an_alert_are_made() -> None:
    keys = {*NOTICES, "other"}
    asked = [
        event
        for alert in ALERTS
        for label, values in MATCHER.findall(alert["expr"])
        if label == "event"
        for event in values.split("|")
    ]
    assert asked
    assert set(asked) <= keys


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_its_meaning_and_the_first_command(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"].keys() == {"summary", "description", "command"}
    assert all(alert["annotations"].values())
    assert alert["alert"] in ALERT_TESTS.read_text()


def test_the_commands_of_alerts_are_commands_of_the_worker() -> None:
    commands = {alert["annotations"]["command"] for alert in ALERTS}
    own = [command.split()[3:] for command in commands if command.startswith("python -m sea_mq_worker ")]
    assert len(own) == len(commands) - 1  # one asks the worker itself
    for words in own:
        command: Any = get_command(app)
        for word in words:
            if isinstance(command, TyperGroup):
                assert word in command.commands, words
                command = command.commands[word]
        assert not isinstance(command, TyperGroup), words


def test_names_and_ids_are_used_once() -> None:
    for names in ([alert["alert"] for alert in ALERTS], [panel["id"] for panel in DASHBOARD["panels"]]):
        assert len(names) == len(set(names))


def test_no_panel_lies_over_another() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_panels_explain_themselves_and_take_the_chosen_source() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert not any("datasource" in target for target in panel["targets"])


def test_the_rule_has_the_fields_that_the_operator_knows() -> None:
    made: dict[str, Any] = yaml.safe_load(PROMETHEUS_RULE.read_text())
    assert made["spec"] == yaml.safe_load(ALERTS_FILE.read_text())
    for group in made["spec"]["groups"]:
        assert group.keys() == {"name", "rules"}
        for alert in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= alert.keys()
            assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}


def test_services_of_the_same_name_in_two_namespaces_are_two_jobs() -> None:
    [endpoint] = yaml.safe_load(PROMETHEUS_RULE.with_name("servicemonitor.yaml").read_text())["spec"][
        "endpoints"
    ]
    [relabeling] = endpoint["relabelings"]
    assert relabeling == {"sourceLabels": ["namespace", "job"], "separator": "/", "targetLabel": "job"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_the_alerts_right() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", ALERT_TESTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

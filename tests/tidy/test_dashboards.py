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

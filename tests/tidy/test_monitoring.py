"""deploy/kubernetes/monitoring has the alerts of deploy/prometheus, and a scrape that fits them."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
FOLDER = ROOT / "deploy" / "kubernetes" / "monitoring"
RULE = FOLDER / "prometheusrule.yaml"
HEAD = """\
# deploy/prometheus/alerts.yaml as an object of the Prometheus operator: python -m tests.tidy.test_monitoring
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sea-mq-worker
  labels:
    app.kubernetes.io/name: sea-mq-worker
spec:
"""


def rule() -> str:
    """Wrap the groups of alerts, as they are written."""
    _, groups, text = ALERTS.read_text().partition("groups:\n")
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in (groups + text).splitlines(True))


def test_the_rule_holds_the_alerts_as_they_are() -> None:
    assert RULE.read_text() == rule(), "run python -m tests.tidy.test_monitoring"


def test_the_rule_has_the_fields_that_the_operator_knows() -> None:
    made: dict[str, Any] = yaml.safe_load(RULE.read_text())
    assert made["spec"] == yaml.safe_load(ALERTS.read_text())
    for group in made["spec"]["groups"]:
        assert group.keys() == {"name", "rules"}
        for alert in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= alert.keys()
            assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}


def test_services_of_the_same_name_in_two_namespaces_are_two_jobs() -> None:
    [endpoint] = yaml.safe_load((FOLDER / "servicemonitor.yaml").read_text())["spec"]["endpoints"]
    [relabeling] = endpoint["relabelings"]
    assert relabeling == {"sourceLabels": ["namespace", "job"], "separator": "/", "targetLabel": "job"}


if __name__ == "__main__":
    RULE.write_text(rule())

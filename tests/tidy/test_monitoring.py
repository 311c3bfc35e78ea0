"""deploy/kubernetes/monitoring has the alerts of deploy/prometheus, and a scrape that fits them."""

from typing import Any

import yaml

from tools.docs.pages import ALERTS, PROMETHEUS_RULE


def test_the_rule_has_the_fields_that_the_operator_knows() -> None:
    made: dict[str, Any] = yaml.safe_load(PROMETHEUS_RULE.read_text())
    assert made["spec"] == yaml.safe_load(ALERTS.read_text())
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

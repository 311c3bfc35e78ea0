"""The alerts of deploy/prometheus as an object of the Prometheus operator."""

from pathlib import Path

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
_HEAD = """\
# deploy/prometheus/alerts.yaml as an object of the Prometheus operator, made by: python -m tools.docs
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sea-mq-worker
  labels:
    app.kubernetes.io/name: sea-mq-worker
spec:
"""


def prometheus_rule() -> str:
    """Wrap the groups of alerts, as they are written."""
    _, groups, text = ALERTS.read_text().partition("groups:\n")
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in (groups + text).splitlines(True))

"""Every generated file and what makes it: the one place that knows their paths."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks import figures, results
from tools.docs import cli, proofs, schema, tables
from tools.docs.markdown import Text, sections, whole

ROOT = Path(__file__).parents[2]
_REFERENCE, _PROOF = ROOT / "docs" / "reference", ROOT / "docs" / "proof"

CONFIGURATION = _REFERENCE / "configuration.md"
CLI, CLI_SCHEMA = _REFERENCE / "cli.md", _REFERENCE / "cli.schema.json"
PAGE = _REFERENCE / "page.md"
DOCTOR = _REFERENCE / "doctor.md"
TELEMETRY = _REFERENCE / "telemetry.md"
SCHEMA = _REFERENCE / "schema.md"
CONFORMANCE, FAULTS = _PROOF / "conformance.md", _PROOF / "faults.md"
BENCHMARKS, PEERS = _PROOF / "benchmarks.md", _PROOF / "benchmarks-peers.md"
PIPELINE = _PROOF / "benchmarks-pipeline.md"
FAILOVER = _PROOF / "failover.md"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PROMETHEUS_RULE = ROOT / "deploy" / "kubernetes" / "monitoring" / "prometheusrule.yaml"
_HEAD_OF_THE_RULE = """\
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
    """Return the alerts, as they are written, as an object of the Prometheus operator."""
    _, groups, text = ALERTS.read_text().partition("groups:\n")
    return _HEAD_OF_THE_RULE + "".join(
        f"  {line}" if line.strip() else line for line in (groups + text).splitlines(True)
    )


PAGES: Mapping[Path, Text] = {
    CONFIGURATION: sections(settings=tables.list_of_settings),
    CLI: sections(commands=cli.list_of_commands),
    CLI_SCHEMA: whole(cli.schema),
    PAGE: sections(routes=tables.routes),
    DOCTOR: sections(findings=tables.list_of_findings),
    TELEMETRY: sections(
        metrics=tables.metrics,
        pipeline_metrics=tables.pipeline_metrics,
        spans=tables.spans,
        resource=tables.resource,
        events=tables.events,
    ),
    SCHEMA: sections(schema=schema.tables_and_functions),
    CONFORMANCE: proofs.with_tests_of_clauses,
    FAULTS: proofs.with_tests_of_faults,
    BENCHMARKS: sections(results=results.of_the_worker),
    PEERS: sections(results=results.of_relays),
    PIPELINE: sections(results=results.of_the_pipeline),
    FAILOVER: sections(kills=results.of_takeovers),
    **{figures.FOLDER / f"{name}.svg": whole(draw) for name, draw in figures.pictures().items()},
    PROMETHEUS_RULE: whole(prometheus_rule),
}


def stale(pages: Mapping[Path, Text]) -> dict[Path, str]:
    """Return the files that differ from what the code says, with the text that they should hold."""
    current = {path: path.read_text() if path.exists() else "" for path in pages}
    expected = {path: pages[path](text) for path, text in current.items()}
    return {path: text for path, text in expected.items() if text != current[path]}

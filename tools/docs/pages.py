"""Every generated file and what makes it: the one place that knows their paths."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks import figures, results
from tools.docs import admin, alerts, budgets, cli, doctor, proofs, schema, settings, telemetry
from tools.docs.markdown import Text, sections, whole

ROOT = Path(__file__).parents[2]
_REFERENCE, _PROOF = ROOT / "docs" / "reference", ROOT / "docs" / "proof"

CONFIGURATION = _REFERENCE / "configuration.md"
CLI, CLI_SCHEMA = _REFERENCE / "cli.md", _REFERENCE / "cli.schema.json"
PAGE, PAGE_SCHEMA = _REFERENCE / "page.md", _REFERENCE / "admin.schema.json"
DOCTOR = _REFERENCE / "doctor.md"
TELEMETRY = _REFERENCE / "telemetry.md"
SCHEMA = _REFERENCE / "schema.md"
FAULTS = _PROOF / "faults.md"
BUDGETS = _PROOF / "budgets.md"
BENCHMARKS, PEERS = _PROOF / "benchmarks.md", _PROOF / "benchmarks-peers.md"
PIPELINE = _PROOF / "benchmarks-pipeline.md"
FAILOVER = _PROOF / "failover.md"
PROMETHEUS_RULE = ROOT / "deploy" / "kubernetes" / "monitoring" / "prometheusrule.yaml"

PAGES: Mapping[Path, Text] = {
    CONFIGURATION: sections(settings=settings.table_of_settings),
    CLI: sections(commands=cli.table_of_commands),
    CLI_SCHEMA: whole(cli.schema),
    PAGE: sections(routes=admin.table_of_routes),
    PAGE_SCHEMA: whole(admin.schema),
    DOCTOR: sections(findings=doctor.table_of_findings),
    TELEMETRY: sections(
        metrics=telemetry.metrics,
        pipeline_metrics=telemetry.pipeline_metrics,
        spans=telemetry.spans,
        resource=telemetry.resource,
        events=telemetry.events,
    ),
    SCHEMA: sections(schema=schema.tables_and_functions),
    FAULTS: proofs.with_tests_of_faults,
    BUDGETS: sections(budgets=budgets.table_of_budgets),
    BENCHMARKS: sections(results=results.of_the_worker),
    PEERS: sections(results=results.of_relays),
    PIPELINE: sections(results=results.of_the_pipeline),
    FAILOVER: sections(kills=results.of_takeovers),
    **{figures.FOLDER / f"{name}.svg": whole(draw) for name, draw in figures.pictures().items()},
    PROMETHEUS_RULE: whole(alerts.prometheus_rule),
}


def stale(pages: Mapping[Path, Text]) -> dict[Path, str]:
    """Return the files that differ from what the code says, with the text that they should hold."""
    current = {path: path.read_text() if path.exists() else "" for path in pages}
    expected = {path: pages[path](text) for path, text in current.items()}
    return {path: text for path, text in expected.items() if text != current[path]}

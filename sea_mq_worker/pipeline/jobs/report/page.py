"""The report as one HTML file that needs no network.

Types, keys, reasons and subjects are untrusted text. All of it is escaped, and the page's policy runs only
its own two scripts, which it names by their hashes.
"""

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template

from sea_mq_worker.pipeline.jobs.report.formatting import duration, moment, printable
from sea_mq_worker.pipeline.jobs.report.model import Report
from sea_mq_worker.pipeline.jobs.report.plots import Plot
from sea_mq_worker.pipeline.jobs.report.sections import footer, overview, parts


def page(report: Report, *, title: str | None = None) -> str:
    """Return the whole page.

    Args:
        report: the figures.
        title: the heading; by default it names the context.
    """
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - the library's text is 5 MB

    plots: dict[str, Plot] = {}
    content = overview(report) + "".join(part(report, plots) for part in parts)
    library, script = get_plotlyjs(), _text("report.js")
    return Template(_text("report.html")).substitute(
        title=escape(printable(title or f"Events of {report.context}")),
        subtitle=escape(_subtitle(report)),
        policy=_policy(library, script),
        content=content,
        footer=footer(report),
        plots=_json(plots),
        library=library,
        script=script,
    )


def _subtitle(report: Report) -> str:
    length = duration((report.until - report.since).total_seconds())
    return (
        f"{moment(report.since)} to {moment(report.until)} UTC ({length}). Context {report.context}, "
        f"tables as of {moment(report.at)} UTC. All times are UTC."
    )


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(plots: dict[str, Plot]) -> str:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(plots, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

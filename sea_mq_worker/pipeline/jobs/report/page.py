"""The report as one HTML file that needs no network and runs no script.

Types, keys, reasons and subjects are untrusted text: the template escapes all of it.
"""

from pathlib import Path
from uuid import uuid4

from jinja2 import Environment, PackageLoader, StrictUndefined

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report.findings import findings
from sea_mq_worker.pipeline.jobs.report.formatting import duration, moment, number, printable, share, size
from sea_mq_worker.pipeline.jobs.report.model import ATTEMPTS_MAX, Report
from sea_mq_worker.pipeline.jobs.report.timelines import Timelines

_GENERATOR = b'<meta name="generator" content="sea_mq_worker report">'
_HEAD_BYTES = 2048
_SHOWN = {
    "latest": moment,
    "oldest_seconds": duration,
    "size": size,
    "attempts": lambda n: f"{n} or more" if n == ATTEMPTS_MAX else n,
}


def page(report: Report, *, title: str | None = None) -> str:
    """Return the whole page; by default its heading names the context."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (duration, moment, number, printable, share, size)
    environment.filters |= {each.__name__: each for each in formats}
    return environment.get_template("report.html").render(
        title=title or f"Events of {report.context}",
        report=report,
        findings=findings(report),
        timelines=Timelines(report),
        shown=_SHOWN,
    )


def write_page(text: str, path: Path) -> None:
    """Write the complete page, or leave the file unchanged.

    Raises:
        PipelineError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: the report cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def is_replaceable(path: Path) -> bool:
    """Return whether writing here replaces nothing except an earlier report."""
    if not path.exists():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)

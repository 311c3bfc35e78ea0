"""The report as one HTML file that needs no network and runs no script, with plots by matplotlib.

Types, keys, reasons and subjects are untrusted text: the template escapes all of it, and no plot contains it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report import ATTEMPTS_MAX, Group, Report, Way

Level: TypeAlias = Literal["bad", "warn", "good"]

_WAIT_SECONDS, _SLOW_SECONDS, _RETRIED_SHARE = 600.0, 60.0, 0.05
_WAYS: tuple[tuple[Way, str, str], ...] = (
    ("outbox", "published", "occurrence"),
    ("inbox", "processed", "receipt"),
)
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_TICKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
_GENERATOR = b'<meta name="generator" content="sea_mq_worker report">'
_HEAD_BYTES = 2048
_COLOURS = ("#2f7ed8", "#d9822b", "#d64562", "#8a63d2", "#2fa37c", "#1597a5")
_TEXT = "#010203"
"""Colour that stands for the page's text colour, whether the page is light or dark."""

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _TEXT, "axes.labelcolor": _TEXT, "text.color": _TEXT,
    "xtick.color": _TEXT, "ytick.color": _TEXT, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.15, "grid.color": _TEXT, "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none", "timezone": "UTC", "date.converter": "concise",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One line of the summary; ``command`` shows more."""

    level: Level
    text: str
    command: str = ""


def page(report: Report, title: str | None = None) -> str:
    """Return the whole page; by default its heading names the context."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (duration, moment, printable, share, size)
    environment.filters |= {each.__name__: each for each in filters} | {"number": "{:,}".format}
    lines = {kind: _by_name(getattr(report, kind)) for kind in ("dead_letter_bins", "stream_bins")}
    return environment.get_template("report.html").render(
        title=title or f"Events of {report.context}",
        report=report,
        findings=findings(report),
        attempts_max=ATTEMPTS_MAX,
        plot=lambda title, **names: _plot(
            report,
            title,
            {name: {each.at: getattr(each, at) for each in report.bins} for at, name in names.items()},
        ),
        groups=lambda title, kind, seconds=0: _plot(report, title, lines[kind], seconds=seconds),
        latencies=lambda title, way: _plot(report, title, _percentiles(report, way), logarithmic=True),
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
    if not path.is_file():
        return not path.exists()
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)


def findings(report: Report) -> list[ReportFinding]:
    """Return the problems, the worst first; if there are none, one line that says so."""
    if found := sorted(_problems(report), key=lambda finding: finding.level != "bad"):
        return found
    totals = report.totals
    if totals.written + totals.published + totals.received + totals.processed:
        return [ReportFinding("good", "Nothing is dead, nothing has waited long, and retries are rare.")]
    return [ReportFinding("good", "Nothing was written, published, received or processed in this period.")]


def _problems(report: Report) -> Iterator[ReportFinding]:
    totals = report.totals
    if dead := totals.dead:
        text = f"{_events(dead)} of {totals.written:,} written will not be published: DEAD, most by"
        yield ReportFinding("bad", f"{text} “{report.dead[0].name}”.", "outbox list --state DEAD")
    if letters := totals.dead_letters:
        most = report.dead_letters[0]
        text = f"{letters:,} dead letter{'s' * (letters > 1)}, most {most.name} on {most.detail}."
        yield ReportFinding("bad", text, "dlq list")
    for way, done, begin in _WAYS:
        waiting = [each for each in report.backlog if each.name.startswith(way)]
        oldest = max((each.oldest_seconds for each in waiting), default=0.0)
        if oldest > _WAIT_SECONDS:
            text = f"{_events(sum(each.count for each in waiting))} waited to be {done}, the oldest for"
            yield ReportFinding("bad", f"{text} {duration(oldest)}.", f"{way} list")
        retried, count = getattr(totals, f"{way}_retried"), getattr(totals, done)
        if retried > _RETRIED_SHARE * count:
            text = f"{share(retried, count)} of the events {done} took more than one attempt."
            yield ReportFinding("warn", text)
        latency = report.latency(way)
        if latency and latency.p99 > _SLOW_SECONDS:
            text = f"One event in a hundred took over {duration(latency.p99)} from its {begin}"
            yield ReportFinding("warn", f"{text} until it was {done}.")


def _events(count: int) -> str:
    return f"{count:,} event{'s' * (count != 1)}"


def _percentiles(report: Report, way: Way) -> dict[str, dict[datetime, float]]:
    bins = [each for each in report.latencies if each.way == way and each.at]
    names = ("p50", "p95", "p99", "longest") if bins else ()
    return {name: {each.at: getattr(each, name) for each in bins if each.at} for name in names}


def _by_name(groups: Sequence[Group]) -> dict[str, Counter[datetime]]:
    """Return the counts of the most frequent names and of all others; a plot has six colours."""
    totals: Counter[str] = Counter()
    for each in groups:
        totals[each.name] += each.count
    named = len(_COLOURS) if len(totals) <= len(_COLOURS) else len(_COLOURS) - 1
    largest = dict(totals.most_common(named))
    found: dict[str, Counter[datetime]] = defaultdict(Counter)
    for each in groups:
        if each.at:
            found[each.name if each.name in largest else "others"][each.at] += each.count
    return found


def _plot(
    report: Report,
    title: str,
    lines: Mapping[str, Mapping[datetime, float]],
    *,
    seconds: int = 0,
    logarithmic: bool = False,
) -> Mapping[str, Any] | None:
    """Return a plot and its table as the template needs them; None: there is nothing to show."""
    times = sorted({at for values in lines.values() for at, value in values.items() if value or logarithmic})
    if not times:
        return None
    seconds = seconds or report.bin_seconds
    first = int(report.since.timestamp()) // seconds * seconds
    edges = [datetime.fromtimestamp(first, UTC)]
    while edges[-1] < report.until:
        edges.append(edges[-1] + timedelta(seconds=seconds))
    written = duration if logarithmic else "{:,.0f}".format
    absent = nan if logarithmic else 0.0  # nothing is a gap among durations
    with mpl.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(7.5, 2.6), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot(facecolor="none")
        places: Any = edges  # matplotlib's types lack times
        for colour, values in zip(_COLOURS, lines.values(), strict=False):
            heights = [max(values.get(at, absent), 0.001 if logarithmic else 0) for at in edges[:-1]]
            axes.stairs(heights, places, baseline=None, color=colour, linewidth=1.5)
        axes.set_xlim(places[0], places[-1])
        if logarithmic:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            axes.set_yticks([tick for tick in _TICKS if low <= tick <= high], minor=False)
            axes.minorticks_off()
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: written(value))
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    rows = [[moment(at), *(written(values.get(at, 0)) for values in lines.values())] for at in times]
    heads = dict(zip(lines, _COLOURS, strict=False))
    return {"title": title, "svg": _inline(drawn.getvalue()), "heads": heads, "rows": rows}


def _inline(svg: str) -> Markup:
    """Return matplotlib's file as an element of a page: without identifiers that repeat, and shorter."""
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    svg = re.sub(r"<(style|metadata)\b.*?</\1>\s*|<defs>\s*</defs>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]).replace("\n", ""), svg)
    svg = re.sub(r"<svg [^>]*(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 aria-hidden="true">', svg, count=1)
    return Markup(svg.replace(_TEXT, "currentColor"))  # noqa: S704 - no text of an event is in it


def duration(seconds: float) -> str:
    """Write seconds in the largest unit that gives at least 1."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds * 1000)} ms"


def size(count: float) -> str:
    """Write bytes in kB, MB and so on, in steps of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the step from unit to unit
            return f"{_short(count)} {unit}"
        count /= 1000
    return f"{_short(count)} TB"


def share(part: int, whole: int) -> str:
    """Write a part as a percentage; only an empty part is 0 %."""
    percent = 100 * part / whole if whole else 0
    return "< 0.1 %" if 0 < percent < 0.1 else f"{_short(percent)} %"  # noqa: PLR2004 - one decimal is shown


def moment(at: datetime) -> str:
    """Write a time in UTC, without the zone."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def printable(text: str) -> str:
    """Escape control characters and characters that change the reading direction."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 and value != int(value) else f"{value:,.0f}"  # noqa: PLR2004

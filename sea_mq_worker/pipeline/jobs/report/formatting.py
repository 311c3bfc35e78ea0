"""Format figures with units, and list the findings that an operator should read first."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from sea_mq_worker.pipeline.jobs.report.model import Report, Way

Level: TypeAlias = Literal["bad", "warn", "good"]

_WAIT_SECONDS = 600.0
_SLOW_SECONDS = 60.0
_RETRIED_SHARE = 0.05
_DURATIONS = ((86_400.0, 86_400.0, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (1.0, 1.0, "s"))
_STEPS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_FEW = 10
_MANY = 100


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One line of the summary; ``command`` shows more."""

    level: Level
    text: str
    command: str = ""


def findings(report: Report) -> list[ReportFinding]:
    """Return the problems, the worst first; if there are none, one line that says so."""
    found = [*_dead(report), *_waiting(report), *_retried(report), *_slow(report)]
    if found:
        return sorted(found, key=lambda finding: finding.level != "bad")
    totals = report.totals
    if not any((totals.written, totals.published, totals.received, totals.processed)):
        return [
            ReportFinding("good", "Nothing was written, published, received or processed in this period.")
        ]
    return [ReportFinding("good", "Nothing is dead, nothing has waited long, and retries are rare.")]


def number(value: int) -> str:
    """Write 12345 as 12,345."""
    return f"{value:,}"


def counted(value: int, one: str) -> str:
    """Write 1 as `1 event`, 2 as `2 events`."""
    return f"{value:,} {one}" if value == 1 else f"{value:,} {one}s"


def share(part: int, whole: int) -> str:
    """Write a part as a percentage; only an empty part is 0 %."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.1:  # noqa: PLR2004 - what is shown has one decimal
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < _FEW else f"{percent:.0f} %"


def duration(seconds: float) -> str:
    """Write seconds in the largest unit that gives at least 1."""
    for limit, unit, name in _DURATIONS:
        if seconds >= limit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds * 1000)} ms"


def size(count: int) -> str:
    """Write bytes in kB, MB and so on, in steps of 1000."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - the step from unit to unit
            return f"{value:.0f} B" if unit == "B" else f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} TB"


def moment(at: datetime) -> str:
    """Write a time in UTC, without the zone."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def step(seconds: int) -> str:
    """Write the length of a bin, as in `events per 5 minutes`."""
    length, name = next((length, name) for length, name in _STEPS if seconds % length == 0)
    times = seconds // length
    return name if times == 1 else f"{times} {name}s"


def printable(text: str) -> str:
    """Escape control characters and characters that change the reading direction."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < _MANY and value != int(value) else f"{value:,.0f}"


def _dead(report: Report) -> Iterator[ReportFinding]:
    totals = report.totals
    if totals.dead:
        text = (
            f"{counted(totals.dead, 'event')} of {number(totals.written)} written will not be published: DEAD"
        )
        yield ReportFinding("bad", f"{text}, most by “{report.dead[0].reason}”.", "outbox list --state DEAD")
    if report.dead_letter_count:
        most = report.dead_letters[0]
        text = f"{counted(report.dead_letter_count, 'dead letter')}, most {most.reason} on {most.subject}."
        yield ReportFinding("bad", text, "dlq list")


def _waiting(report: Report) -> Iterator[ReportFinding]:
    ways: tuple[tuple[Way, str, str], ...] = (
        ("outbox", "to be published", "outbox list"),
        ("inbox", "to be processed", "inbox list"),
    )
    for way, what, command in ways:
        open_ = [each for each in report.backlog if each.way == way]
        oldest = max((each.oldest_seconds for each in open_), default=0.0)
        if oldest > _WAIT_SECONDS:
            text = f"{counted(sum(each.count for each in open_), 'event')} waited {what}, "
            yield ReportFinding("bad", f"{text}the oldest for {duration(oldest)}.", command)


def _retried(report: Report) -> Iterator[ReportFinding]:
    totals = report.totals
    for retried, done, what in (
        (totals.outbox_retried, totals.published, "published"),
        (totals.inbox_retried, totals.processed, "processed"),
    ):
        if retried > _RETRIED_SHARE * done:
            yield ReportFinding(
                "warn", f"{share(retried, done)} of the events {what} took more than one attempt."
            )


def _slow(report: Report) -> Iterator[ReportFinding]:
    ways: tuple[tuple[Way, str], ...] = (
        ("outbox", "from its occurrence until it was published"),
        ("inbox", "from its receipt until it was processed"),
    )
    for way, what in ways:
        latency = report.latency(way)
        if latency and latency.p99 > _SLOW_SECONDS:
            yield ReportFinding("warn", f"One event in a hundred took over {duration(latency.p99)} {what}.")

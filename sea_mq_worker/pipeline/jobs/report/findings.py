"""Find the problems that an operator should read first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sea_mq_worker.pipeline.jobs.report.formatting import counted, duration, share
from sea_mq_worker.pipeline.jobs.report.model import Report, Way

Level: TypeAlias = Literal["bad", "warn", "good"]

_WAIT_SECONDS = 600.0
_SLOW_SECONDS = 60.0
_RETRIED_SHARE = 0.05
_WAYS: tuple[tuple[Way, str, str], ...] = (
    ("outbox", "published", "occurrence"),
    ("inbox", "processed", "receipt"),
)


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One line of the summary; ``command`` shows more."""

    level: Level
    text: str
    command: str = ""


def findings(report: Report) -> list[ReportFinding]:
    """Return the problems, the worst first; if there are none, one line that says so."""
    found = [*_dead(report), *_waiting(report), *_slow(report)]
    if found:
        return sorted(found, key=lambda finding: finding.level != "bad")
    totals = report.totals
    if not any((totals.written, totals.published, totals.received, totals.processed)):
        return [
            ReportFinding("good", "Nothing was written, published, received or processed in this period.")
        ]
    return [ReportFinding("good", "Nothing is dead, nothing has waited long, and retries are rare.")]


def _dead(report: Report) -> Iterator[ReportFinding]:
    if dead := report.totals.dead:
        text = f"{counted(dead, 'event')} of {report.totals.written:,} written will not be published: DEAD"
        yield ReportFinding("bad", f"{text}, most by “{report.dead[0].reason}”.", "outbox list --state DEAD")
    if report.dead_letter_count:
        most = report.dead_letters[0]
        text = f"{counted(report.dead_letter_count, 'dead letter')}, most {most.reason} on {most.subject}."
        yield ReportFinding("bad", text, "dlq list")


def _waiting(report: Report) -> Iterator[ReportFinding]:
    for way, done, _ in _WAYS:
        open_ = [each for each in report.backlog if each.way == way]
        oldest = max((each.oldest_seconds for each in open_), default=0.0)
        if oldest > _WAIT_SECONDS:
            text = f"{counted(sum(each.count for each in open_), 'event')} waited to be {done}, "
            yield ReportFinding("bad", f"{text}the oldest for {duration(oldest)}.", f"{way} list")


def _slow(report: Report) -> Iterator[ReportFinding]:
    for way, done, _ in _WAYS:
        retried, count = getattr(report.totals, f"{way}_retried"), getattr(report.totals, done)
        if retried > _RETRIED_SHARE * count:
            text = f"{share(retried, count)} of the events {done} took more than one attempt."
            yield ReportFinding("warn", text)
    for way, done, begin in _WAYS:
        latency = report.latency(way)
        if latency and latency.p99 > _SLOW_SECONDS:
            text = f"One event in a hundred took over {duration(latency.p99)} from its {begin}"
            yield ReportFinding("warn", f"{text} until it was {done}.")

"""Find the problems that an operator should read first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sea_mq_worker.pipeline.jobs.report.formatting import counted, duration, number, share
from sea_mq_worker.pipeline.jobs.report.model import Report, Way

Level: TypeAlias = Literal["bad", "warn", "good"]

_WAIT_SECONDS = 600.0
_SLOW_SECONDS = 60.0
_RETRIED_SHARE = 0.05


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

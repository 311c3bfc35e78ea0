"""Figures of a report, full of text that is meant to break a page."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sea_mq_worker.pipeline.jobs.report import Bin, Group, LatencyFigures, Report, Totals

SINCE = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = (
    "</script><script>alert(1)</script><b onclick=alert(2)>&amp;<a href='http://evil.example/'>%{y}</a>\u202e"
)


def empty_report() -> Report:
    """Return the result for empty tables and streams."""
    until = SINCE + timedelta(minutes=3)
    return Report(
        context="sea",
        at=until,
        since=SINCE,
        until=until,
        bin_seconds=60,
        totals=Totals(),
        bins=[Bin(at=SINCE + timedelta(minutes=n)) for n in range(3)],
    )


def hostile_report() -> Report:
    """Return a report in which every part has something, named by somebody who means harm."""
    nothing = empty_report()
    bins = [
        Bin(at=each.at, written=9, published=7, received=5, processed=4, outbox_retried=2, inbox_retried=1)
        for each in nothing.bins
    ]
    times = (None, *(each.at for each in bins))
    return replace(
        nothing,
        dead_letter_source="SEA_DLQ",
        totals=Totals(
            written=27, written_bytes=2700, published=21, outbox_retried=6, dead=3, received=15,
            processed=12, inbox_retried=3, dead_lettered=2, dead_letters=2, keys=1, types=1,
        ),
        bins=bins,
        latencies=[
            LatencyFigures(way=way, at=at, count=7, p50=0.02, p95=0.5, p99=90.0, longest=100.0)
            for way in ("outbox", "inbox")
            for at in times
        ],
        attempts=[Group("outbox", str(n), 27 - n) for n in (1, 2, 20)],
        dead=[Group(HOSTILE, HOSTILE, 3)],
        dead_letters=[Group(HOSTILE, HOSTILE, 2, latest=SINCE)],
        dead_letter_bins=[Group(HOSTILE, "", 2, at=SINCE)],
        keys=[Group(HOSTILE, "", 20, 2000)],
        types=[Group(HOSTILE, "", 27, 2700)],
        backlog=[Group("outbox PENDING", "over 1 day", 3, oldest_seconds=90_000.0)],
    )  # fmt: skip


def busy_report() -> Report:
    """Return a report with as many bins as there can be, each with a value in every plot."""
    report = hostile_report()
    times = [SINCE + timedelta(minutes=n) for n in range(240)]
    return replace(
        report,
        until=times[-1] + timedelta(minutes=1),
        lake=True,
        bins=[replace(report.bins[0], at=at, written=900 + n) for n, at in enumerate(times)],
        latencies=[
            replace(each, at=at) for each in report.latencies if each.at is None for at in (None, *times)
        ],
        dead_letter_bins=[Group("REJECTED", "", n, at=at) for n, at in enumerate(times, 1)],
        stream_bins=[Group("sea", "", n, at=at) for n, at in enumerate(times, 1)],
    )

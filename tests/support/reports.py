"""Figures of a report, full of text that is meant to break a page."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from sea_mq_worker.pipeline.jobs.report.model import (
    Attempts,
    BacklogCount,
    Bin,
    Dead,
    DeadLetterBin,
    DeadLetters,
    LatencyFigures,
    Report,
    Share,
    Shares,
    StreamBin,
    Totals,
)

SINCE = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = (
    "</script><script>alert(1)</script><b onclick=alert(2)>&amp;<a href='http://evil.example/'>%{y}</a>\u202e"
)
_NOTHING = Shares(largest=[], distinct=0)


def empty_report() -> Report:
    """Return the result for empty tables and streams."""
    return Report(
        context="sea",
        at=SINCE + timedelta(minutes=3),
        since=SINCE,
        until=SINCE + timedelta(minutes=3),
        bin_seconds=60,
        lake=False,
        dead_letter_source=None,
        totals=Totals(**dict.fromkeys((field.name for field in fields(Totals)), 0)),
        bins=[Bin(at=SINCE + timedelta(minutes=n)) for n in range(3)],
        latencies=[],
        attempts=[],
        dead=[],
        dead_letters=[],
        dead_letter_count=0,
        dead_letter_bins=[],
        keys=_NOTHING,
        types=_NOTHING,
        backlog=[],
        stream_bins=[],
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
            written=27, written_bytes=2700, published=21, outbox_retried=6, dead=3,
            received=15, processed=12, inbox_retried=3, dead_lettered=2, archived=0,
        ),
        bins=bins,
        latencies=[
            LatencyFigures(way=way, at=at, count=7, p50=0.02, p95=0.5, p99=90.0, longest=100.0)
            for way in ("outbox", "inbox")
            for at in times
        ],
        attempts=[Attempts(way="outbox", attempts=n, count=27 - n) for n in (1, 2, 20)],
        dead=[Dead(reason=HOSTILE, event_type=HOSTILE, count=3)],
        dead_letters=[DeadLetters(reason=HOSTILE, subject=HOSTILE, count=2, latest=SINCE)],
        dead_letter_count=2,
        dead_letter_bins=[DeadLetterBin(at=SINCE, reason=HOSTILE, count=2)],
        keys=Shares(largest=[Share(name=HOSTILE, count=20, size=2000)], distinct=1),
        types=Shares(largest=[Share(name=HOSTILE, count=27, size=2700)], distinct=1),
        backlog=[
            BacklogCount(way="outbox", state="PENDING", age="over 1 day", count=3, oldest_seconds=90_000.0)
        ],
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
        dead_letter_bins=[DeadLetterBin(at=at, reason="REJECTED", count=n) for n, at in enumerate(times, 1)],
        stream_bins=[StreamBin(at=at, context="sea", count=n) for n, at in enumerate(times, 1)],
    )

"""Plots as data for plotly.js; the page adds the colours, for light or dark mode."""

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sea_mq_worker.pipeline.jobs.report.formatting import counted, duration, number, printable, step
from sea_mq_worker.pipeline.jobs.report.model import AGES, Bin, Report, Way

Plot: TypeAlias = dict[str, Any]
"""``traces``, each with ``colour`` 0 to 9; titles ``x``, ``y``; ``bars``, ``ticks`` as needed; ``dates`` if
``x`` is time: the bins' length in seconds."""

_LEAST_SECONDS = 0.001
_LABEL_MAX = 28
_TICKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)
_FINE_TICKS = (
    *(step * power for power in (0.001, 0.01, 0.1, 1) for step in (1, 1.5, 2, 3, 5, 7)),
    *(10, 15, 20, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 18_000, 36_000, 86_400),
)
_FINE_UP_TO = 20.0
"""Fine ticks are used up to this ratio of the longest to the shortest duration."""


def throughput(report: Report, way: Way) -> Plot:
    """Plot events written and published, or messages received and processed, by bin."""
    names = ("written", "published") if way == "outbox" else ("received", "processed")
    unit = "events" if way == "outbox" else "messages"
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "colour": colour,
            "fill": "tozeroy" if not colour else "none",
            "x": _times(report.bins),
            "y": [getattr(each, name) for each in report.bins],
            "hovertemplate": "%{y:,} " + name + "<extra></extra>",
        }
        for colour, name in enumerate(names)
    ]
    return {"traces": traces, "y": f"{unit} per {step(report.bin_seconds)}", "dates": report.bin_seconds}


def latencies(report: Report, way: Way) -> Plot:
    """Plot percentiles by bin, on a logarithmic scale labelled in common units."""
    by_bin = {each.at: each for each in report.latencies if each.way == way and each.at is not None}
    traces: list[dict[str, Any]] = []
    for colour, name in ((2, "p50"), (3, "p95"), (4, "p99")):
        seconds = [getattr(by_bin[each.at], name) if each.at in by_bin else None for each in report.bins]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "colour": colour,
                "x": _times(report.bins),
                "y": [None if each is None else max(each, _LEAST_SECONDS) for each in seconds],
                "text": ["" if each is None else duration(each) for each in seconds],
                "hovertemplate": name + " %{text}<extra></extra>",
            }
        )
    shown = [each for trace in traces for each in trace["y"] if each is not None]
    is_narrow = shown and max(shown) <= _FINE_UP_TO * min(shown)
    ticks = [[tick, duration(tick)] for tick in (_FINE_TICKS if is_narrow else _TICKS)]
    return {"traces": traces, "y": "duration", "ticks": ticks, "dates": report.bin_seconds}


def attempts(report: Report) -> Plot:
    """Plot the number of attempts of retried events and messages."""
    most = max((each.attempts for each in report.attempts), default=1)
    ways: tuple[tuple[Way, str, int], ...] = (("outbox", "published", 1), ("inbox", "processed", 5))
    return {
        "traces": [
            _bar(name, colour, [str(n) for n in range(2, most + 1)], _attempts(report, way, most))
            for way, name, colour in ways
        ],
        "y": "events",
        "x": "attempts",
        "bars": "group",
    }


def retries(report: Report) -> Plot:
    """Plot the times at which retried events and messages were published or processed."""
    times = _times(report.bins)
    return {
        "traces": [
            _bar("published after a retry", 1, times, [each.outbox_retried for each in report.bins]),
            _bar("processed after a retry", 5, times, [each.inbox_retried for each in report.bins]),
        ],
        "y": f"events per {step(report.bin_seconds)}",
        "bars": "stack",
        "dates": report.bin_seconds,
    }


def dead_letters(report: Report) -> Plot:
    """Plot dead letters by bin and reason."""
    times = [each.at for each in report.bins]
    reasons = list(dict.fromkeys(each.reason for each in report.dead_letter_bins))
    counts = {(each.at, each.reason): each.count for each in report.dead_letter_bins}
    return {
        "traces": [
            _bar(label(reason), 4 + n, _times(report.bins), [counts.get((at, reason), 0) for at in times])
            for n, reason in enumerate(reasons)
        ],
        "y": f"dead letters per {step(report.bin_seconds)}",
        "bars": "stack",
        "dates": report.bin_seconds,
    }


def backlog(report: Report) -> Plot:
    """Plot the backlog by age, coloured by state."""
    states = list(dict.fromkeys((each.way, each.state) for each in report.backlog))
    counts = {(each.way, each.state, each.age): each.count for each in report.backlog}
    return {
        "traces": [
            _bar(f"{way} {state.lower()}", n, list(AGES), [counts.get((way, state, age), 0) for age in AGES])
            for n, (way, state) in enumerate(states)
        ],
        "y": "events",
        "x": "age",
        "bars": "stack",
    }


def streams(report: Report) -> Plot:
    """Plot the messages that streams stored, by context."""
    seconds = max(60, report.bin_seconds)
    times = sorted({each.at for each in report.stream_bins})
    contexts = list(dict.fromkeys(each.context for each in report.stream_bins))
    counts = {(each.at, each.context): each.count for each in report.stream_bins}
    return {
        "traces": [
            _bar(
                label(context), n, [_time(at) for at in times], [counts.get((at, context), 0) for at in times]
            )
            for n, context in enumerate(contexts)
        ],
        "y": f"messages per {step(seconds)}",
        "bars": "stack",
        "dates": seconds,
    }


def describe(report: Report, names: Sequence[str]) -> str:
    """Describe a plot of counts by bin in a sentence, for screen readers."""
    sentences = []
    for name in names:
        most = max(report.bins, key=lambda each: getattr(each, name), default=None)
        if most is not None:
            total = sum(getattr(each, name) for each in report.bins)
            peak = f"most at {most.at:%Y-%m-%d %H:%M:%S} UTC, {number(getattr(most, name))}"
            sentences.append(f"{number(total)} {name}, {peak} per {step(report.bin_seconds)}")
    return "; ".join(sentences) or counted(0, "event")


def label(text: str) -> str:
    """Shorten untrusted text and escape it, since plotly reads tags and entities as markup."""
    shown = printable(text)
    cut = shown if len(shown) <= _LABEL_MAX else f"{shown[: _LABEL_MAX - 1]}…"
    return html.escape(cut, quote=False)


def _bar(name: str, colour: int, x: Sequence[str], y: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "colour": colour,
        "x": list(x),
        "y": list(y),
        "hovertemplate": "%{y:,} " + name.replace("%", "&#37;") + "<extra></extra>",
    }


def _attempts(report: Report, way: Way, most: int) -> list[int]:
    counts = {each.attempts: each.count for each in report.attempts if each.way == way}
    return [counts.get(n, 0) for n in range(2, most + 1)]


def _times(bins: Sequence[Bin]) -> list[str]:
    return [_time(each.at) for each in bins]


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"

"""The figures as text: for documents by ``python -m tools.docs``, and aligned for a terminal."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from textwrap import fill
from typing import Any

from benchmarks.comparison import OURS, STEADY, fastest_first, notes, soonest_first
from benchmarks.comparison import PROGRAMS as RELAY_PROGRAMS
from benchmarks.counters import PROGRAMS
from benchmarks.figures import (
    OWN_PICTURES,
    PEER_FILES,
    PEER_PICTURES,
    PIPELINE_FILES,
    PIPELINE_PICTURES,
    SWEEP,
    TAKEOVER_FILES,
    TAKEOVER_PICTURES,
    images,
    reports,
    seconds_after_kills,
)
from benchmarks.looks import MEASURES, PROCESSED, PUBLISHED
from benchmarks.pipeline_figures import table
from benchmarks.report import WORKER, by_subject
from benchmarks.sweep import MEASURES as SWEEP_MEASURES
from sea_mq_worker.cli import support as table_format

_LOOKS = "looks"
_FLOOR = "floor"
_MANY = {"median, ms": 100, "pages": 1_000}
"""A query with fewer of both has no row of its own."""
_EMPTY_MB = 0.01
_LOOK_MEASURES = [measure for measure in MEASURES if measure not in {"first, ms", "worst, ms"}]
_SERIES = re.compile(r" after [\d,]+ events|, (?:first|last) fifth|, p[\d.]+(?= ms)")
"""The part in which the names of a series of figures differ."""


def of_the_worker() -> str:
    """Return the section of docs/proof/benchmarks.md with the worker's figures."""
    return _text(_own(reports(("worker", "inboxes"))))


def of_relays() -> str:
    """Return the section of docs/proof/benchmarks-peers.md with all relays' figures."""
    return _text(_peers(reports(PEER_FILES)))


def of_takeovers() -> str:
    """Return the section of docs/proof/failover.md with what kills of workers cost."""
    return _text(line for report in reports(TAKEOVER_FILES) for line in _takeovers(report))


def of_the_pipeline() -> str:
    """Return the section of docs/proof/benchmarks-pipeline.md with the figures of the jobs."""
    return _text(line for report in reports(PIPELINE_FILES) for line in _pipeline(report))


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def on_terminal(lines: Iterable[str]) -> Iterator[str]:
    """Align the tables among the lines."""
    for in_table, part in groupby(lines, lambda line: line.startswith("|")):
        if in_table:
            head, _, *rows = (line[2:-2].split(" | ") for line in part)
            yield from table_format.table(head, rows, width=None)
        else:
            yield from part


def _own(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the pictures, and a row for each workload that is no condition of another."""
    yield from images(OWN_PICTURES)
    yield _measured_on(reports[0]["machine"])
    yield ""
    yield from _head("workload", "program", "rate/s", f"CPU s: {', '.join(PROGRAMS)}", "peak MB")
    for name, found in chain.from_iterable(report["workloads"].items() for report in reports):
        for program, median in found["median"].items():
            if program.startswith(_FLOOR):
                continue
            yield _row(
                *(name if program == WORKER else "", program),
                _ranged(median["rate"], *median["rates"], shape=",.0f"),
                _cpu_seconds(median),
                f"{median['peak_bytes'] / 1e6:,.0f}" if median["peak_bytes"] else "",
            )


def _cpu_seconds(median: Mapping[str, Any]) -> str:
    return ", ".join(f"{median['cpu_seconds_per_100000'][program]:.1f}" for program in PROGRAMS)


def of_workloads(workloads: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of a report by ``python -m benchmarks``."""
    looks, swept = workloads.get(_LOOKS), workloads.get(SWEEP)
    others = {name: found for name, found in workloads.items() if name not in {_LOOKS, SWEEP}}
    parts = (
        [*_medians(others), *_more(others)] if others else [],
        [*_swept(swept)] if swept else [],
        [*_looks(looks["median"][WORKER]["more"])] if looks else [],
    )
    for number, lines in enumerate(filter(None, parts)):
        yield from [""] if number else []
        yield from lines


def _measured_on(machine: Mapping[str, Any], rounds: int = 0) -> str:
    """Return when, on which machine and in how many rounds."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return fill(
        f"Measured on {machine['date']} at commit {machine['commit']}, on {machine['cpus']} processors"
        f" ({machine['processor']}), Python {machine['python']}, {packages}{_of_rounds(rounds)}.",
        width=120,
        break_on_hyphens=False,
    )


def _of_rounds(rounds: int) -> str:
    return {0: "", 1: ", in one round"}.get(rounds, f": medians of {rounds} rounds")


def _medians(workloads: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(
        *("workload", "program", "rounds", "rate/s", "worker's rate over it"),
        *(f"CPU s: {', '.join(PROGRAMS)}", "statements per 1,000", "WAL bytes each", "peak MB"),
    )
    for name, found in workloads.items():
        for program, median in found["median"].items():
            ratios = [median["worker_ratio"], *median["worker_ratios"]]
            yield _row(
                *(name, program, str(len(found["rounds"]))) if program == WORKER else ("", program, ""),
                _ranged(median["rate"], *median["rates"], shape=",.0f"),
                "" if program == WORKER else _ranged(*ratios, shape=".2f"),
                _cpu_seconds(median),
                f"{median['statements_per_1000']:.1f}",
                f"{median['wal_bytes_each']:,.0f}",
                f"{median['peak_bytes'] / 1e6:,.0f}" if median["peak_bytes"] else "",
            )


def _more(workloads: Mapping[str, Any]) -> list[str]:
    """Return the figures that only one workload has, without empty indexes; of a series first and last."""
    found = [
        (name, what, " to ".join(_short(value) for value in dict.fromkeys((values[0], values[-1]))))
        for name, workload in workloads.items()
        for median in workload["median"].values()
        for what, series in groupby(median["more"].items(), lambda figure: _SERIES.sub("", figure[0]))
        if (values := [value for _, value in series])
        and not (what.endswith(", MB") and max(values) < _EMPTY_MB)
    ]
    rows = [
        _row("" if number else name, *row[1:])
        for name, rows in groupby(found, itemgetter(0))
        for number, row in enumerate(rows)
    ]
    return ["", *_head("workload", "what else", "median"), *rows] if rows else []


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _looks(more: Mapping[str, float]) -> Iterator[str]:
    """Return time and pages of each query that takes long or reads much, and the most of the others."""
    yield f"Looks, beside {more[PUBLISHED]:,.0f} {PUBLISHED} and {more[PROCESSED]:,.0f} {PROCESSED}:"
    yield ""
    yield from _head("asked", *_LOOK_MEASURES)
    others = []
    for question, found in by_subject(more).items():
        if all(found[measure] < many for measure, many in _MANY.items()):
            others.append(found)
        else:
            yield _row(f"`{question}`", *(f"{found[measure]:,.0f}" for measure in _LOOK_MEASURES))
    if not others:
        return
    most = [max(found[measure] for found in others) for measure in _LOOK_MEASURES]
    yield ""
    yield f"{len(others)} others take at most {most[0]:,.0f} ms and read at most {most[1]:,.0f} pages."


def _swept(workload: Mapping[str, Any]) -> Iterator[str]:
    """Return a table of an event's cost and latency at each rate."""
    yield f"Steady rate sweep, of one event (rounds: {len(workload['rounds'])}):"
    yield ""
    yield from _head("rate", *SWEEP_MEASURES)
    for rate, found in by_subject(workload["median"][WORKER]["more"]).items():
        yield _row(
            rate, *(f"{found[m]:,.0f}" if found[m] >= 100 else f"{found[m]:.3g}" for m in SWEEP_MEASURES)
        )


def _peers(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from images(PEER_PICTURES)
    rounds = max(len(lane["rounds"]) for lanes in reports[0]["relays"].values() for lane in lanes.values())
    yield _measured_on(reports[0]["machine"], rounds)
    yield from _notes(*reports)


def of_comparison(report: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of a report by ``python -m benchmarks.peers``."""
    yield from _compared(report["relays"])
    yield from _notes(report)


def _notes(*reports: Mapping[str, Any]) -> Iterator[str]:
    remarks = dict.fromkeys(note for report in reports for note in notes(report))
    yield from ["", *(f"- {note}" for note in remarks)] if remarks else []


def _compared(relays: Mapping[str, Any]) -> Iterator[str]:
    if drains := {name: lanes for name, lanes in relays.items() if name != STEADY}:
        yield from _drained(drains)
    if STEADY in relays:
        yield from [""] if drains else []
        yield from _steady(relays[STEADY])


def _drained(relays: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(
        *("workload", "relay", "backlog", "events/s", "ours over it"),
        *(f"CPU s, {name}" for name in RELAY_PROGRAMS),
    )
    for workload, lanes in relays.items():
        for number, (name, lane) in enumerate(fastest_first(lanes)):
            rates = [drained["rate"] for drained in lane["rounds"].values()]
            yield _row(
                *("" if number else workload, name, f"{lane['events']:,}"),
                _ranged(lane["rate"], min(rates), max(rates), shape=",.0f"),
                _ranged(*lane["ours_is_times"], shape=".2f")
                if name != OURS and lane["ours_is_times"]
                else "",
                *(f"{lane['cpu_seconds_per_100000'][program]:.1f}" for program in RELAY_PROGRAMS),
            )


def _steady(lanes: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(
        *("steady rate, relay", "events/s", "p50 ms", "p99 ms", "max ms"),
        *(f"CPU s, {name}" for name in RELAY_PROGRAMS),
    )
    for name, lane in soonest_first(lanes):
        yield _row(
            *(name, f"{lane['rate']:,.0f}"),
            *(f"{lane['latency_ms'][percentile]:,.1f}" for percentile in ("p50", "p99", "max")),
            *(f"{lane['cpu_seconds_per_100000'][program]:.1f}" for program in RELAY_PROGRAMS),
        )


def _takeovers(report: Mapping[str, Any]) -> Iterator[str]:
    yield from images(TAKEOVER_PICTURES)
    yield _measured_on(report["machine"])
    yield ""
    yield from _consequences(report)


def of_kills(report: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of a report by ``python -m benchmarks.takeover``."""
    yield from _head("after the kill", "seconds until they move or are done", "kills", "p50", "p99", "worst")
    for way, measured in seconds_after_kills(report).items():
        for number, (name, s) in enumerate(measured.items()):
            figures = (f"{s['kills']}", *(f"{s[each]:.2f}" for each in ("p50", "p99", "worst")))
            yield _row("" if number else way, name, *figures)
    yield ""
    yield from _consequences(report)


def _consequences(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _head("after the kill", "lost", "doubled", "out of order", "repeated calls of the handler")
    for way, kills in report["ways"].items():
        counts = ("lost", "doubled", "out_of_order", "repeated_calls")
        yield _row(way, *(f"{kills[count]:,}" for count in counts))


def _pipeline(report: Mapping[str, Any]) -> Iterator[str]:
    yield from images(PIPELINE_PICTURES)
    yield _measured_on(report["machine"])
    yield ""
    head, *rows = table(report["sizes"])
    yield from _head(*head)
    yield from (_row(*row) for row in rows)


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _ranged(median: float, least: float, most: float, *, shape: str) -> str:
    texts = [f"{value:{shape}}" for value in (median, least, most)]
    return texts[0] if len({*texts}) == 1 else f"{texts[0]} ({texts[1]}-{texts[2]})"

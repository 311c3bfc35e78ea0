"""Texts and pictures of the figures in docs/proof/benchmarks, for ``python -m tools.docs``.

``peers.json`` comes from ``python -m benchmarks.peers``, the others from ``python -m benchmarks``; there need
not be all of them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.comparison import OURS, fastest_first, notes
from benchmarks.comparison import PROGRAMS as RELAY_PROGRAMS
from benchmarks.counters import PROGRAMS
from benchmarks.looks import MEASURES, PROCESSED, PUBLISHED, by_question
from benchmarks.pictures import costs_by_rate, costs_of_relays, latency, rates_beside_floors, rates_of_relays
from benchmarks.report import WORKER
from benchmarks.sweep import MEASURES as SWEEP_MEASURES
from benchmarks.sweep import by_rate

FOLDER = Path(__file__).parents[1] / "docs" / "proof" / "benchmarks"
_LOOKS = "looks"
_SWEEP = "steady rate sweep"
_LOOK_MEASURES = [measure for measure in MEASURES if measure not in {"first, ms", "worst, ms"}]
_SERIES = re.compile(r" after [\d,]+ events|, (?:first|last) fifth|, p[\d.]+(?= ms)")
"""The part in which the names of a series of figures differ."""


def of_the_worker() -> str:
    """Return the section of docs/proof/benchmarks.md with the worker's figures."""
    return _text(_own(_own_reports()))


def of_relays() -> str:
    """Return the section of docs/proof/benchmarks-peers.md with all relays' figures."""
    return _text(_peers(_loaded("peers")))


def rates_picture() -> str:
    """Draw the worker's rates."""
    return rates_beside_floors(_workloads())


def latency_picture() -> str:
    """Draw the worker's latency."""
    return latency(_workloads())


def is_swept() -> bool:
    """Return whether there are figures of the sweep."""
    return _SWEEP in _workloads()


def sweep_picture() -> str:
    """Draw the cost of an event at each rate."""
    return costs_by_rate(by_rate(_workloads()[_SWEEP]["median"][WORKER]["more"]))


def peers_picture() -> str:
    """Draw every relay's rates."""
    return rates_of_relays(_loaded("peers")["relays"])


def peers_cpu_picture() -> str:
    """Draw every relay's processor time."""
    return costs_of_relays(_loaded("peers")["relays"])


def _own_reports() -> list[Any]:
    return [
        _loaded(name)
        for name in ("worker", "sweep", "conditions", "long", "churn", "looks")
        if _file(name).exists()
    ]


def _workloads() -> dict[str, Any]:
    return {name: found for report in _own_reports() for name, found in report["workloads"].items()}


def _file(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _loaded(name: str) -> Any:
    return json.loads(_file(name).read_text())


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _own(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "![The worker's rates beside their floors](benchmarks/rates.svg)"
    yield ""
    yield "![From the commit of an event to its place in the stream](benchmarks/latency.svg)"
    if is_swept():
        yield ""
        yield "![Processor time of an event at each rate](benchmarks/sweep.svg)"
    earlier = None
    for report in reports:
        rounds = max(len(found["rounds"]) for found in report["workloads"].values())
        yield ""
        yield _measured_on(report["machine"], rounds, earlier)
        earlier = report["machine"]
        yield ""
        looks = report["workloads"].get(_LOOKS)
        swept = report["workloads"].get(_SWEEP)
        own = {_LOOKS, _SWEEP}
        others = {name: found for name, found in report["workloads"].items() if name not in own}
        if swept:
            yield from _swept(swept["median"][WORKER]["more"])
        if others:
            yield from _medians(others)
            yield from _more(others)
        if others and looks:
            yield ""
        if looks:
            yield from _looks(looks["median"][WORKER]["more"])


def _measured_on(machine: Mapping[str, Any], rounds: int, earlier: Mapping[str, Any] | None = None) -> str:
    """Return when and on which machine; an ``earlier`` text named the same machine already."""
    same = earlier is not None and {**earlier, "date": "", "commit": ""} == {
        **machine,
        "date": "",
        "commit": "",
    }
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    place = (
        "the same machine"
        if same
        else f"{machine['cpus']} processors ({machine['processor']}), {machine['platform']},"
        f" Python {machine['python']}, {packages}"
    )
    return fill(
        f"Measured on {machine['date']} at commit {machine['commit']},"
        f" on {place}: medians of all rounds ({rounds}).",
        width=120,
        break_on_hyphens=False,
    )


def _medians(workloads: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(
        *("workload", "program", "count", "rate/s", "worker's rate over it", f"CPU s: {', '.join(PROGRAMS)}"),
        *("statements per 1,000", "WAL bytes each", "peak MB"),
    )
    for name, found in workloads.items():
        for program, median in found["median"].items():
            ratios = [median["worker_ratio"], *median["worker_ratios"]]
            cpu = median["cpu_seconds_per_100000"]
            yield _row(
                *(name, program, f"{median['count']:,}"),
                _ranged(median["rate"], *median["rates"], shape=",.0f"),
                "" if program == WORKER else _ranged(*ratios, shape=".2f"),
                ", ".join(f"{cpu[each]:.1f}" for each in PROGRAMS),
                f"{median['statements_per_1000']:.1f}",
                f"{median['wal_bytes_each']:,.0f}",
                f"{median['peak_bytes'] / 1e6:,.0f}" if median["peak_bytes"] else "",
            )


def _more(workloads: Mapping[str, Any]) -> list[str]:
    """Return the figures that only one workload has; of a series the first and the last."""
    rows = [
        _row(name, what, " to ".join(_short(value) for value in dict.fromkeys((values[0], values[-1]))))
        for name, found in workloads.items()
        for median in found["median"].values()
        for what, series in groupby(median["more"].items(), lambda figure: _SERIES.sub("", figure[0]))
        if (values := [value for _, value in series])
    ]
    return ["", *_head("workload", "what else", "median"), *rows] if rows else []


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _looks(more: Mapping[str, float]) -> Iterator[str]:
    """Return the median time and the pages of each query."""
    yield f"Looks, beside {more[PUBLISHED]:,.0f} {PUBLISHED} and {more[PROCESSED]:,.0f} {PROCESSED}:"
    yield ""
    yield from _head("asked", *_LOOK_MEASURES)
    for question, found in by_question(more).items():
        yield _row(f"`{question}`", *(f"{found[measure]:,.0f}" for measure in _LOOK_MEASURES))


def _swept(more: Mapping[str, float]) -> Iterator[str]:
    """Return a table of an event's cost and latency at each rate."""
    yield "Steady rate sweep, of one event:"
    yield ""
    yield from _head("rate", *SWEEP_MEASURES)
    for rate, found in by_rate(more).items():
        yield _row(
            rate, *(f"{found[m]:,.0f}" if found[m] >= 100 else f"{found[m]:.3g}" for m in SWEEP_MEASURES)
        )


def _peers(report: Mapping[str, Any]) -> Iterator[str]:
    yield "![Events a second of every relay](benchmarks/peers.svg)"
    yield ""
    yield "![Processor time of every relay and its servers](benchmarks/peers-cpu.svg)"
    yield ""
    rounds = max(len(lane["rounds"]) for lanes in report["relays"].values() for lane in lanes.values())
    yield _measured_on(report["machine"], rounds)
    yield ""
    yield from _head(
        *("workload", "relay", "backlog", "events/s", "ours over it"),
        *(f"CPU s, {name}" for name in RELAY_PROGRAMS),
    )
    for workload, lanes in report["relays"].items():
        for name, lane in fastest_first(lanes):
            rates = [drained["rate"] for drained in lane["rounds"].values()]
            yield _row(
                *(workload, name, f"{lane['events']:,}"),
                _ranged(lane["rate"], min(rates), max(rates), shape=",.0f"),
                _ranged(*lane["ours_is_times"], shape=".2f")
                if name != OURS and lane["ours_is_times"]
                else "",
                *(f"{lane['cpu_seconds_per_100000'][program]:.1f}" for program in RELAY_PROGRAMS),
            )
    if remarks := notes(report):
        yield ""
        yield from (f"- {note}" for note in remarks)


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _ranged(median: float, least: float, most: float, *, shape: str) -> str:
    return f"{median:{shape}} ({least:{shape}}-{most:{shape}})"

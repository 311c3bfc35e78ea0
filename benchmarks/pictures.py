"""The pictures of the documents: rates, processor time and latency as bars."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.charts import Bar, Group, chart
from benchmarks.comparison import OURS, PROGRAMS, fastest_first
from benchmarks.report import WORKER
from benchmarks.steady import PERCENTS, RETURNED, SENT
from benchmarks.sweep import NATS, POSTGRES
from benchmarks.sweep import WORKER as WORKER_CPU

_STEADY = "steady rate"
_BETWEEN = "between the time since COMMIT was answered and the time since it was sent"
_PROGRAM_NAMES = {"relay": "relay", "postgres": "PostgreSQL", "nats": "nats-server"}


def rates_beside_floors(workloads: Mapping[str, Any]) -> str:
    """Draw the worker beside its floors, each workload to a scale of its own."""
    groups = [
        Group(title=name, bars=[_beside(program, each) for program, each in found["median"].items()])
        for name, found in workloads.items()
        if len(found["median"]) > 1
    ]
    return chart(
        "Events or messages a second", groups, series=("worker", "measured beside it"), one_scale=False
    )


def _beside(program: str, median: Mapping[str, Any]) -> Bar:
    ours = program == WORKER
    note = "" if ours else f"; the worker: {median['worker_ratio']:.2f} x"
    return Bar(
        label=program,
        parts={"worker" if ours else "measured beside it": median["rate"]},
        note=f"{median['rate']:,.0f}/s{note}",
    )


def latency(workloads: Mapping[str, Any]) -> str:
    """Draw from the commit's answer to its request: the true latency is in between."""
    median = workloads[_STEADY]["median"][WORKER]
    bars = []
    for percent in PERCENTS:
        least, most = (median["more"][f"{name}, p{percent:g} ms"] for name in (RETURNED, SENT))
        bars.append(
            Bar(
                label=f"p{percent:g}",
                parts={"": max(least, 0), _BETWEEN: most - max(least, 0)},
                note=f"{least:.1f} to {most:.1f} ms",
            )
        )
    return chart(
        f"From commit to stream, {median['rate']:,.0f} events a second",
        [Group(title="milliseconds", bars=bars)],
        series=(_BETWEEN,),
    )


def costs_by_rate(rates: Mapping[str, Mapping[str, float]]) -> str:
    """Draw the processor time of an event at each rate."""
    names = {WORKER_CPU: "worker", POSTGRES: "PostgreSQL, inserts included", NATS: "nats-server"}
    bars = [
        Bar(
            label=rate,
            parts={name: found[measure] for measure, name in names.items()},
            note=f"{found[WORKER_CPU]:,.0f} + {found[POSTGRES]:,.0f} + {found[NATS]:,.0f} us",
        )
        for rate, found in rates.items()
    ]
    return chart(
        "CPU of an event by the rate at which events come",
        [Group(title="microseconds", bars=bars)],
        series=tuple(names.values()),
    )


def rates_of_relays(relays: Mapping[str, Any]) -> str:
    """Draw every relay, the fastest first."""
    return chart(
        "Events a second, from the table into the stream",
        _of_relays(relays, _rate),
        series=("this worker", "other relays"),
    )


def _rate(name: str, lane: Mapping[str, Any]) -> Bar:
    ours, times = name == OURS, lane["ours_is_times"]
    note = f"; this worker: {times[0]:.2f} x" if times and not ours else ""
    return Bar(
        label=name,
        parts={"this worker" if ours else "other relays": lane["rate"]},
        note=f"{lane['rate']:,.0f}/s{note}",
    )


def costs_of_relays(relays: Mapping[str, Any]) -> str:
    """Draw the processor time of every relay and its servers."""
    return chart(
        "CPU seconds for 100,000 events",
        _of_relays(relays, _cost),
        series=tuple(_PROGRAM_NAMES.values()),
    )


def _cost(name: str, lane: Mapping[str, Any]) -> Bar:
    seconds = lane["cpu_seconds_per_100000"]
    parts = " + ".join(f"{seconds[program]:.1f}" for program in PROGRAMS)
    return Bar(
        label=name,
        parts={_PROGRAM_NAMES[program]: seconds[program] for program in PROGRAMS},
        note=f"{sum(seconds.values()):.1f} s ({parts})",
    )


def _of_relays(relays: Mapping[str, Any], bar: Callable[[str, Mapping[str, Any]], Bar]) -> list[Group]:
    return [
        Group(title=workload, bars=[bar(name, lane) for name, lane in measured])
        for workload, lanes in relays.items()
        if (measured := fastest_first(lanes))
    ]

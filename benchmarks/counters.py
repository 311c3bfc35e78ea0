"""The costs of a program: CPU time and memory (Linux only), statements and WAL from PostgreSQL."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

PROGRAMS = ("client", "postgres", "nats", "handler")
"""The programs whose CPU time is counted; the client is the worker, or the loop in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All counters at one moment.

    Attributes:
        at: monotonic seconds.
        cpu_seconds: user and system time by program.
        statements: that the run's database was sent, transaction control included.
        wal_bytes: position in the server's write-ahead log.
    """

    at: float
    cpu_seconds: Mapping[str, float]
    statements: int
    wal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The difference between two readings."""

    wall_seconds: float
    cpu_seconds: Mapping[str, float]
    statements: int
    wal_bytes: int

    @classmethod
    def between(cls, before: Reading, after: Reading) -> Self:
        """Subtract."""
        return cls(
            wall_seconds=after.at - before.at,
            cpu_seconds={name: after.cpu_seconds[name] - before.cpu_seconds[name] for name in PROGRAMS},
            statements=after.statements - before.statements,
            wal_bytes=after.wal_bytes - before.wal_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The figures of one program in one round of a workload.

    Attributes:
        rate: events or messages per second.
        peak_bytes: most memory that the worker's process held; 0: not measured.
        more: what this workload alone measures, by name and unit.
    """

    count: int
    rate: float
    cost: Cost
    peak_bytes: int = 0
    more: Mapping[str, float] = field(default_factory=dict)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its children, and of those that have ended."""
    process, found = psutil.Process(pid), 0.0
    for each in (process, *process.children()):
        with suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:4])
    return found


def peak_bytes(pid: int) -> int:
    """Most resident memory that a process has had so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss)

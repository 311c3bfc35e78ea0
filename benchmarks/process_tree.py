"""Processor time and memory of a program and all its descendants, from /proc (Linux only)."""

import asyncio
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.counters import process_stats

PARTS = ("driver", "jvm", "python workers")
"""The driver and the programs that start Java, the JVM, and the processes below the JVM."""
_LOOK_SECONDS = 0.25
_JVM = "java"


@dataclass(frozen=True, slots=True)
class _Process:
    """A process at one moment; ``ticks``: its own processor time in clock ticks."""

    parent: int
    name: str
    ticks: int


class ProcessTree:
    """The descendants of a process, itself included; what runs shorter than a look apart is not seen."""

    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self._root = root
        self._seen: dict[int, tuple[str, int]] = {}

    @property
    def cpu_seconds(self) -> Mapping[str, float]:
        """Own time of all processes that were seen, by part."""
        ticks = dict.fromkeys(PARTS, 0)
        for part, own in self._seen.values():
            ticks[part] += own
        return {part: each / os.sysconf("SC_CLK_TCK") for part, each in ticks.items()}

    def look(self) -> None:
        """Read times and memory."""
        processes = _processes()
        family = _descendants(processes, {self._root})
        machines = {pid for pid in family if processes[pid].name == _JVM}
        workers = _descendants(processes, machines) - machines
        for pid in family:
            part = PARTS[1] if pid in machines else PARTS[2] if pid in workers else PARTS[0]
            self._seen[pid] = part, processes[pid].ticks
        self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, family)))

    async def watch(self, until: asyncio.Future[None]) -> None:
        """Look repeatedly."""
        while not until.done():
            await asyncio.to_thread(self.look)
            await asyncio.wait([until], timeout=_LOOK_SECONDS)


def _processes() -> dict[int, _Process]:
    return {
        pid: _Process(int(values[1]), name, int(values[11]) + int(values[12]))
        for pid, name, values in process_stats()
    }


def _descendants(processes: Mapping[int, _Process], roots: Collection[int]) -> set[int]:
    """Return the roots that exist, and all that they and their descendants started."""
    family = processes.keys() & roots
    while grown := {pid for pid, each in processes.items() if each.parent in family} - family:
        family |= grown
    return family


def _proportional_bytes(pid: int) -> int:
    """Memory of a process, of shared pages its part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

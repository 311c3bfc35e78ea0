"""Processor time and memory of a program and all its descendants. Linux only."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import psutil

PARTS = ("driver", "jvm", "python workers")
"""The driver and the programs that start Java, the JVM, and the processes below the JVM."""
_LOOK_SECONDS = 0.25
_JVM = "java"


class ProcessTree:
    """The descendants of a process, itself included; what runs shorter than a look apart is not seen."""

    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self._root = psutil.Process(root)
        self._seen: dict[int, tuple[str, float]] = {}

    @property
    def cpu_seconds(self) -> Mapping[str, float]:
        """Own time of all processes that were seen, by part."""
        return {part: sum(own for its, own in self._seen.values() if its == part) for part in PARTS}

    def look(self) -> None:
        """Read times and memory, of shared pages each process's part."""
        held = 0
        with suppress(psutil.NoSuchProcess):
            parts = {self._root.pid: PARTS[0]}
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    parts[process.pid] = part = _part(process.name(), parts.get(process.ppid(), PARTS[0]))
                    self._seen[process.pid] = part, sum(process.cpu_times()[:2])
                    held += process.memory_full_info().pss
        self.peak_bytes = max(self.peak_bytes, held)

    async def watch(self, until: asyncio.Future[None]) -> None:
        """Look repeatedly."""
        while not until.done():
            await asyncio.to_thread(self.look)
            await asyncio.wait([until], timeout=_LOOK_SECONDS)


def _part(name: str, of_parent: str) -> str:
    if name == _JVM:
        return PARTS[1]
    return PARTS[0] if of_parent == PARTS[0] else PARTS[2]

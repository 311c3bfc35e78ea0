"""Processes from outside: freezing them with their children, and measuring their use of the machine."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop the processes and all their children for the length of a block (SIGSTOP, SIGCONT)."""
    stopped = [member for pid in pids for member in _family(pid)]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Return how much of a process is in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def open_files(pid: int) -> int:
    """Count a process's descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names are enough


@contextmanager
def no_descriptors_to_spare() -> Iterator[None]:
    """Let this process open nothing for the length of a block, which must not wait."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _family(pid: int) -> list[int]:
    """Return a process before its children, so that it cannot beget new ones meanwhile."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

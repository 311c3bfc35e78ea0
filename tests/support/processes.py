"""Processes from outside: freezing them with their children, and measuring their use of the machine."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop the processes and all their children for the length of a block (SIGSTOP, SIGCONT)."""
    parents = map(psutil.Process, pids)  # before their children, so that they beget no others meanwhile
    stopped = [one for parent in parents for one in (parent, *parent.children(recursive=True))]
    try:
        for process in stopped:
            process.suspend()
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def resident_bytes(pid: int) -> int:
    """Return how much of a process is in memory."""
    return int(psutil.Process(pid).memory_info().rss)


def open_files(pid: int) -> int:
    """Count a process's descriptors."""
    return int(psutil.Process(pid).num_fds())


@contextmanager
def no_descriptors_to_spare() -> Iterator[None]:
    """Let this process open nothing for the length of a block, which must not wait."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Processes from outside: kept running, frozen, measured, or without a program."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil


@contextmanager
def frozen(*pids: int, children: bool = True) -> Iterator[None]:
    """Stop the processes, with their children or without, for the length of a block (SIGSTOP, SIGCONT)."""
    stopped = []
    try:
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(pid)
                parent.suspend()  # before its children, so that it begets no others meanwhile
                stopped.append(parent)
                for child in parent.children(recursive=True) if children else ():
                    child.suspend()
                    stopped.append(child)
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


_PAUSE_SECONDS = 0.5
# A Java machine exits with 143 after its shutdown hooks.
_IN_ORDER = frozenset({0, 128 + signal.SIGTERM})


@dataclass(slots=True, kw_only=True)
class Life:
    """One run of the process, from a start to an end."""

    name: str
    number: int
    log: Path
    pid: int
    began: float
    ended: float = 0.0
    code: int | None = None
    signal: str = ""
    """The signal that was sent to end the process; empty if it ended by itself."""
    signalled_at: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest metrics, if they are scraped."""

    @property
    def title(self) -> str:
        """The process and the number of the run."""
        return f"{self.name}-{self.number}"


@dataclass(kw_only=True, eq=False)
class KeptProcess:
    """One instance. Its process has its own process group, so that signals reach its children."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    logs: Path
    lives: list[Life] = field(default_factory=list, init=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running process, or the last one."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def ends(self) -> list[int]:
        """Exit codes of the runs that ended by themselves."""
        return [life.code for life in self.lives if life.code is not None and not life.signal]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start the process, and restart it whenever it ends by itself."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def kill(self) -> None:
        """Kill the process."""
        await self._stop_restarting()
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self._ended()

    async def stop(self, *, within: float) -> str:
        """Send SIGTERM, then SIGKILL after the time. Return the problem, or an empty text."""
        await self._stop_restarting()
        self._note(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                code = await self._ended()
        except TimeoutError:
            self._send(signal.SIGKILL)
            await self._ended()
            return f"still running {within:g} s after SIGTERM"
        finally:
            self._send(signal.SIGKILL)
        return "" if code in _IN_ORDER else f"exit code {code} after SIGTERM"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        if number is signal.SIGKILL:
            self._note(number)
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _note(self, number: signal.Signals) -> None:
        if self.alive:
            self.lives[-1].signal, self.lives[-1].signalled_at = number.name, time.time()

    async def _launch(self) -> None:
        number = len(self.lives)
        log = self.logs / f"{self.name}-{number}.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                env=self.environment,
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        pid = self._process.pid
        self.lives.append(Life(name=self.name, number=number, log=log, pid=pid, began=time.time()))

    async def _ended(self) -> int:
        code = await self.process.wait()
        life = self.lives[-1]
        if life.code is None:
            life.code, life.ended = code, time.time()
        return code

    async def _keep(self) -> None:
        while True:
            await self._ended()
            self._send(signal.SIGKILL)
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._launch()

    async def _stop_restarting(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None


def programs_without(name: str, folder: Path) -> str:
    """Return a PATH with all programs of this machine but one; the folder gets links to them."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != name and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)

"""A process that is started again whenever it ends, as a service manager would."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_PAUSE_SECONDS = 0.5
# A Java machine that has run its shutdown hooks says 143.
_IN_ORDER = frozenset({0, 128 + signal.SIGTERM})


class CommandError(Exception):
    """A command failed; the text ends with what it wrote."""


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
    told: str = ""
    """The signal that the kit sent to end it; empty where it ended by itself."""
    told_at: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """The last that was read of its metrics, where somebody reads them."""

    @property
    def title(self) -> str:
        """The process and the number of the run."""
        return f"{self.name}-{self.number}"


class KeptProcess:
    """One instance. Its process has a group of its own, so that its children share its fate."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        logs: Path,
    ) -> None:
        self.name = name
        self.lives: list[Life] = []
        self._command = command
        self._environment = environment
        self._folder = folder
        self._logs = logs
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._process is not None and self._process.returncode is None

    @property
    def ends(self) -> list[int]:
        """Exit codes of the times when it ended by itself."""
        return [life.code for life in self.lives if life.code is not None and not life.told]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it, and again whenever it ends by itself."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def kill(self) -> None:
        """End it as the kernel would, without a chance to say anything."""
        await self._let_go()
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self._ended()

    async def stop(self, *, within: float) -> str:
        """Ask it to stop; kill it where it does not. Return what was wrong, or nothing."""
        await self._let_go()
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
            self.lives[-1].told, self.lives[-1].told_at = number.name, time.time()

    async def _launch(self) -> None:
        number = len(self.lives)
        log = self._logs / f"{self.name}-{number}.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=self._folder,
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

    async def _let_go(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None


async def run_command(command: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> None:
    """Run a command to its end.

    Raises:
        CommandError: it cannot be run, or ended with another code than 0.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise CommandError(f"{' '.join(command)}: {error}") from error
    written, _ = await process.communicate()
    if process.returncode != 0:
        text = written.decode(errors="replace")[-2000:]
        raise CommandError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{text}")


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    """Stop a process for the length of a block; its connections live, and nothing answers."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

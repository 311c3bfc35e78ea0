"""Workers as an orchestrator keeps them: whoever ends is started again, and how it ended is written down."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, running

_RESTART_SECONDS = 0.3
_STOP_SECONDS = 12.0
"""A graceful stop is over long before."""


@dataclass(slots=True)
class Life:
    """One process of a worker."""

    worker: str
    number: int
    log: Path
    pid: int
    began: float
    ended: float = 0.0
    code: int | None = None
    told: str = ""
    """The signal that the harness sent to end it."""
    told_at: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Member:
    """One worker and its three proxies."""

    name: str
    target: Deployment
    folder: Path
    proxies: dict[str, TcpProxy]
    lives: list[Life] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a restart is allowed."""
    _worker: WorkerProcess | None = None
    _over: bool = False

    async def keep(self) -> None:
        """Run it, and run it again, until ``retire``."""
        self.up.set()
        while not self._over:
            number = len(self.lives)
            log = self.folder / f"{self.name}-{number}.log"
            async with running(self.target, log) as worker:
                life = Life(self.name, number, log, worker.process.pid, time.time())
                self.lives.append(life)
                self._worker = worker
                life.code = await worker.process.wait()
                life.ended = time.time()
                self._worker = None
            if not self._over:
                await asyncio.sleep(_RESTART_SECONDS)
                await self.up.wait()

    async def ready(self) -> None:
        """Wait until its first process can work."""
        await eventually(lambda: self.alive, what=f"{self.name} is started")
        assert self._worker is not None
        await self._worker.ready()

    @property
    def alive(self) -> bool:
        return self._worker is not None and self._worker.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if not self.alive:
            return
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.lives[-1].told, self.lives[-1].told_at = number.name, time.time()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.lives[-1].pid, number)

    @contextlib.asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Keep it from being started again for the length of a block."""
        self.up.clear()
        try:
            yield
        finally:
            self.up.set()

    async def stopped(self) -> None:
        """Ask it to stop, and wait; one that does not is killed, and its exit tells so."""
        self.signal(signal.SIGTERM)
        worker = self._worker
        if worker is None:
            return
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await worker.process.wait()
        except TimeoutError:
            worker.process.kill()
            await worker.process.wait()

    async def retire(self) -> None:
        """Stop it for good."""
        self._over = True
        self.up.set()
        await self.stopped()

    async def scrape(self) -> None:
        """Read its metrics, where it answers."""
        worker, life = self._worker, self.lives[-1] if self.lives else None
        if worker is None or life is None:
            return
        with contextlib.suppress(httpx2.HTTPError, AssertionError, TimeoutError):
            async with asyncio.timeout(2):
                life.metrics = await worker.metrics()

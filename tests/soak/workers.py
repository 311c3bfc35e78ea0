"""A worker of the deployment, restarted as by an orchestrator."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from tests.support.kept_process import KeptProcess
from tests.support.proxy import TcpProxy
from tests.support.worker import WorkerProcess

_SCRAPE_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, and the proxies between it and its servers."""

    process: KeptProcess
    proxies: Mapping[str, TcpProxy]

    @property
    def name(self) -> str:
        return self.process.name

    async def ready(self) -> None:
        """Wait until the worker is ready."""
        await self._running().ready()

    async def scrape(self) -> None:
        """Read the worker's metrics if it responds."""
        if not self.process.alive:
            return
        life, running = self.process.lives[-1], self._running()
        with contextlib.suppress(httpx2.HTTPError, AssertionError, TimeoutError):
            async with asyncio.timeout(_SCRAPE_SECONDS_MAX):
                life.metrics = await running.metrics()

    def _running(self) -> WorkerProcess:
        return WorkerProcess(self.process.process, self.process.lives[-1].log)

"""A campaign: random settings files, rows and messages at a rate, then the audit."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.chance import Chance
from tests.fuzz.messages import Messages, Service
from tests.fuzz.rows import Rows
from tests.fuzz.settings_files import SettingsFiles
from tests.support.site import Site, site
from tests.support.worker import WorkerProcess

_SETTLE_SECONDS = 120.0
_QUIET_LOG = ("Traceback", "exception was never retrieved", "was never awaited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where a campaign works: two databases, one of them for the workers with fuzzed settings."""

    dsn: str
    other_dsn: str
    nats_url: str


@asynccontextmanager
async def _sites(servers: Servers, name: str, folder: Path) -> AsyncIterator[tuple[Site, Site]]:
    nasty: dict[str, Any] = {"outbox_failures_max": 5, "inbox_attempts_max": 10, "handler_slow_after": 1000}
    async with (
        site(
            dsn=servers.dsn, nats_url=servers.nats_url, name=name, folder=folder / "one",
            stream={"max_msg_size": 2**20}, **nasty,
        ) as one,
        site(
            dsn=servers.other_dsn, nats_url=servers.nats_url, name=f"{name}b", folder=folder / "two"
        ) as two,
    ):  # fmt: skip
        yield one, two


async def run(
    servers: Servers, *, name: str, folder: Path, seconds: float, rate: float, seed: int
) -> dict[str, Any]:
    """Run a campaign; return what came of everything.

    Args:
        servers: a PostgreSQL with two migrated databases and a nats-server.
        name: the context.
        folder: for logs and files.
        seconds: how long.
        rate: settings files, rows and messages a second, of each.
        seed: of all draws.

    Raises:
        AssertionError: something crashed, hung or was lost.
    """
    folder.joinpath("one").mkdir()
    folder.joinpath("two").mkdir()
    async with _sites(servers, name, folder) as (one, two):
        service = Service(Chance(seed))
        one.handler.default = service.take
        rows, messages = Rows(one, Chance(seed + 1)), Messages(one, servers.nats_url, Chance(seed + 2))
        files = SettingsFiles(two, folder, Chance(seed + 3))
        async with one.worker() as worker:
            await worker.ready()
            await _all_at_once(
                _paced(rows.insert, seconds, rate),
                _paced(messages.send, seconds, rate),
                _paced(lambda: asyncio.to_thread(files.read_one), seconds, rate),
                _paced(files.start_one, seconds, 1.0),
            )
            await one.quiet(within=_SETTLE_SECONDS)
            memory = (await worker.metrics())["process_resident_memory_bytes"]
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            _is_quiet(worker)
        return {
            "rows": await rows.audit(),
            "messages": await messages.audit(service),
            "settings files": files.counts,
            "workers started with one": {f"exit {code}": count for code, count in sorted(files.ends.items())},
            "resident MB": round(memory / 1e6),
        }


def _is_quiet(worker: WorkerProcess) -> None:
    for words in _QUIET_LOG:
        assert words not in worker.written, worker.written[-5000:]


async def _all_at_once(*works: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


async def _paced(step: Callable[[], Awaitable[None]], seconds: float, rate: float) -> None:
    """Repeat at a rate, slower where the step is slower."""
    began = time.monotonic()
    for number in range(max(1, int(seconds * rate))):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await step()
        if time.monotonic() - began > seconds:
            return

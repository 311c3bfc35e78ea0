"""The real worker as a process of its own, on servers, streams and a handler of the test's."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2

from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.settings import ENV_PREFIX, Settings
from tests.support.jetstream import shipped_files
from tests.support.waiting import eventually

_ADMIN = re.compile(r"http://127\.0\.0\.1:\d+/")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_WORKER = (sys.executable, "-m", "sea_mq_worker")
_READY_SECONDS = 30.0
_END_SECONDS = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Servers and names of a worker; ``environment`` holds its SEA_MQ_* settings."""

    context: str
    upstream: str
    environment: Mapping[str, str]

    @property
    def stream(self) -> str:
        return f"{self.context.upper()}_EVENTS"

    @property
    def upstream_stream(self) -> str:
        return f"{self.upstream.upper()}_EVENTS"

    @property
    def durable(self) -> str:
        return f"{self.context}__from_{self.upstream}"


def deployment(
    *, context: str, database_url: str, nats_url: str, handler_url: str, **settings: object
) -> Deployment:
    """Name the streams after ``context`` and point a worker at them; ``settings`` go over the defaults."""
    upstream = f"{context}up"
    given = {
        "context": context,
        "database_url": database_url,
        "nats_url": nats_url,
        "handler_url": handler_url,
        "consumers": f"{upstream.upper()}_EVENTS/{context}__from_{upstream}",
        "admin_port": 0,
        **settings,
    }
    environment = {f"SEA_MQ_{key.upper()}": str(value) for key, value in given.items()}
    return Deployment(context=context, upstream=upstream, environment=environment)


async def apply_streams(
    target: Deployment,
    folder: Path,
    *,
    consumer: Mapping[str, Any] = _NOTHING,
    stream: Mapping[str, Any] = _NOTHING,
    replicas: int = 1,
) -> None:
    """Create the streams and consumers that come with the worker.

    ``consumer`` changes the durable; ``stream`` the own stream and the one of dead letters.
    """
    files = shipped_files(folder, upstream=target.upstream)
    change_json(
        files / "consumers" / f"{target.upstream_stream}.sea__from_{target.upstream}.json", **consumer
    )
    for name in ("SEA_EVENTS", "SEA_DLQ"):
        change_json(files / f"{name}.json", **stream)
    given = {name.removeprefix(ENV_PREFIX).lower(): value for name, value in target.environment.items()}
    own = {"streams_folder": files, "stream_replicas": replicas, "stream_max_bytes": 2**26}
    settings = Settings.model_validate({**given, **own})
    await apply_topology(settings, streams=defined_streams(settings))


def change_json(file: Path, **entries: Any) -> None:
    """Set entries of the object that a file holds."""
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A running worker; ``log`` is the file of its standard error."""

    process: asyncio.subprocess.Process
    log: Path

    async def ready(self) -> None:
        """Wait until it answers that it can work."""
        await self.answers(200, within=_READY_SECONDS)

    async def answers(self, status: int, because: str = "", *, within: float = _READY_SECONDS) -> str:
        """Wait until /readyz answers ``status`` and its body has a text; return the body."""

        async def asked() -> str:
            assert self.process.returncode is None, self.written[-2000:]
            found, body = await self.get("readyz")
            return body if found == status and because in body else ""

        return await eventually(
            asked, within=within, what=f"/readyz answers {status} {because}: {self.written[-2000:]}"
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def ended(self, *, within: float = _END_SECONDS) -> int:
        """Wait for its end; return its exit code, or minus the signal's number."""
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"still running after {within:g} s: {self.written[-2000:]}") from None

    async def killed(self) -> None:
        """Kill it, and wait for its end."""
        self.send(signal.SIGKILL)
        await self.ended()

    async def stopped(self) -> None:
        """Stop it as a supervisor would, and wait for a graceful end."""
        self.send(signal.SIGTERM)
        assert await self.ended() == 0, self.written[-2000:]

    @property
    def written(self) -> str:
        """Its standard error so far."""
        return self.log.read_text()

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024

    async def slowest_answer(self, page: str, *, until: asyncio.Event) -> float:
        """Ask for a page again and again; return the longest that an answer took, in seconds."""
        slowest = 0.0
        while not until.is_set():
            began = time.monotonic()
            status, text = await self.get(page)
            assert status == 200, text
            slowest = max(slowest, time.monotonic() - began)
        return slowest

    async def tells(self, text: str) -> None:
        """Wait until its log has the text, such as an event's key: lines are written a little late."""
        await eventually(lambda: text in self.written, within=_READY_SECONDS, what=f"it tells {text}")

    def events(self) -> list[str]:
        """Return the event names of its log lines."""
        lines = [line for line in self.written.splitlines() if line.startswith("{")]
        return [json.loads(line).get("event", "") for line in lines if line.endswith("}")]

    async def metrics(self) -> dict[str, float]:
        """Return its metrics by series: ``name{label="x"}``."""
        text = await self.exposition()
        samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {series: float(value) for series, _, value in samples}

    async def exposition(self) -> str:
        """Return /metrics as it is."""
        status, text = await self.get("metrics")
        assert status == 200, text
        return text

    @property
    def address(self) -> str:
        """The URL of its admin server."""
        found = _ADMIN.search(self.written)
        assert found is not None, "not listening"
        return found[0]

    async def get(self, page: str, headers: Mapping[str, str] = _NOTHING) -> tuple[int, str]:
        """Return status and body of an admin page; status 0 while nothing answers."""
        found = _ADMIN.search(self.written)
        if found is None:
            return 0, "not listening"
        async with httpx2.AsyncClient(trust_env=False, verify=False) as client:  # 20 ms less
            try:
                answer = await client.get(f"{found[0]}{page}", headers=dict(headers))
            except httpx2.TransportError as error:
                return 0, repr(error)
        return answer.status_code, answer.text


@asynccontextmanager
async def running(
    target: Deployment, log: Path, *command: str, program: Sequence[str] = _WORKER, **settings: object
) -> AsyncIterator[WorkerProcess]:
    """Start the worker, or another ``command`` of it; kill it at the end of the block if it still lives."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
    environment = own | dict(target.environment)
    environment |= {f"SEA_MQ_{key.upper()}": str(value) for key, value in settings.items()}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *program, *command, env=environment, stdout=output, stderr=output
        )
    try:
        yield WorkerProcess(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

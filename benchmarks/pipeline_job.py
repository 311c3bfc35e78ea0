"""A command of the pipeline as a program of its own, and what it uses."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, Self

from benchmarks.drain import OUTBOX_ALONE
from benchmarks.pipeline_figures import SERVERS, Figure
from benchmarks.process_tree import PARTS, ProcessTree
from benchmarks.stage import Run

# The last one keeps Spark from taking its own executor for lost while the program is stopped.
_PROPERTIES = (
    "-Dspark.eventLog.enabled=true -Dspark.eventLog.compress=false -Dspark.eventLog.dir=file:{log}"
    " -Dspark.network.timeout=36000s"
)
_JOB_START = b'"Event":"SparkListenerJobStart"'
_END_OF_RESULT = b"}\n"


class Job:
    """A command that runs only while it is measured."""

    _process: asyncio.subprocess.Process
    _tree: ProcessTree

    def __init__(self, run: Run, name: str, *options: str) -> None:
        self._run = run
        self._command = (name, *options, "--json")
        self._folder = run.stage.folder / f"job-{name}"
        self._log = self._folder / "log"
        self._started = False

    async def __aenter__(self) -> Self:
        """Prepare; ``measured`` starts the command."""
        (self._folder / "events").mkdir(parents=True)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let the command end, if it has not."""
        if self._started and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            os.killpg(self._process.pid, signal.SIGCONT)
            await self._process.communicate()

    async def measured(self, rows: int, until: Coroutine[Any, Any, None]) -> Figure:
        """Start or continue the command, suspend it as soon as ``until`` returns, and return its figures."""
        before, jobs_before = await self._run.read(0.0), self._spark_jobs()
        await self._go()
        cpu_before = self._tree.cpu_seconds
        self._tree.peak_bytes = 0
        began = time.perf_counter()
        reached = asyncio.ensure_future(until)
        await self._tree.watch(reached)
        seconds = time.perf_counter() - began
        await reached
        if self._process.returncode is None:
            self._tree.look()
            os.killpg(self._process.pid, signal.SIGSTOP)
        after = await self._run.read(0.0)
        cpu = {part: self._tree.cpu_seconds[part] - cpu_before[part] for part in PARTS}
        cpu |= {server: after.cpu_seconds[server] - before.cpu_seconds[server] for server in SERVERS}
        return Figure(
            rows=rows,
            seconds=seconds,
            cpu_seconds=cpu,
            peak_bytes=self._tree.peak_bytes,
            spark_jobs=self._spark_jobs() - jobs_before,
        )

    async def result(self) -> None:
        """Wait for the next result that the command prints."""
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            if line == _END_OF_RESULT:
                return
        await self.end()
        raise RuntimeError(f"{self._command[0]} ended")

    async def end(self) -> None:
        """Wait for the command's end."""
        await self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"{self._command[0]} failed: {self._log.read_text()[-2000:]}")

    async def _go(self) -> None:
        if self._started:
            os.killpg(self._process.pid, signal.SIGCONT)
            return
        properties = _PROPERTIES.format(log=self._folder / "events")
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sea_mq_worker", "pipeline", *self._command),
                env={**os.environ, **self._run.settings, **OUTBOX_ALONE, "SPARK_SUBMIT_OPTS": properties},
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._started = True
        self._tree = ProcessTree(self._process.pid)

    def _spark_jobs(self) -> int:
        """Count the Spark jobs so far."""
        files = (file for file in (self._folder / "events").rglob("*") if file.is_file())
        return sum(file.read_bytes().count(_JOB_START) for file in files)

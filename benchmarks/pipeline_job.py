"""A Spark session as a program of its own, and what each of its steps uses."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable
from typing import Any, Self

from benchmarks.drain import OUTBOX_ALONE
from benchmarks.pipeline_figures import SERVERS, Figure
from benchmarks.process_tree import PARTS, ProcessTree
from benchmarks.stage import Run

_JOB_START = b'"Event":"SparkListenerJobStart"'
_TASK_END = b'"Event":"SparkListenerTaskEnd"'


class Session:
    """A program that works only while it is measured."""

    _process: asyncio.subprocess.Process
    _tree: ProcessTree

    def __init__(self, run: Run, master: str) -> None:
        self._run = run
        self._master = master
        self.folder = run.stage.folder
        self.lake = self.folder / "lake"
        self._events = self.folder / "events"

    async def __aenter__(self) -> Self:
        """Start the session."""
        self._events.mkdir(parents=True)
        with (self.folder / "session.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.pipeline_program", self._master),
                *(self._events.as_uri(), str(self.lake)),
                env={**os.environ, **self._run.settings, **OUTBOX_ALONE},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._tree = ProcessTree(self._process.pid)
        await self._answer()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End the session."""
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def step(self, name: str, **options: Any) -> None:
        """Run a step that is not measured."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"step": name, **options}).encode() + b"\n")
        await self._process.stdin.drain()
        await self._answer()

    async def measured(self, rows: int, work: Awaitable[None]) -> Figure:
        """Return the figures of a work, which is a step or waits for the effect of one."""
        before, jobs_before, moved_before = await self._run.read(0.0), *self._counted()
        self._tree.look()
        cpu_before = self._tree.cpu_seconds
        self._tree.peak_bytes = 0
        began = time.perf_counter()
        reached = asyncio.ensure_future(work)
        await self._tree.watch(reached)
        seconds = time.perf_counter() - began
        await reached
        self._tree.look()
        after, (jobs, moved) = await self._run.read(0.0), self._counted()
        cpu = {part: self._tree.cpu_seconds[part] - cpu_before[part] for part in PARTS}
        cpu |= {server: after.cpu_seconds[server] - before.cpu_seconds[server] for server in SERVERS}
        return Figure(
            rows=rows,
            seconds=seconds,
            cpu_seconds=cpu,
            peak_bytes=self._tree.peak_bytes,
            spark_jobs=jobs - jobs_before,
            shuffle_bytes=moved - moved_before,
        )

    async def _answer(self) -> None:
        assert self._process.stdout
        if not await self._process.stdout.readline():
            raise RuntimeError(f"the session ended, see {self.folder}/session.log")

    def _counted(self) -> tuple[int, int]:
        """Return the number of Spark jobs and the bytes of shuffles so far."""
        lines = [
            line
            for file in self._events.rglob("events_*")
            for line in file.read_bytes().splitlines()
            if _JOB_START in line or _TASK_END in line
        ]
        ends = [json.loads(line) for line in lines if _TASK_END in line]
        metrics = [end.get("Task Metrics") or {} for end in ends]
        moved = (each.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0) for each in metrics)
        return sum(_JOB_START in line for line in lines), sum(moved)

"""Workload: one backlog, published by one, two and four workers on one database."""

import asyncio
from contextlib import AsyncExitStack

from benchmarks.backlog import write_backlog
from benchmarks.counters import Cost, Figure, cpu_seconds, peak_bytes
from benchmarks.drain import OUTBOX_ALONE, check_stream, is_drained, span_seconds
from benchmarks.report import WORKER
from benchmarks.stage import Run, Stage
from sea_mq_worker.cli.demo.children import WorkerProcess

_COUNTS = {WORKER: 1, "2 workers": 2, "4 workers": 4}
_LOOK_SECONDS = 0.1


async def workers(stage: Stage, *, count: int, per_key: int) -> dict[str, Figure]:
    """Publish the same backlog with more and more workers; ``per_key`` as in ``write_backlog``."""
    figures = {}
    for name, processes in _COUNTS.items():
        async with stage.run() as run:
            figures[name] = await _drain(run, processes, count=count, per_key=per_key)
    return figures


async def _drain(run: Run, processes: int, *, count: int, per_key: int) -> Figure:
    """Show idle workers a backlog, by one commit, and wait until all of it is published."""
    async with AsyncExitStack() as stack:
        each = [
            await stack.enter_async_context(
                WorkerProcess(run.stage.folder / f"worker{n}", settings={**run.settings, **OUTBOX_ALONE})
            )
            for n in range(processes)
        ]

        def used() -> float:
            return sum(cpu_seconds(process.pid) for process in each)

        async with run.database.transaction():
            await write_backlog(run.database, count=count, per_key=per_key)
            before = await run.read(used())
        while not await is_drained(run, count):
            if not all(process.running for process in each):
                raise RuntimeError(f"a worker ended; see {[process.log for process in each]}")
            await asyncio.sleep(_LOOK_SECONDS)
        cost = Cost.between(before, await run.read(used()))
        await check_stream(run, count)
        return Figure(
            count=count,
            rate=count / await span_seconds(run, count),
            cost=cost,
            peak_bytes=max(peak_bytes(process.pid) for process in each),
        )

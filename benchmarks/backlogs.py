"""Workloads: larger and larger backlogs, and more and more workers, each on an empty database."""

from collections.abc import Sequence

from benchmarks.counters import Figure
from benchmarks.drain import OUTBOX_ALONE, STREAM, drain_with
from benchmarks.report import WORKER
from benchmarks.stage import Run, Stage

_WORKERS = {WORKER: 1, "2 workers": 2, "4 workers": 4}
BACKLOGS = (10_000, 100_000, 1_000_000, 5_000_000)
_STREAM_BYTES_EACH = 1_000
"""More than an order's message takes with its headers."""


async def backlogs(stage: Stage, *, counts: Sequence[int], per_key: int) -> dict[str, Figure]:
    """Let one worker publish each backlog, the least first; ``per_key`` as in ``write_backlog``."""
    figures = {}
    for count in sorted(counts):
        async with stage.run() as run:
            await make_room(run, count)
            async with run.worker(OUTBOX_ALONE) as worker:
                name = f"{count:,} events" if figures else WORKER
                figures[name] = await drain_with(worker, count=count, per_key=per_key)
    return figures


async def workers(stage: Stage, *, count: int, per_key: int) -> dict[str, Figure]:
    """Let one, two and four workers publish the same backlog; ``per_key`` as in ``write_backlog``."""
    figures = {}
    for name, number in _WORKERS.items():
        async with stage.run() as run, run.worker(OUTBOX_ALONE, count=number) as worker:
            figures[name] = await drain_with(worker, count=count, per_key=per_key)
    return figures


async def make_room(run: Run, count: int) -> None:
    """Let the stream keep that many orders."""
    config = (await run.stream.stream_info(STREAM)).config
    room = max(config.max_bytes or 0, count * _STREAM_BYTES_EACH)
    await run.stream.update_stream(config.evolve(max_bytes=room))

"""Workload: one backlog without ordering keys, and with keys in several shapes."""

from benchmarks.counters import Figure
from benchmarks.drain import OUTBOX_ALONE, drain_with
from benchmarks.report import WORKER
from benchmarks.stage import Stage

SHAPES = {
    WORKER: "NULL",
    "10 events in a row": "n / 10",
    "3,000 keys in turns": "n % 3000",
    "300 keys in turns": "n % 300",
    "50 keys in turns": "n % 50",
    "5 keys in turns": "n % 5",
    "1 key": "'1'",
    "Zipf, 1,000 keys": "floor(1000 ^ (n * 2654435761 % 4294967296 / 4294967296.0))",
}
"""The ordering key as SQL of the event's number; the worker's own figure is that without keys."""


async def keys(stage: Stage, *, count: int) -> dict[str, Figure]:
    """Let a worker publish a backlog of each shape."""
    figures = {}
    for name, key in SHAPES.items():
        async with stage.run() as run, run.worker(OUTBOX_ALONE) as worker:
            figures[name] = await drain_with(worker, count=count, per_key=0, key=key)
    return figures

"""Workload: a drain beside millions of published events, with an old snapshot open."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from benchmarks.counters import Figure
from benchmarks.drain import OUTBOX_ALONE, drain_with
from benchmarks.past import DATABASE, publish_past
from benchmarks.stage import Run, Stage
from tests.support.servers import database_connection


async def history(stage: Stage, *, count: int, published: int) -> dict[str, Figure]:
    """Drain a backlog with nothing beside it, and one beside a history that all rounds have in common."""
    async with stage.run() as run:
        alone = await _drain(run, count)
    async with stage.run(keep=DATABASE) as run:
        await publish_past(run, published)
        async with _old_snapshot(run):
            beside = await _drain(run, count)
    beside = replace(beside, more={"published events beside it": published})
    return {"worker": beside, "worker, no history": alone}


@asynccontextmanager
async def _old_snapshot(run: Run) -> AsyncIterator[None]:
    """Hold an old snapshot, as a dump does: PostgreSQL must keep all dead row versions."""
    async with (
        database_connection(run.settings["SEA_MQ_DATABASE_URL"]) as reader,
        reader.transaction(isolation="repeatable_read", readonly=True),
    ):
        await reader.execute("SELECT FROM outbox_events LIMIT 1")
        yield


async def _drain(run: Run, count: int) -> Figure:
    async with run.worker(OUTBOX_ALONE) as worker:
        return await drain_with(worker, count=count, per_key=0)

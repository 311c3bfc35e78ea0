"""Workload: backlogs written, published and pruned, one after the other, as in hours of traffic."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import median

from benchmarks.counters import Cost, Figure
from benchmarks.drain import OUTBOX_ALONE, STREAM, drain_with
from benchmarks.stage import Run, Stage
from sea_mq_worker.operators.prune import prune
from sea_mq_worker.operators.tables import open_tables

_SIZES = """
SELECT 'table' AS name, pg_table_size('outbox_events') AS bytes
 UNION ALL
SELECT indexrelid::regclass::text, pg_relation_size(indexrelid)
  FROM pg_index WHERE indrelid = 'outbox_events'::regclass
"""
_NAP_SECONDS = 4
"""Autovacuum's default of a minute, for time that runs some fifteen times faster than 500 events a second."""


async def churn(stage: Stage, *, count: int, cycles: int) -> dict[str, Figure]:
    """Let one worker drain backlog after backlog; each cycle ends with pruning the events of earlier ones."""
    series: defaultdict[str, list[float]] = defaultdict(list)
    async with stage.run() as run, _short_naps(run), run.worker(OUTBOX_ALONE) as worker:
        before = await worker.read()
        for _ in range(cycles):
            began = await run.database.fetchval("SELECT now()")
            figure = await drain_with(worker, count=count, per_key=0)
            series["rate/s"].append(figure.rate)
            for name in ("client", "postgres"):
                each = figure.cost.cpu_seconds[name] / count
                series[f"{name}, CPU seconds per 100,000"].append(each * 1e5)
            series["worker, MB"].append(worker.resident_bytes() / 1e6)
            for name, size in (await _sizes(run)).items():
                series[f"{name}, MB"].append(size / 1e6)
            async with open_tables(run.own) as pool:
                await prune(pool, "outbox", began, actor="benchmark", reason="churn")
            await run.stream.purge_stream(STREAM)
        cost = Cost.between(before, await worker.read())
        return {
            "worker": Figure(
                count=count * cycles,
                rate=median(series["rate/s"]),
                cost=cost,
                peak_bytes=worker.peak_bytes(),
                more=_ends(series),
            )
        }


@asynccontextmanager
async def _short_naps(run: Run) -> AsyncIterator[None]:
    await run.server.execute(f"ALTER SYSTEM SET autovacuum_naptime = {_NAP_SECONDS}")
    await run.server.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        await run.server.execute("ALTER SYSTEM RESET autovacuum_naptime")
        await run.server.execute("SELECT pg_reload_conf()")


async def _sizes(run: Run) -> Mapping[str, int]:
    return {row["name"]: row["bytes"] for row in await run.database.fetch(_SIZES)}


def _ends(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Compare the first fifth of all cycles with the last one."""
    found = {}
    for name, values in series.items():
        fifth = max(1, len(values) // 5)
        found[f"{name}, first fifth"] = median(values[:fifth])
        found[f"{name}, last fifth"] = median(values[-fifth:])
    return found

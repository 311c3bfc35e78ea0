"""Workload: operators' queries beside millions of published events and processed messages."""

import gc
import time
from statistics import median

from benchmarks.counters import Cost, Figure
from benchmarks.past import DATABASE, publish_past, receive_past, unfinished_events
from benchmarks.questions import Question, questions
from benchmarks.stage import Run, Stage

MEASURES = ("first, ms", "median, ms", "worst, ms", "pages")
"""The first query meets an empty cache; median and worst are of the later ones."""
PUBLISHED, PROCESSED = "published events", "processed messages"
_PUBLISHED_PER_RECEIVED = 5
_ENOUGH_SECONDS = 2.0
"""Time limit of one query's repetitions; each runs at least twice."""
_PAGES = """
SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint
  FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = $1)
"""


async def looks(stage: Stage, *, published: int, times: int) -> dict[str, Figure]:
    """Run each query with a cold cache, then repeatedly; all rounds share the tables."""
    received = published // _PUBLISHED_PER_RECEIVED
    more: dict[str, float] = {PUBLISHED: published, PROCESSED: received}
    count = 0
    async with stage.run(keep=DATABASE) as run:
        await publish_past(run, published)
        await receive_past(run, received)
        async with unfinished_events(run), questions(run) as asked:
            await run.server.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
            gc.freeze()  # a command of its own process would not look through what this one holds
            before = await run.read(time.process_time())
            for name, question in asked.items():
                (first, *warm), pages = await _look(run, question, times)
                count += 1 + len(warm)
                figures = (first, median(warm), max(warm), pages)
                found = zip(MEASURES, figures, strict=True)
                more |= {f"{name}: {measure}": figure for measure, figure in found}
            cost = Cost.between(before, await run.read(time.process_time()))
    return {"worker": Figure(count=count, rate=count / cost.wall_seconds, cost=cost, more=more)}


async def _look(run: Run, question: Question, times: int) -> tuple[list[float], float]:
    """Return milliseconds of each look, the cold one first, and pages that one of them reads."""
    await run.server.execute("SELECT pg_buffercache_evict_all()")
    before = await run.server.fetchval(_PAGES, run.name)
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) <= times and sum(taken) < _ENOUGH_SECONDS * 1e3):
        began = time.perf_counter()
        await question()
        taken.append((time.perf_counter() - began) * 1e3)
    after = await run.server.fetchval(_PAGES, run.name)
    return taken, (after - before) / len(taken)

"""Publish events of the outbox and of its archive again, in order per key.

An event that is still in the table becomes PENDING again, as in the worker's own replay. An event that is
only in the archive is inserted again with all its columns: its ID, its position in the order of its key, and
the stream sequence of its earlier copy. Both are due when the earlier copy has left the stream's
deduplication window.

Batches are put back in the order of ``seq``, each in one transaction. At any time, the events of a key that
were put back are therefore the first ones of the selection, and the publisher claims the events of a key only
from the earliest open event on. The order holds while publishers run, regardless of the pace of the batches.

Each batch records its progress in the audit record in the same transaction. After a crash, the same command
continues from there and duplicates nothing; it leaves out events that were published since the replay began.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.replay.read_events import choose_events, with_content
from sea_mq_worker.pipeline.jobs.replay.selection import Selection
from sea_mq_worker.pipeline.jobs.replay.store import Action, ReplayStore
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import snapshot
from sea_mq_worker.runtime.waiting import sleep_or_stop
from sea_mq_worker.settings import Settings

_BATCH_MAX = 1000
_PARTITION_ROWS = 10_000
"""Approximate number of events that the driver keeps in memory."""
_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Number of selected events of one type."""

    event_type: str
    table: int
    archive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJobResult:
    """Result of a replay.

    Attributes:
        matched: events selected for this run.
        types: the same events by type and by source.
        replayed: events put back by this run; 0 in a dry run, and if more than the cap matched.
        skipped: events that were gone or no longer PUBLISHED or DEAD when their batch was put back.
        skipped_ids: some IDs of skipped events.
        action: the audit record; None: nothing was to be changed.
        resumed_after: an earlier run was complete up to this seq; None: this run began a new replay.
        seconds: time spent putting events back.
        stopped: whether a stop was requested; the same command continues.
        dry_run: whether ``matched`` events would be put back, and nothing was changed.
    """

    matched: int
    types: tuple[Matched, ...]
    replayed: int = 0
    skipped: int = 0
    skipped_ids: tuple[str, ...] = ()
    action: int | None = None
    resumed_after: int | None = None
    seconds: float = 0.0
    stopped: bool = False
    dry_run: bool = False


async def replay(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    *,
    lake: str | None,
    actor: str,
    reason: str,
    stop: asyncio.Event,
    on_progress: Callable[[str], None],
    cap: int = 1000,
    per_second: int = 1000,
    dry_run: bool = False,
    restart: bool = False,
) -> ReplayJobResult:
    """Put the selected events back into the outbox.

    Args:
        spark: reads and sorts the events, which pass through the driver some ten thousand at a time.
        settings: the driver's settings; each task loads its own.
        selection: the events.
        lake: the lake with the archive; None: only the table.
        actor: the operator, for the audit.
        reason: the operator's reason, for the audit.
        stop: ends the replay after the current batch.
        on_progress: called after each batch.
        cap: replay no event if more than this many match.
        per_second: maximum of events put back a second, so that a large replay does not delay new events.
        dry_run: only count.
        restart: begin from the start, although an earlier run was interrupted.

    Raises:
        PipelineError: another run is executing the same replay.
        UnavailableError: a server became unavailable; the same command continues.
        ContractError: the database does not meet the worker's requirements.
    """
    words = selection.as_given(lake)
    outbox, archive = table_datasets(settings, "outbox_events"), lake_datasets(lake, ARCHIVE)
    with job_run(spark, settings, "replay", reads=[*outbox, *archive], writes=outbox) as session:
        async with open_tables(settings, purpose="replay") as pool:
            store = ReplayStore(pool)
            earlier = None if restart else await store.unfinished(words)
            if earlier:
                selection = selection.with_times(earlier.selection)
            chosen, types = await asyncio.to_thread(_choose, session, settings, selection, lake, earlier)
            try:
                matched = sum(one.table + one.archive for one in types)
                through = earlier.through if earlier else None
                found = ReplayJobResult(matched=matched, types=types, resumed_after=through, dry_run=dry_run)
                if dry_run or matched > cap or not (matched or earlier):
                    return found
                action = earlier or await store.begin(
                    selection.audited(lake), words, actor=actor, reason=reason
                )
                rows = await asyncio.to_thread(_in_order, session, settings, chosen, matched, lake)
                found = replace(found, action=action.id)
                return await _put_back(
                    store, action, rows, found, per_second=per_second, stop=stop, on_progress=on_progress
                )
            finally:
                chosen.unpersist()


def _choose(
    spark: SparkSession, settings: Settings, selection: Selection, lake: str | None, earlier: Action | None
) -> tuple[DataFrame, tuple[Matched, ...]]:
    """Persist the events' keys on Spark's disks, so that PostgreSQL's snapshot can end after the read."""
    with snapshot(settings) as held, described(spark, "replay: choose events"):
        chosen = choose_events(spark, held, selection, lake=lake, context=settings.context, earlier=earlier)
        chosen = chosen.persist(StorageLevel.DISK_ONLY)
        archived, events = F.count_if("archived"), F.count("*")
        rows = chosen.groupBy("event_type").agg(events - archived, archived).sort("event_type").collect()
    return chosen, tuple(Matched(event_type=row[0], table=row[1], archive=row[2]) for row in rows)


def _in_order(
    spark: SparkSession, settings: Settings, chosen: DataFrame, count: int, lake: str | None
) -> Iterator[Row]:
    with described(spark, "replay: read events in order"):
        events = with_content(spark, chosen, lake=lake, context=settings.context) if lake else chosen
        parts = max(1, math.ceil(count / _PARTITION_ROWS))
        in_order = events.repartitionByRange(parts, "seq").sortWithinPartitions("seq")
        return in_order.toLocalIterator(prefetchPartitions=True)


async def _put_back(
    store: ReplayStore,
    action: Action,
    rows: Iterator[Row],
    result: ReplayJobResult,
    *,
    per_second: int,
    stop: asyncio.Event,
    on_progress: Callable[[str], None],
) -> ReplayJobResult:
    began = time.monotonic()
    size = min(_BATCH_MAX, per_second)
    through, count = action.through, 0
    while not stop.is_set() and (batch := await asyncio.to_thread(lambda: list(islice(rows, size)))):
        done = await store.put_back(action.id, batch, after=through)
        through, count = batch[-1].seq, count + len(batch)
        missed = tuple(row.id for row in batch if row.id not in done)
        result = replace(
            result,
            replayed=result.replayed + len(done),
            skipped=result.skipped + len(missed),
            skipped_ids=(*result.skipped_ids, *missed)[:_NAMED_MAX],
        )
        on_progress(f"replay: {count:,} of {result.matched:,}, {result.replayed:,} put back")
        if count < result.matched:
            await sleep_or_stop(stop, seconds=began + count / per_second - time.monotonic())
    if count == result.matched:
        await store.finish(action.id)
    return replace(result, seconds=time.monotonic() - began, stopped=count < result.matched)

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
from dataclasses import dataclass, field
from itertools import islice

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession

from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.pipeline.jobs.replay.filter import ReplayRules, Selection
from sea_mq_worker.pipeline.jobs.replay.selection import Bounds, select
from sea_mq_worker.pipeline.jobs.replay.store import Action, ReplayStore, replay_store
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import snapshot
from sea_mq_worker.settings import Settings

NEEDS = ("database_url", "nats_url")

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


OnProgress = Callable[[int, int, int], None]
"""Called with the numbers of processed events, of matched events and of events put back."""


async def replay(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    rules: ReplayRules,
    *,
    lake: str | None,
    stop: asyncio.Event,
    on_progress: OnProgress,
) -> ReplayJobResult:
    """Put the selected events back into the outbox.

    Args:
        spark: reads and sorts the events, which pass through the driver some ten thousand at a time.
        settings: the driver's settings; each task loads its own.
        selection: the events.
        rules: actor and limits.
        lake: the lake with the archive; None: only the table.
        stop: ends the replay after the current batch.
        on_progress: called after each batch.

    Raises:
        PipelineError: another run is executing the same replay.
        UnavailableError: a server became unavailable; the same command continues.
        ContractError: the schema or the stream does not meet the worker's requirements.
    """
    words = selection.as_given(lake)
    async with replay_store(settings) as store:
        earlier = None if rules.restart else await store.unfinished(words)
        if earlier:
            selection = selection.with_times(earlier.selection)
        chosen, types = await asyncio.to_thread(_choose, spark, settings, selection, lake, earlier)
        try:
            matched = sum(one.table + one.archive for one in types)
            found = ReplayJobResult(
                matched=matched, types=types, resumed_after=earlier.through if earlier else None
            )
            if rules.dry_run or matched > rules.cap or not (matched or earlier):
                return found
            action = earlier or await store.begin(
                selection.audited(lake), words, actor=rules.actor, reason=rules.reason
            )
            rows = await asyncio.to_thread(_in_order, chosen, matched)
            return await _ReplayRun(store, action, rules, stop, on_progress).put_back(rows, found)
        finally:
            chosen.unpersist()


def _choose(
    spark: SparkSession, settings: Settings, selection: Selection, lake: str | None, earlier: Action | None
) -> tuple[DataFrame, tuple[Matched, ...]]:
    """Persist the selected events on Spark's disks, so that PostgreSQL's snapshot can end after the read."""
    bounds = Bounds(earlier.through, earlier.at) if earlier else Bounds()
    with snapshot(settings) as held:
        chosen = select(spark, held, selection, lake=lake, context=settings.context, bounds=bounds)
        chosen = chosen.persist(StorageLevel.DISK_ONLY)
        with described(spark, "replay: choose events"):
            rows = chosen.groupBy("event_type", "archived").count().collect()
    counts = {(row[0], row[1]): row[2] for row in rows}
    types = [
        Matched(event_type=one, table=counts.get((one, False), 0), archive=counts.get((one, True), 0))
        for one in sorted({event_type for event_type, _ in counts})
    ]
    return chosen, tuple(types)


def _in_order(chosen: DataFrame, count: int) -> Iterator[Row]:
    parts = max(1, math.ceil(count / _PARTITION_ROWS))
    in_order = chosen.repartitionByRange(parts, "seq").sortWithinPartitions("seq")
    return in_order.toLocalIterator(prefetchPartitions=True)


@dataclass(slots=True)
class _ReplayRun:
    """One pass over the selected events."""

    store: ReplayStore
    action: Action
    rules: ReplayRules
    stop: asyncio.Event
    on_progress: OnProgress
    replayed: int = 0
    skipped: int = 0
    skipped_ids: list[str] = field(default_factory=list)

    async def put_back(self, rows: Iterator[Row], found: ReplayJobResult) -> ReplayJobResult:
        began = time.monotonic()
        size = max(1, min(_BATCH_MAX, self.rules.per_second))
        through, turns = self.action.through, 0
        while not self.stop.is_set() and (batch := await asyncio.to_thread(lambda: list(islice(rows, size)))):
            done = await self.store.put_back(self.action.id, batch, after=through)
            through, turns = batch[-1].seq, turns + len(batch)
            self._note(batch, done)
            self.on_progress(turns, found.matched, self.replayed)
            if turns < found.matched:
                await sleep_or_stop(
                    self.stop, seconds=began + turns / self.rules.per_second - time.monotonic()
                )
        if turns == found.matched:
            await self.store.finish(self.action.id)
        return ReplayJobResult(
            matched=found.matched,
            types=found.types,
            replayed=self.replayed,
            skipped=self.skipped,
            skipped_ids=tuple(self.skipped_ids),
            action=self.action.id,
            resumed_after=found.resumed_after,
            seconds=time.monotonic() - began,
            stopped=turns < found.matched,
        )

    def _note(self, batch: list[Row], done: frozenset[str]) -> None:
        self.replayed += len(done)
        missed = [row.id for row in batch if row.id not in done]
        self.skipped += len(missed)
        self.skipped_ids += missed[: _NAMED_MAX - len(self.skipped_ids)]

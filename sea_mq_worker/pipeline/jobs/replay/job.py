"""Replay: events of the outbox and of its archive are published again, in order per key.

An event that is still in the table goes back to PENDING, as by the worker's own replay. One that only the
archive has is inserted again with everything it had: its id, its place in the order of its key and the copy
in the stream that the new one is told apart from. Either one is due when the stream's duplicate window has
forgotten the earlier copy.

Batches go back in the order of ``seq``, each in one transaction. So of every key, what was put back at any
time is the beginning of what will be; and the relay takes the events of a key only from the earliest open one
on. Order holds while relays run, however slowly the batches come.

The audit record tells how far a replay is, in the same transaction as each batch. The same command after a
crash goes on behind it and doubles nothing; what was published since the replay began is then left out.
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
from sea_mq_worker.pipeline.snapshot import snapshot
from sea_mq_worker.settings import Settings

NEEDS = ("database_url", "nats_url")

_BATCH_MAX = 1000
_PARTITION_ROWS = 10_000
"""Events that the driver holds at once, about."""
_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Events of one type that a replay takes."""

    event_type: str
    table: int
    archive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay found and did.

    Attributes:
        matched: events that were to be put back by this run.
        types: the same, by event type and by where they are.
        replayed: events that were put back by this run; 0 in a dry run, and where more than the cap matched.
        skipped: were in no state to be replayed any more when their turn came.
        skipped_ids: some of them.
        action: the audit record; None: nothing was to be changed.
        resumed_after: an earlier run had done everything up to this seq; None: this one began.
        seconds: duration of putting back.
        stopped: it was asked to stop; the same command goes on.
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
"""Is told how many events have had their turn, of how many, and how many were put back."""


async def replay(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    rules: ReplayRules,
    *,
    lake: str | None,
    stop: asyncio.Event,
    on_progress: OnProgress,
) -> ReplayResult:
    """Put the events back that are chosen.

    Args:
        spark: reads and sorts; the events go through the driver, some ten thousand at a time.
        settings: the driver's; tasks read their own.
        selection: which.
        rules: who, and how many.
        lake: where the archive is; None: only the table is asked.
        stop: ends it after the batch under way.
        on_progress: is told after each batch.

    Raises:
        PipelineError: another run is at the same replay.
        UnavailableError: a server went away; the same command goes on.
        ContractError: the schema or the stream is not as the worker needs it.
    """
    words = selection.as_given(lake)
    async with replay_store(settings) as store:
        earlier = None if rules.anew else await store.unfinished(words)
        if earlier:
            selection = selection.with_times(earlier.selection)
        chosen, types = await asyncio.to_thread(_choose, spark, settings, selection, lake, earlier)
        try:
            matched = sum(one.table + one.archive for one in types)
            found = ReplayResult(
                matched=matched, types=types, resumed_after=earlier.through if earlier else None
            )
            if rules.dry_run or matched > rules.cap or not (matched or earlier):
                return found
            action = earlier or await store.begin(
                selection.audited(lake), words, actor=rules.actor, reason=rules.reason
            )
            rows = await asyncio.to_thread(_in_order, chosen, matched)
            return await _Run(store, action, rules, stop, on_progress).put_back(rows, found)
        finally:
            chosen.unpersist()


def _choose(
    spark: SparkSession, settings: Settings, selection: Selection, lake: str | None, earlier: Action | None
) -> tuple[DataFrame, tuple[Matched, ...]]:
    """Keep the chosen events on Spark's disks, so that PostgreSQL's snapshot need not outlast the reading."""
    bounds = Bounds(earlier.through, earlier.at) if earlier else Bounds()
    with snapshot(settings) as held:
        chosen = select(spark, held, selection, lake=lake, context=settings.context, bounds=bounds)
        chosen = chosen.persist(StorageLevel.DISK_ONLY)
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
class _Run:
    """One run through the chosen events."""

    store: ReplayStore
    action: Action
    rules: ReplayRules
    stop: asyncio.Event
    on_progress: OnProgress
    replayed: int = 0
    skipped: int = 0
    skipped_ids: list[str] = field(default_factory=list)

    async def put_back(self, rows: Iterator[Row], found: ReplayResult) -> ReplayResult:
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
        return ReplayResult(
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

"""Move published events to the lake, verify them there, and then delete them from the outbox.

Events are processed in batches. The job reads a batch under one snapshot and writes it to files. It reads the
files back, compares event count and digest with PostgreSQL's own, and only then commits the files, so that
readers of the lake never see a batch that differs.

A deletion rests on the committed table: the job reads IDs and digests of the batch's events from it, and
PostgreSQL deletes an event only if its own digest of the event equals. A partition whose events are all in
the lake is dropped if the event count and digest of all its batches equal PostgreSQL's own. Otherwise its
events are deleted.

Two watermarks of the lake's table record the progress: ``archive <context>``, the last committed batch, and
``archived <context>``, the last batch whose events were deleted. A run after an interruption first deletes
the events of the batches between these watermarks, provided that none differs from the lake.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError, cause
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.archive.digest import KEPT, TIMES, content_of, keys_of
from sea_mq_worker.pipeline.jobs.archive.outbox import Deletion, LeafPlan, content, deletion, plan
from sea_mq_worker.pipeline.lake.read_files import read_files
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import NO_FILES, Files, LakeTable, Watermark
from sea_mq_worker.pipeline.session import described, parallelism
from sea_mq_worker.pipeline.snapshot import Snapshot, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.tables.source import FIRST_TIME, LAST_TIME
from sea_mq_worker.postgres.partitions import DroppedPartition, KeptPartition, PageRange
from sea_mq_worker.settings import Settings

BATCH_ROWS = 500_000
PER_SECOND = 20_000

_COMMITTED, _FINISHED = "archive", "archived"
"""Watermarks of committed batches, and of batches whose events were deleted, before the context."""

_TASK_PAGES_MIN = 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """Result of an archive.

    Attributes:
        found: events to archive, counted after unfinished batches were finished.
        unfit: events that stay in the outbox, because one of their times is outside the years 2 to 9998.
        batches: batches committed to the lake.
        archived: events in these batches.
        deleted: events deleted from the outbox, including unfinished batches of an earlier run.
        stayed: archived events that stay in the outbox, because they were replayed or changed in the
            meantime.
        resumed: number of the first unfinished batch of an earlier run; None: there was none.
        dropped: dropped partitions; their events are included in ``deleted``.
        dry_run: whether ``found`` events would be archived, and nothing was changed.
    """

    found: int = 0
    unfit: int = 0
    batches: int = 0
    archived: int = 0
    deleted: int = 0
    stayed: int = 0
    resumed: int | None = None
    dropped: tuple[DroppedPartition, ...] = ()
    dry_run: bool = False


def archive(
    spark: SparkSession,
    settings: Settings,
    lake: str,
    *,
    before: datetime,
    actor: str,
    reason: str,
    on_progress: Callable[[str], None],
    batch_rows: int = BATCH_ROWS,
    per_second: int = PER_SECOND,
) -> ArchiveResult:
    """Move the events published before a time to the lake.

    Args:
        spark: the session that runs the tasks.
        settings: the driver's settings; each task loads its own.
        lake: the lake's address.
        before: archive events published before this time, which must be in the past.
        actor: the operator, for the audit.
        reason: the operator's reason, for the audit.
        on_progress: called after each batch, and from time to time while its events are deleted.
        batch_rows: approximate number of events per batch; while the driver deletes them, it keeps about 100
            bytes of each in memory.
        per_second: approximate maximum of deleted events a second, to spare the worker.

    Raises:
        DataLossError: the lake differs from PostgreSQL; no event of the batch was deleted.
        PipelineError: another archive is running, or the lake cannot be written.
        UnavailableError: PostgreSQL is unavailable; run the job again.
        ContractError: PostgreSQL does not meet the worker's requirements.
    """
    if before > datetime.now(UTC):
        raise PipelineError("`before` must be in the past; choose an earlier time")
    reads, writes = table_datasets(settings, "outbox_events"), lake_datasets(lake, ARCHIVE)
    with (
        job_run(spark, settings, "archive", reads=reads, writes=writes) as session,
        deletion(settings, actor=actor, reason=reason) as outbox,
    ):
        run = _ArchiveRun(session, settings, lake, before, outbox, per_second, on_progress)
        run.resume()
        run.archive(_planned(settings, before, batch_rows))
    return run.result


def count(settings: Settings, lake: str, *, before: datetime) -> ArchiveResult:
    """Count the events that an archive would find, and change nothing."""
    unfinished = _unfinished(LakeTable(lake, ARCHIVE), settings)
    totals = _totals(_planned(settings, before, BATCH_ROWS))
    return ArchiveResult(resumed=min(unfinished, default=None), **totals)


def _planned(settings: Settings, before: datetime, batch_rows: int) -> Sequence[LeafPlan]:
    with snapshot(settings) as held:
        return plan(held, before, batch_rows)


def _totals(leaves: Sequence[LeafPlan]) -> dict[str, Any]:
    return {"found": sum(leaf.fit for leaf in leaves), "unfit": sum(leaf.unfit for leaf in leaves)}


@dataclass(slots=True)
class _ArchiveRun:
    spark: SparkSession
    settings: Settings
    lake: str
    before: datetime
    outbox: Deletion
    per_second: int
    on_progress: Callable[[str], None]
    result: ArchiveResult = field(default_factory=ArchiveResult)

    def resume(self) -> None:
        """Delete the events of the batches that an earlier run left unfinished."""
        self._table.sync()
        unfinished = self._unfinished
        self.result = replace(self.result, resumed=min(unfinished, default=None))
        for number in unfinished:
            if event := self.outbox.altered(self._keys(number)):
                raise DataLossError(
                    f"{self._table.uri}: batch {number} was left unfinished, and its event {event} differs"
                    " from the outbox. Nothing was deleted. Restore the files; if that is impossible, remove"
                    " its events that are still in the outbox from the lake"
                )
            self._delete(number)

    def archive(self, leaves: Sequence[LeafPlan]) -> None:
        """Archive the events of each leaf, and drop the leaf if it contains nothing else."""
        self._add(**_totals(leaves))
        for leaf in leaves:
            for pages in leaf.batches:
                self._write(pages)
                if not leaf.may_go:
                    self._delete_unfinished()
            if leaf.may_go and not self._drop(leaf.leaf):
                self._delete_unfinished()

    def _write(self, pages: PageRange) -> None:
        """Copy the events in a range of pages to the lake, unless there are none."""
        number = self._unfinished.stop
        with snapshot(self.settings) as held:
            expected = content(held, self.before, pages)
            if not expected.rows:
                return
            with described(self.spark, f"archive: write batch {number}"):
                files = self._table.write(self._rows(held, pages, number))
        written = read_files(self.spark, self._table.uri, ARCHIVE, files.paths, ARCHIVE.schema.names)
        found = self._read_back(content_of, written, number)
        if found != expected:
            raise DataLossError(
                f"{self._table.uri}: batch {number} differs from PostgreSQL: {found.rows} events"
                f" with digest {found.digest} instead of {expected.rows} with {expected.digest}. None of its"
                " events was deleted; find what damages the lake's files, then run again"
            )
        self.outbox.check_lock()
        self._commit(_COMMITTED, number, files, range=f"{pages.leaf} pages {pages.first}-{pages.end - 1}")
        self._add(batches=1, archived=found.rows)
        progress = f"{self.result.archived:,} of {self.result.found:,} in all"
        self.on_progress(f"batch {number}: {found.rows:,} events verified in the lake; {progress}")

    def _delete_unfinished(self) -> None:
        for number in self._unfinished:
            self._delete(number)

    def _delete(self, number: int) -> None:
        keys = self._keys(number)
        deleted, stayed = self.outbox.delete(
            keys,
            {"before": self.before.isoformat(), "lake": self.lake, "batch": number},
            per_second=self.per_second,
            on_deleted=lambda count: self.on_progress(
                f"batch {number}: {count:,} of {keys.num_rows:,} events deleted from the outbox"
            ),
        )
        self._commit(_FINISHED, number)
        self._add(deleted=deleted, stayed=stayed)

    def _drop(self, leaf: str) -> bool:
        """Drop a partition with the events of the unfinished batches; return whether it was dropped."""
        numbers = self._unfinished
        expected = self._read_back(content_of, self._committed(numbers), numbers.stop - 1)
        self.outbox.check_lock()
        selection = {"before": self.before.isoformat(), "lake": self.lake, "batches": list(numbers)}
        outcome = self.outbox.drop(leaf, self.before, expected, selection)
        self.on_progress(str(outcome))
        if isinstance(outcome, KeptPartition):
            return False
        self._add(deleted=outcome.events, dropped=(outcome,))
        for number in numbers:
            self._commit(_FINISHED, number)
        return True

    def _add(self, **counts: Any) -> None:
        sums = {name: getattr(self.result, name) + count for name, count in counts.items()}
        self.result = replace(self.result, **sums)

    def _commit(self, progress: str, number: int, files: Files = NO_FILES, **facts: str) -> None:
        context = self.settings.context
        facts |= {"job": "archive", "context": context, "batch": str(number)}
        metadata = {f"sea_mq.{name}": text for name, text in facts.items()}
        reached = Watermark(f"{progress} {context}", number, after=number - 1)
        if not self._table.commit(files, reached, metadata=metadata):
            raise PipelineError(f"{self._table.uri}: another archive has committed batch {number}; run again")

    @property
    def _table(self) -> LakeTable:
        return LakeTable(self.lake, ARCHIVE)

    @property
    def _unfinished(self) -> range:
        return _unfinished(self._table, self.settings)

    def _rows(self, held: Snapshot, pages: PageRange, number: int) -> DataFrame:
        share = -(-(pages.end - pages.first) // parallelism(self.spark))
        frame = read_outbox(
            self.spark,
            held,
            columns=KEPT,
            where=[("state", "=", EventState.PUBLISHED), ("published_at", "<", self.before)],
            pages=pages,
            pages_per_partition=max(_TASK_PAGES_MIN, share),
        )
        first, last = (F.lit(limit.isoformat()).cast("timestamp") for limit in (FIRST_TIME, LAST_TIME))
        return frame.where((F.least(*TIMES) > first) & (F.greatest(*TIMES) < last)).select(
            *KEPT,
            F.lit(number).cast("bigint").alias("batch"),
            F.lit(self.settings.context).alias("context"),
            F.to_date("published_at").alias("date"),
        )

    def _committed(self, numbers: range) -> DataFrame:
        of_batches = [("batch", ">=", numbers.start), ("batch", "<", numbers.stop)]
        return self._table.read(self.spark, [("context", "=", self.settings.context), *of_batches])

    def _keys(self, number: int) -> pa.Table:
        return self._read_back(keys_of, self._committed(range(number, number + 1)), number)

    def _read_back(self, read: Callable[[DataFrame], _T], rows: DataFrame, number: int) -> _T:
        try:
            with described(self.spark, f"archive: read batch {number} back"):
                return read(rows)
        except (PySparkException, Py4JError) as error:
            raise DataLossError(
                f"{self._table.uri}: batch {number} cannot be read back, so none of its events was deleted;"
                f" check the lake's files, then run again: {cause(error)[1]}"
            ) from error


def _unfinished(table: LakeTable, settings: Settings) -> range:
    """Return the numbers of committed batches whose events are not yet deleted from the outbox."""
    reached = table.watermarks()
    committed, finished = (reached(f"{progress} {settings.context}") for progress in (_COMMITTED, _FINISHED))
    return range(finished + 1, committed + 1)

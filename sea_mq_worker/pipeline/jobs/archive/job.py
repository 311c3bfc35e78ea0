"""Move published events to the lake, verify them there, and then delete them from the outbox.

Events are processed in batches. The job reads a batch under one snapshot and writes it to files. It reads the
files back, compares event count and digest with PostgreSQL's own, and commits the files. It then reads the
committed batch once more and deletes only events that equal the batch.

Two watermarks of the lake's table record the progress: ``archive <context>``, the last committed batch, and
``archived <context>``, the last batch whose events were deleted. A run after an interruption first compares
the batches between these watermarks with the outbox and deletes their events.

If all events of a partition can be archived, every batch is committed before anything is deleted. The
partition is dropped if its event count and digest still equal the compared ones; otherwise its events are
deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.adapters.postgres.schema.leaf_partitions import PageRange
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.archive.digest import KEPT, NOTHING, TIMES, Content, content_of, keys_of
from sea_mq_worker.pipeline.jobs.archive.outbox import Deletion, LeafPlan, content, deletion, plan
from sea_mq_worker.pipeline.jobs.archive.result import ArchiveProgress, ArchiveResult, OnProgress
from sea_mq_worker.pipeline.lake.read_files import read_files
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import NO_FILES, Files, LakeTable, Watermark
from sea_mq_worker.pipeline.session import described, parallelism
from sea_mq_worker.pipeline.snapshot import Snapshot, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.tables.source import FIRST_TIME, LAST_TIME
from sea_mq_worker.pipeline.spark_errors import cause
from sea_mq_worker.settings import Settings

BATCH_ROWS = 500_000
PER_SECOND = 20_000
NEEDS = ("database_url",)

_TASK_PAGES_MIN = 1024


def archive(
    spark: SparkSession,
    settings: Settings,
    lake: str,
    *,
    before: datetime,
    actor: str,
    reason: str,
    on_progress: OnProgress,
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
        batch_rows: approximate number of events per batch; the driver keeps about 100 bytes of each in
            memory.
        per_second: approximate maximum of deleted events a second, to spare the worker.

    Raises:
        DataLossError: the lake differs from PostgreSQL; no event of the batch was deleted.
        PipelineError: another archive is running, or the lake cannot be written.
        UnavailableError: PostgreSQL is unavailable; run the job again.
        ContractError: PostgreSQL does not meet the worker's requirements.
    """
    if before > datetime.now(UTC):
        raise PipelineError("`before` must be in the past; choose an earlier time")
    with deletion(settings) as outbox:
        run = _ArchiveRun(
            spark=spark,
            settings=settings,
            lake=lake,
            before=before,
            actor_and_reason=(actor, reason),
            outbox=outbox,
            per_second=per_second,
            on_progress=on_progress,
        )
        run.resume()
        with snapshot(settings) as held:
            leaves = plan(held, before, batch_rows)
        fit, unfit = _sums(leaves)
        run.result = replace(run.result, found=fit, unfit=unfit)
        for leaf in leaves:
            run.leaf(leaf)
    return run.result


def count(settings: Settings, lake: str, *, before: datetime) -> ArchiveResult:
    """Count the events that an archive would find, and change nothing."""
    table = LakeTable(lake, ARCHIVE)
    unfinished = _unfinished(table, settings)
    with snapshot(settings) as held:
        leaves = plan(held, before, BATCH_ROWS)
    fit, unfit = _sums(leaves)
    return ArchiveResult(found=fit, unfit=unfit, resumed=min(unfinished, default=None))


@dataclass(slots=True, kw_only=True)
class _ArchiveRun:
    spark: SparkSession
    settings: Settings
    lake: str
    before: datetime
    actor_and_reason: tuple[str, str]
    outbox: Deletion
    per_second: int
    on_progress: OnProgress
    result: ArchiveResult = field(default_factory=ArchiveResult)

    def resume(self) -> None:
        """Finish the batches that an earlier run left unfinished in the lake."""
        self._table.sync()
        unfinished = _unfinished(self._table, self.settings)
        self.result = replace(self.result, resumed=min(unfinished, default=None))
        for number in unfinished:
            self._resume(number)

    def _resume(self, number: int) -> None:
        keys = self._keys(number, self._committed_rows(number))
        if event := self.outbox.altered(keys):
            raise DataLossError(
                f"{self._table.uri}: batch {number} was left unfinished, and its event {event} differs from"
                " the outbox. Nothing was deleted. Restore the files; if that is impossible, remove its"
                " events that are still in the outbox from the lake"
            )
        self._delete(number, keys)

    def leaf(self, leaf: LeafPlan) -> None:
        """Archive the events of a leaf, and drop the leaf if it contains nothing else."""
        compared = NOTHING
        for pages in leaf.batches:
            if (batch := self._batch(pages)) is None:
                continue
            number, keys = batch
            compared += content_of(keys)
            if leaf.may_go:
                self._report(number, keys.num_rows)
            else:
                self._delete(number, keys)
        if leaf.may_go and not self._drop(leaf.leaf, compared):
            for number in _unfinished(self._table, self.settings):
                self._delete(number, self._keys(number, self._committed_rows(number)))

    def _batch(self, pages: PageRange) -> tuple[int, pa.Table] | None:
        """Archive the events in a range of pages; return the batch's number and keys, None without events."""
        number = (self._table.watermark(_committed(self.settings)) or 0) + 1
        with snapshot(self.settings) as held:
            wanted = content(held, self.before, pages)
            if not wanted.rows:
                return None
            with described(self.spark, f"archive: write batch {number}"):
                files = self._table.write(self._rows(held, pages, number))
        self._verify(number, wanted, self._keys(number, self._written_rows(files)))
        self.outbox.check_lock()
        self._commit(files, Watermark(_committed(self.settings), number, after=number - 1))
        keys = self._keys(number, self._committed_rows(number))
        self._verify(number, wanted, keys)
        self.result = replace(
            self.result, batches=self.result.batches + 1, archived=self.result.archived + wanted.rows
        )
        return number, keys

    def _drop(self, leaf: str, compared: Content) -> bool:
        """Drop a partition that contains exactly the compared events; return whether it was dropped."""
        self.outbox.check_lock()
        numbers = _unfinished(self._table, self.settings)
        selection = {"before": self.before.isoformat(), "lake": self.lake, "batches": list(numbers)}
        outcome = self.outbox.drop(leaf, self.before, compared, (*self.actor_and_reason, selection))
        self._report(max(numbers, default=0), compared.rows, partition=outcome)
        if isinstance(outcome, KeptPartition):
            return False
        self.result = replace(
            self.result,
            deleted=self.result.deleted + outcome.events,
            dropped=(*self.result.dropped, outcome),
        )
        for number in numbers:
            self._finish(number)
        return True

    @property
    def _table(self) -> LakeTable:
        return LakeTable(self.lake, ARCHIVE)

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
        is_fit = (F.least(*TIMES) > _moment(FIRST_TIME)) & (F.greatest(*TIMES) < _moment(LAST_TIME))
        return frame.where(is_fit).select(
            *KEPT,
            F.lit(number).cast("bigint").alias("batch"),
            F.lit(self.settings.context).alias("context"),
            F.to_date("published_at").alias("date"),
        )

    def _written_rows(self, files: Files) -> DataFrame:
        """Return the rows of files that are not committed yet."""
        paths = [action.path for action in files.actions]
        return read_files(self.spark, self._table.uri, ARCHIVE, paths, ARCHIVE.schema.names)

    def _committed_rows(self, number: int) -> DataFrame:
        context = self.settings.context
        rows = self._table.read(self.spark, [("context", "=", context), ("batch", "=", number)])
        return rows.where((F.col("context") == context) & (F.col("batch") == number))

    def _keys(self, number: int, rows: DataFrame) -> pa.Table:
        try:
            with described(self.spark, f"archive: read batch {number} back"):
                return keys_of(rows)
        except (PySparkException, Py4JError) as error:
            raise DataLossError(
                f"{self._table.uri}: batch {number} cannot be read back, so none of its events was deleted;"
                f" check the lake's files, then run again: {cause(error)[1]}"
            ) from error

    def _verify(self, number: int, wanted: Content, keys: pa.Table) -> None:
        found = content_of(keys)
        if found != wanted:
            raise DataLossError(
                f"{self._table.uri}: batch {number} differs from PostgreSQL: {found.rows} events"
                f" with digest {found.digest} instead of {wanted.rows} with {wanted.digest}. None of its"
                " events was deleted; find what damages the lake's files, then run again"
            )

    def _delete(self, number: int, keys: pa.Table) -> None:
        report = partial(self._report, number, keys.num_rows)
        report(0)
        selection = {"before": self.before.isoformat(), "lake": self.lake, "batch": number}
        action = self.outbox.begin(*self.actor_and_reason, selection)
        deleted, stayed = self.outbox.delete(keys, action, per_second=self.per_second, on_deleted=report)
        self._finish(number)
        self.result = replace(
            self.result,
            deleted=self.result.deleted + deleted,
            stayed=self.result.stayed + stayed,
        )

    def _finish(self, number: int) -> None:
        self._commit(NO_FILES, Watermark(_finished(self.settings), number, after=number - 1))

    def _report(
        self,
        number: int,
        rows: int,
        gone: int = 0,
        *,
        partition: DroppedPartition | KeptPartition | None = None,
    ) -> None:
        self.on_progress(
            ArchiveProgress(
                batch=number,
                rows=rows,
                gone=gone,
                done=self.result.archived,
                total=self.result.found,
                partition=partition,
            )
        )

    def _commit(self, files: Files, watermark: Watermark) -> None:
        if not self._table.commit(files, watermark):
            raise PipelineError(
                f"{self._table.uri}: another archive has committed batch {watermark.value}; run again"
            )


def _committed(settings: Settings) -> str:
    return f"archive {settings.context}"


def _finished(settings: Settings) -> str:
    return f"archived {settings.context}"


def _unfinished(table: LakeTable, settings: Settings) -> range:
    """Return the numbers of committed batches whose events are not yet deleted from the outbox."""
    committed, finished = table.watermark(_committed(settings)), table.watermark(_finished(settings))
    return range((finished or 0) + 1, (committed or 0) + 1)


def _sums(leaves: Sequence[LeafPlan]) -> tuple[int, int]:
    return sum(leaf.fit for leaf in leaves), sum(leaf.unfit for leaf in leaves)


def _moment(at: datetime) -> Column:
    return F.lit(at.isoformat()).cast("timestamp")

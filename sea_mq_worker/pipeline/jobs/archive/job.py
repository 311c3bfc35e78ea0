"""Archive: published events go to the lake, are proved to be there, and then leave the outbox.

Events go in batches. A batch is read under one snapshot and written to files; the files are read back and
compared with what PostgreSQL itself says of the same events (number and digest), then committed; what was
committed is read once more, and only events that equal what was read are deleted. Two marks of the lake's
table tell how far it came: ``archive <context>``, the last batch committed, and ``archived <context>``, the
last one whose events were deleted. So a run that ended anywhere is taken up by the next one: what is in the
lake and not yet done with is compared with the outbox and deleted there first.

Of a partition all of which is to go, every batch is committed before anything is deleted. It is dropped whole
if it then holds, by number and digest, exactly what was compared, and else loses its events as any other.
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
from sea_mq_worker.pipeline.snapshot import Snapshot, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.tables.query import FIRST_TIME, LAST_TIME
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
        spark: where the tasks run.
        settings: the driver's; each task reads its own.
        lake: its address.
        before: past.
        actor: who asks for it.
        reason: why.
        on_progress: is told after each batch, and now and then while its events are deleted.
        batch_rows: about how many events a batch has; some 100 bytes of each are held in the driver's memory.
        per_second: pace of the deletion, so that the worker is not hurt.

    Raises:
        DataLossError: the lake does not have what PostgreSQL has; nothing was deleted of the batch.
        PipelineError: another archive is at work, or the lake cannot be written.
        UnavailableError: PostgreSQL is away; run it again.
        ContractError: PostgreSQL is not as the worker needs it.
    """
    if before > datetime.now(UTC):
        raise PipelineError("the time before which events are archived must be past")
    with deletion(settings) as outbox:
        run = _Run(
            spark=spark,
            settings=settings,
            lake=lake,
            before=before,
            who=(actor, reason),
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
    """Tell what an archive would find, and change nothing."""
    table = LakeTable(lake, ARCHIVE)
    unfinished = _unfinished(table, settings)
    with snapshot(settings) as held:
        leaves = plan(held, before, BATCH_ROWS)
    fit, unfit = _sums(leaves)
    return ArchiveResult(found=fit, unfit=unfit, resumed=min(unfinished, default=None))


@dataclass(slots=True, kw_only=True)
class _Run:
    spark: SparkSession
    settings: Settings
    lake: str
    before: datetime
    who: tuple[str, str]
    outbox: Deletion
    per_second: int
    on_progress: OnProgress
    result: ArchiveResult = field(default_factory=ArchiveResult)

    def resume(self) -> None:
        """Finish the batches that an earlier run has left in the lake."""
        self._table.sync()
        unfinished = _unfinished(self._table, self.settings)
        self.result = replace(self.result, resumed=min(unfinished, default=None))
        for number in unfinished:
            self._resume(number)

    def _resume(self, number: int) -> None:
        keys = self._keys(number, self._committed_rows(number))
        if event := self.outbox.altered(keys):
            raise DataLossError(
                f"{self._table.uri}: batch {number} was left unfinished, and event {event} is not there what"
                " it is in the outbox. Nothing was deleted of it. Restore its files; where that cannot be"
                " done, take its events that are still in the outbox out of the lake"
            )
        self._delete(number, keys)

    def leaf(self, leaf: LeafPlan) -> None:
        """Archive what is to go of a leaf, and drop it if that is all of it."""
        compared = NOTHING
        for pages in leaf.batches:
            if (batch := self._batch(pages)) is None:
                continue
            number, keys = batch
            compared += content_of(keys)
            if leaf.may_go:
                self._tell(number, keys.num_rows)
            else:
                self._delete(number, keys)
        if leaf.may_go and not self._drop(leaf.leaf, compared):
            for number in _unfinished(self._table, self.settings):
                self._delete(number, self._keys(number, self._committed_rows(number)))

    def _batch(self, pages: PageRange) -> tuple[int, pa.Table] | None:
        """Archive the events in a range of pages; return the batch's number and keys, None: none is left."""
        number = (self._table.mark(_committed(self.settings)) or 0) + 1
        with snapshot(self.settings) as held:
            wanted = content(held, self.before, pages)
            if not wanted.rows:
                return None
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
        """Drop a partition that holds what was compared, and nothing else."""
        self.outbox.check_lock()
        numbers = _unfinished(self._table, self.settings)
        selection = {"before": self.before.isoformat(), "lake": self.lake, "batches": list(numbers)}
        told = self.outbox.drop(leaf, self.before, compared, (*self.who, selection))
        self._tell(max(numbers, default=0), compared.rows, partition=told)
        if isinstance(told, KeptPartition):
            return False
        self.result = replace(
            self.result,
            deleted=self.result.deleted + told.events,
            dropped=(*self.result.dropped, told),
        )
        for number in numbers:
            self._finish(number)
        return True

    @property
    def _table(self) -> LakeTable:
        return LakeTable(self.lake, ARCHIVE)

    def _rows(self, held: Snapshot, pages: PageRange, number: int) -> DataFrame:
        share = -(-(pages.end - pages.first) // self.spark.sparkContext.defaultParallelism)
        frame = read_outbox(
            self.spark,
            held,
            columns=KEPT,
            states=[EventState.PUBLISHED],
            published_before=self.before,
            partition=pages.leaf,
            pages=(pages.first, pages.end),
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
        """Return the rows of files that nobody else sees yet."""
        paths = [action.path for action in files.actions]
        return read_files(self.spark, self._table.uri, ARCHIVE, paths, ARCHIVE.schema.names)

    def _committed_rows(self, number: int) -> DataFrame:
        context = self.settings.context
        rows = self._table.read(self.spark, [("context", "=", context), ("batch", "=", number)])
        return rows.where((F.col("context") == context) & (F.col("batch") == number))

    def _keys(self, number: int, rows: DataFrame) -> pa.Table:
        try:
            return keys_of(rows)
        except (PySparkException, Py4JError) as error:
            raise DataLossError(
                f"{self._table.uri}: batch {number} cannot be read back, so nothing was deleted of it:"
                f" {cause(error)[1]}"
            ) from error

    def _verify(self, number: int, wanted: Content, keys: pa.Table) -> None:
        found = content_of(keys)
        if found != wanted:
            raise DataLossError(
                f"{self._table.uri}: batch {number} does not hold what PostgreSQL has: {found.rows} events"
                f" with digest {found.digest} instead of {wanted.rows} with {wanted.digest}. Nothing was"
                " deleted of it; look for what damages the lake's files, then run again"
            )

    def _delete(self, number: int, keys: pa.Table) -> None:
        tell = partial(self._tell, number, keys.num_rows)
        tell(0)
        selection = {"before": self.before.isoformat(), "lake": self.lake, "batch": number}
        action = self.outbox.begin(*self.who, selection)
        deleted, stayed = self.outbox.delete(keys, action, per_second=self.per_second, on_deleted=tell)
        self._finish(number)
        self.result = replace(
            self.result,
            deleted=self.result.deleted + deleted,
            stayed=self.result.stayed + stayed,
        )

    def _finish(self, number: int) -> None:
        self._commit(NO_FILES, Watermark(_finished(self.settings), number, after=number - 1))

    def _tell(
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

    def _commit(self, files: Files, mark: Watermark) -> None:
        if not self._table.commit(files, mark):
            raise PipelineError(
                f"{self._table.uri}: another archive has committed batch {mark.value}; run again"
            )


def _committed(settings: Settings) -> str:
    return f"archive {settings.context}"


def _finished(settings: Settings) -> str:
    return f"archived {settings.context}"


def _unfinished(table: LakeTable, settings: Settings) -> range:
    """Return the numbers of the batches that are in the lake and not yet done with in the outbox."""
    committed, finished = table.mark(_committed(settings)), table.mark(_finished(settings))
    return range((finished or 0) + 1, (committed or 0) + 1)


def _sums(leaves: Sequence[LeafPlan]) -> tuple[int, int]:
    return sum(leaf.fit for leaf in leaves), sum(leaf.unfit for leaf in leaves)


def _moment(at: datetime) -> Column:
    return F.lit(at.isoformat()).cast("timestamp")

"""Copy streams into the lake: as received (bronze), as one row per event (silver), and as counts (gold).

Each of the three steps is a separate commit and begins at its table's watermarks. If a run is killed between
two steps, the next run completes them, also if no new message was stored.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.job_run import lake_datasets, lineage, stream_datasets
from sea_mq_worker.pipeline.jobs.land import gold
from sea_mq_worker.pipeline.jobs.land.event_columns import to_bronze, to_silver
from sea_mq_worker.pipeline.jobs.land.loss_checks import check_after_read, current_progress
from sea_mq_worker.pipeline.jobs.land.silver import Silver, rows_of
from sea_mq_worker.pipeline.jobs.land.stream_progress import (
    StreamProgress,
    incarnations,
    nanoseconds,
    progress_of,
)
from sea_mq_worker.pipeline.jobs.land.tasks import ROWS_IN_PROCESS, THREADS, run_tasks
from sea_mq_worker.pipeline.jobs.typed import typed_tables
from sea_mq_worker.pipeline.jobs.typed.event_schemas import EventSchema
from sea_mq_worker.pipeline.lake.erased_ids import erased_hashes, without_erased
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, IDS, SILVER
from sea_mq_worker.pipeline.lake.storage import check_space
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.lake.write_files import TableRows, write_files
from sea_mq_worker.pipeline.session import job_session, parallelism
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.reader import SequenceRange, read_range
from sea_mq_worker.pipeline.sources.jetstream.state import stream_state
from sea_mq_worker.settings import Settings

_BATCH_BYTES = 2 * 2**30
_ROWS_PER_TASK_MAX = 50_000
_STORED_SHARE = 0.5
"""Size of the lake's files, relative to the messages in the stream; 0.2 for texts, more for random bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedStream:
    """Result for a stream.

    Attributes:
        stream: the stream's name.
        incarnation: distinguishes the stream from others with the same name.
        rows: messages added to bronze.
        last_seq: the last landed sequence.
        left: sequences after ``last_seq``, up to the stream's end at the start of this run.
    """

    stream: str
    incarnation: str
    rows: int
    last_seq: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandResult:
    """Result of a run.

    Attributes:
        streams: result per stream.
        rows: messages added to bronze.
        events: rows added to silver, without copies, and including messages that an earlier run added to
            bronze.
        partitions: updated partitions of gold.
        typed: rows added to typed tables.
        violations: rows added to quarantine, because they violate their schema.
        compacted: partitions whose files were merged.
        missing: descriptions of messages missing in the lake, if loss was accepted.
        seconds: duration.
    """

    streams: tuple[LandedStream, ...]
    rows: int = 0
    events: int = 0
    partitions: int = 0
    typed: int = 0
    violations: int = 0
    compacted: int = 0
    missing: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LandOptions:
    """Options of a run.

    Attributes:
        batch_rows: sequences per commit; fewer if they exceed 2 GiB.
        accept_loss: continue if messages were deleted before they were landed, and report them.
        dedupe_days: search this many days back for copies of an ID; None: search all of silver.
        late_seconds: an event is late if it was stored more than this after it occurred.
        compact_files: merge the small files of a partition if there are more than this; None: never.
        vacuum_hours: delete merged files and files of killed runs after this many hours; None: never.
        event_schemas: schemas of the events that have typed tables.
    """

    batch_rows: int = 500_000
    accept_loss: bool = False
    dedupe_days: int | None = None
    late_seconds: float = 60.0
    compact_files: int | None = None
    vacuum_hours: int | None = None
    event_schemas: tuple[EventSchema, ...] = ()


def land(
    spark: SparkSession | None,
    settings: Settings,
    *,
    lake: str,
    streams: Collection[str],
    options: LandOptions | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> LandResult:
    """Land all messages that the streams contain now.

    Args:
        spark: the session; None: work in this process, which is faster for few messages.
        settings: settings for the connection to NATS.
        lake: the lake's address.
        streams: names of the streams.
        options: options of the run.
        on_progress: called with a text after each batch.
        is_stopping: checked after each batch; if it returns true, the run ends early without loss.

    Raises:
        DataLossError: a stream lost messages before they were landed; the other streams were landed.
        ConflictError: another run is landing one of the streams into this lake.
        PipelineError: the lake cannot be read or written.
    """
    session, given = job_session(spark) if spark else None, options or LandOptions()
    bronze = LakeTable(lake, BRONZE)
    silver = Silver(session, lake, rows_max=given.batch_rows, dedupe_days=given.dedupe_days)
    reads, writes = stream_datasets(settings, streams), lake_datasets(lake, BRONZE, SILVER, GOLD)
    with lineage("land", settings, reads=reads, writes=writes):
        run = _LandRun(session, settings, bronze, silver, given, on_progress, is_stopping)
        return run.all(list(dict.fromkeys(streams)))


def count(settings: Settings, *, lake: str, streams: Collection[str]) -> LandResult:
    """Count the sequences that a run would land, in ``left``, and change nothing."""
    table = LakeTable(lake, BRONZE)
    found = []
    for stream in dict.fromkeys(streams):
        state = stream_state(settings, stream)
        progress = progress_of(table, stream)
        if progress.created != nanoseconds(state.created):  # recreated: nothing was landed
            progress = StreamProgress(stream=stream, created=nanoseconds(state.created))
        left = max(0, state.last_seq - max(progress.landed, state.first_seq - 1))
        found.append(_landed(progress, rows=0, left=left))
    return LandResult(streams=tuple(found))


def write_messages(
    lake: str, options: JetStreamOptions, incarnation: str, erased: frozenset[str], sequences: range
) -> Iterator[pa.RecordBatch]:
    """Write bronze, silver and the index of IDs from messages of a stream; yield the entry of each file.

    ``erased`` are hashes of message IDs that must not return.
    """

    def rows() -> Iterator[TableRows]:
        wanted = SequenceRange(options.created or "", sequences[0], sequences[-1])
        for messages in read_range(options, wanted):
            bronze = to_bronze(messages, incarnation)
            if erased:
                bronze = without_erased(bronze, to_silver(bronze).column("message_id"), erased)
            yield BRONZE, bronze
            yield from rows_of(bronze)

    return write_files(lake, rows())


def _landed(progress: StreamProgress, *, rows: int, left: int) -> LandedStream:
    incarnation, last = progress.incarnation, progress.landed
    return LandedStream(stream=progress.stream, incarnation=incarnation, rows=rows, last_seq=last, left=left)


@dataclass(slots=True)
class _LandRun:
    spark: SparkSession | None
    settings: Settings
    bronze: LakeTable
    silver: Silver
    options: LandOptions
    on_progress: Callable[[str], None]
    is_stopping: Callable[[], bool]
    events: int = 0
    missing: list[str] = field(default_factory=list)

    def all(self, streams: Sequence[str]) -> LandResult:
        started = time.monotonic()
        self.silver.index()
        landed, lost = [], []
        for stream in streams:
            try:
                landed.append(self._stream(stream))
            except DataLossError as error:
                lost.append(str(error))
        progresses = [progress for stream in streams for progress in incarnations(self.bronze, stream)]
        late_seconds, schemas = self.options.late_seconds, self.options.event_schemas
        partitions = gold.refresh(self.spark, self.bronze.lake, progresses, late_seconds=late_seconds)
        typed, violations = typed_tables.refresh(self.spark, self.bronze.lake, schemas, progresses)
        compacted = self._maintain()
        if lost:
            raise DataLossError("\n".join(lost))
        return LandResult(
            streams=tuple(landed),
            rows=sum(each.rows for each in landed),
            events=self.events,
            partitions=partitions,
            typed=typed,
            violations=violations,
            compacted=compacted,
            missing=tuple(self.missing),
            seconds=round(time.monotonic() - started, 3),
        )

    def _stream(self, stream: str) -> LandedStream:
        for each in incarnations(self.bronze, stream):
            self.events += self.silver.catch_up(each)
        state = stream_state(self.settings, stream)
        progress = current_progress(self.settings, self.bronze, state, on_loss=self._report_loss)
        left = min(state.messages, state.last_seq - progress.landed)
        check_space(self.bronze.lake, int(_STORED_SHARE * left * state.size_bytes / max(state.messages, 1)))
        fitting = _BATCH_BYTES * state.messages // max(state.size_bytes, 1) or self.options.batch_rows
        size, rows = min(self.options.batch_rows, fitting), 0
        while progress.landed < state.last_seq and not self.is_stopping():
            started = time.monotonic()
            first = max(progress.landed + 1, state.first_seq)
            sequences = range(first, min(state.last_seq + 1, first + size))
            progress, landed = self._batch(progress, state, sequences)
            rows += landed
            per_second, left = landed / (time.monotonic() - started), state.last_seq - progress.landed
            self.on_progress(f"land: {stream}: {rows:,} messages, {per_second:,.0f} a second, {left:,} left")
        return _landed(progress, rows=rows, left=state.last_seq - progress.landed)

    def _batch(
        self, progress: StreamProgress, state: StreamInfo, sequences: range
    ) -> tuple[StreamProgress, int]:
        """Land a range of sequences; return the progress and the number of messages."""
        stream, count, last = progress.stream, len(sequences), sequences.stop - 1
        size = max(-(-count // THREADS), ROWS_IN_PROCESS)
        if self.spark and count > ROWS_IN_PROCESS:
            fair = -(-count // parallelism(self.spark))
            size = min(max(fair, ROWS_IN_PROCESS), _ROWS_PER_TASK_MAX)
        tasks = [sequences[at : at + size] for at in range(0, count, size)]
        # Loss is checked afterwards.
        options = JetStreamOptions(stream=stream, created=state.created, fail_on_data_loss=False)
        lake = self.bronze.lake
        write = partial(write_messages, lake, options, progress.incarnation, erased_hashes(lake))
        description = f"land {stream} {sequences.start}-{last}: bronze and silver"
        entries = run_tasks(self.spark, description, write, tasks, rows=count)
        files = self.bronze.files(entries)
        now = stream_state(self.settings, stream)
        check_after_read(progress, state, now, sequences, rows=files.rows, on_loss=self._report_loss)
        metadata = progress.metadata(sequences.start, last)
        is_new = self.bronze.commit(files, *progress.landed_to(last), metadata=metadata)
        self.events += self.silver.add(progress, entries, after=progress.landed, upto=last)
        return replace(progress, landed=last), files.rows if is_new else 0

    def _report_loss(self, text: str) -> None:
        if not self.options.accept_loss:
            raise DataLossError(text)
        self.missing.append(text)

    def _maintain(self) -> int:
        schemas = (BRONZE, SILVER, IDS, GOLD, *(each.table for each in self.options.event_schemas))
        tables = [LakeTable(self.bronze.lake, schema) for schema in schemas]
        files, hours = self.options.compact_files, self.options.vacuum_hours
        compacted = 0 if files is None else sum(table.compact(files) for table in tables)
        if hours is not None:
            for table in tables:
                table.vacuum(hours)
        return compacted

"""Read all compared sources once, in an order in which events in transit never look lost."""

import operator
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NullType, StructField, StructType

from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, StreamInfo
from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.executor_settings import access_options, config_of
from sea_mq_worker.pipeline.jobs.land.stream_progress import incarnations, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile.audit import Audit, read_audit
from sea_mq_worker.pipeline.jobs.reconcile.broker import query_consumers, query_stream
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import (
    EVENT_COLUMNS,
    EVENTS,
    MESSAGES,
    Batches,
    EventFingerprints,
    MessageFingerprints,
)
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import Condition, Snapshot, read_inbox, snapshot, source_options
from sea_mq_worker.pipeline.sources.jetstream.source import JetStreamSource
from sea_mq_worker.pipeline.sources.tables.source import OutboxSource
from sea_mq_worker.settings import ConsumerSettings, Settings

INBOX_COLUMNS = ("processed_at", "dead_lettered_at", "locked_until", "content_hash", "stream_seq")

_INCARNATION = 1 << 48
"""Offset between incarnations: positions are sequences, each incarnation after the previous one."""

_CLOCK = timedelta(hours=1)
"""Margin added to a time range, because the clocks of database and broker may differ."""

_DISK_BYTES = 800
"""Disk that a message, its row and its inbox row need together, in Spark's temporary files."""

_OPERATORS = {"=": operator.eq, "<": operator.lt, ">=": operator.ge}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """A service's inbox, and the progress of its consumers just before the read.

    Attributes:
        at: the database's time of the read.
        rows: ``id`` and the ``INBOX_COLUMNS``.
        pruned_before: rows processed before this time may have been pruned; None: no prune.
    """

    context: str
    consumers: Sequence[ConsumerInfo]
    at: datetime
    rows: DataFrame
    pruned_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream, with the lake's messages that left it.

    Attributes:
        state: bounds before the read, but the first message after the read.
        messages: ``position`` and the columns of ``MESSAGES``.
        current: position of sequence 0 of the current stream.
    """

    state: StreamInfo
    messages: DataFrame
    current: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All compared data.

    Attributes:
        inboxes: this service's inbox first, then the receivers'.
        streams: streams by name, this service's first.
        events: rows of outbox and archive, which ``in_table`` distinguishes.
        audit: operators' actions in this service's schema.
        rows: number of rows read from each source except the outbox.
    """

    inboxes: Sequence[Inbox]
    streams: dict[str, Stream]
    events: DataFrame
    audit: Audit
    rows: dict[str, int] = field(default_factory=dict)


def read_sources(
    spark: SparkSession,
    settings: Settings,
    wanted: ReconcileRequest,
    *,
    held: ExitStack,
    on_progress: Callable[[str], None],
) -> Sources:
    """Read the sources against the direction in which an event travels.

    An event found in one source had then already reached the sources before it when those are read. Events in
    transit therefore look pending, and never lost. The order of reading is: consumers' positions, inboxes,
    streams, outbox, archive. Events that move to the lake in the meantime are found there, because the lake
    is read last. ``held`` keeps snapshots and persisted rows until it is closed.

    Raises:
        PipelineError: the disk for temporary files is too small.
        DataLossError: a stream was recreated or restored during the read.
    """
    reading = _Reading(spark, wanted, held, on_progress)
    inboxes = [reading.inbox(None, settings, settings.consumers)]
    for each in wanted.receivers:
        ours = [consumer for consumer in each.settings.consumers if consumer.stream == settings.stream]
        inboxes.append(reading.inbox(each.config, each.settings, ours))
    names = [settings.stream, *(one.stream for inbox in inboxes for one in inbox.consumers)]
    streams = {name: reading.stream(settings, name) for name in dict.fromkeys(names)}
    moment = held.enter_context(snapshot(settings))
    events = reading.outbox(settings, moment)
    if wanted.lake:
        events = events.unionByName(reading.archive(settings, wanted.lake))
        streams = {name: reading.with_bronze(stream, wanted.lake) for name, stream in streams.items()}
    for name in streams.keys() - {settings.stream}:
        stored = _matching(streams[name].messages, _between("time", wanted.since, wanted.until))
        streams[name] = replace(streams[name], messages=stored)
    audit = read_audit(moment)
    return Sources(inboxes=inboxes, streams=streams, events=events, audit=audit, rows=reading.rows)


@dataclass(frozen=True, slots=True)
class _Reading:
    spark: SparkSession
    wanted: ReconcileRequest
    held: ExitStack
    on_progress: Callable[[str], None]
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def since(self) -> datetime | None:
        return self.wanted.since and self.wanted.since - _CLOCK

    def inbox(self, config: str | None, settings: Settings, consumers: Sequence[ConsumerSettings]) -> Inbox:
        progress = query_consumers(settings, consumers)
        moment = self.held.enter_context(snapshot(settings))
        with config_of(config):
            rows = read_inbox(
                self.spark,
                moment,
                columns=("message_id", *INBOX_COLUMNS),
                where=[("received_at", ">=", self.since)],
            )
            kept = self._keep(f"inbox {settings.context}", rows.withColumnRenamed("message_id", "id"))
        return Inbox(
            context=settings.context,
            consumers=progress,
            at=moment.at,
            rows=kept,
            pruned_before=read_audit(moment).inbox_pruned_before,
        )

    def stream(self, settings: Settings, name: str) -> Stream:
        """Read a stream's messages.

        Messages that retention removes in the meantime are missing without an error, so the first sequence is
        queried again afterwards.
        """
        before, start = query_stream(settings, name, self.since)
        check_disk(self.spark, before.last_seq - start + 1)
        options = {"stream": name, "startSeq": str(max(start, 1)), "endSeq": str(before.last_seq)}
        source = JetStreamSource({**options, "failOnDataLoss": "false", **access_options()})
        reader = source.reader(StructType())
        found = _represented(self.spark, reader, MessageFingerprints(name), MESSAGES)
        messages = self._keep(name, found)
        after, _ = query_stream(settings, name, None)
        if after.created != before.created or after.last_seq < before.last_seq:
            raise DataLossError(
                f"stream {name} was recreated or restored during the read: run reconcile again when the "
                "broker is stable"
            )
        state = replace(before, first_seq=after.first_seq, first_time=after.first_time)
        return Stream(state=state, messages=messages.withColumn("position", F.col("seq")))

    def outbox(self, settings: Settings, moment: Snapshot) -> DataFrame:
        """Return the rows of the outbox, which Spark reads with the first comparison."""
        created = _between("created_at", self.wanted.since, self.wanted.until)
        columns = StructType([StructField(name, NullType()) for name in EVENT_COLUMNS])
        options = source_options(moment, columns=EVENT_COLUMNS, where=created)
        represent = EventFingerprints(settings.context, settings.source)
        rows = _represented(self.spark, OutboxSource(options).reader(columns), represent, EVENTS)
        return rows.withColumn("in_table", F.lit(True))

    def archive(self, settings: Settings, lake: str) -> DataFrame:
        """Read the archive; an event is published after its creation, so older files are not read."""
        since = self.wanted.since
        published: list[Condition] = [("date", ">=", since and since.date()), ("published_at", ">=", since)]
        rows = _lake_rows(
            self.spark, LakeTable(lake, ARCHIVE), [("context", "=", settings.context), *published]
        )
        rows = _matching(rows, _between("created_at", since, self.wanted.until))
        rows = rows.withColumn("state", F.lit("PUBLISHED")).select(*EVENT_COLUMNS)
        represent = EventFingerprints(settings.context, settings.source)
        archived = rows.mapInArrow(represent, from_arrow_schema(EVENTS))
        return self._keep("archive", archived).withColumn("in_table", F.lit(False))

    def with_bronze(self, stream: Stream, lake: str) -> Stream:
        """Add the lake's messages that left the stream: older incarnations, and those before its start.

        If the stream was restored, the later incarnation's message is used for a sequence.
        """
        name, since = stream.state.name, self.since
        bronze = LakeTable(lake, BRONZE)
        created, found = nanoseconds(stream.state.created), incarnations(bronze, name)
        ours = [number for number, each in enumerate(found) if each.created == created]
        current = max(ours, default=len(found)) * _INCARNATION
        landed: list[DataFrame] = []
        for number, each in enumerate(found):
            conditions: list[Condition] = [
                ("stream", "=", name),
                ("date", ">=", since and since.date()),
                ("incarnation", "=", each.incarnation),
                ("time", ">=", since),
                ("seq", "<", stream.state.first_seq if each.created == created else None),
            ]
            rows = _lake_rows(self.spark, bronze, conditions)
            part = rows.mapInArrow(MessageFingerprints(name), from_arrow_schema(MESSAGES))
            position = F.col("seq") + number * _INCARNATION
            landed.append(part.withColumns({"position": position, "created": F.lit(each.created)}))
        messages = stream.messages.withColumn("position", F.col("seq") + current)
        if not landed:
            return replace(stream, messages=messages, current=current)
        older = reduce(DataFrame.unionByName, landed)
        if len(ours) > 1:
            older = deduplicate_by(older, ("created", "seq"), F.desc("position"))
        older = self._keep(f"bronze {name}", older.drop("created"))
        return replace(stream, messages=messages.unionByName(older), current=current)

    def _keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Read rows now, and keep them on the executors' disks."""
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self.held.callback(kept.unpersist)
        with described(self.spark, f"reconcile: read {name}"):
            self.rows[name] = kept.count()
        self.on_progress(f"{name}: read {self.rows[name]}")
        return kept


@dataclass(frozen=True, slots=True)
class _ReadPartitions:
    """Reads partitions of a source and represents them in one process, so that Java sees no payload."""

    reader: DataSourceReader
    partitions: Sequence[InputPartition]
    represent: Callable[[Batches], Batches]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows of the partitions that ``batches`` numbers."""
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.represent(self.reader.read(self.partitions[number]))


def _represented(
    spark: SparkSession, reader: DataSourceReader, represent: Callable[[Batches], Batches], schema: pa.Schema
) -> DataFrame:
    partitions = reader.partitions()
    tasks = spark.range(0, len(partitions), 1, len(partitions))
    return tasks.mapInArrow(_ReadPartitions(reader, partitions, represent), from_arrow_schema(schema))


def _lake_rows(spark: SparkSession, table: LakeTable, conditions: Sequence[Condition]) -> DataFrame:
    """Return the rows that match, from the files that may have some."""
    given = [condition for condition in conditions if condition[2] is not None]
    return _matching(table.read(spark, given), given)


def _matching(rows: DataFrame, conditions: Sequence[Condition]) -> DataFrame:
    for column, compares, value in conditions:
        if value is not None:
            rows = rows.where(_OPERATORS[compares](F.col(column), F.lit(value)))
    return rows


def _between(column: str, since: datetime | None, until: datetime | None) -> list[Condition]:
    return [(column, ">=", since), (column, "<", until)]


def check_disk(spark: SparkSession, messages: int) -> None:
    """Check that the temporary files of a comparison fit, if Spark runs on this machine alone.

    Raises:
        PipelineError: they do not fit.
    """
    if not str(spark.conf.get("spark.master", "")).startswith("local"):
        return
    folder = str(spark.conf.get("spark.local.dir", tempfile.gettempdir())).split(",")[0]
    needed, free = messages * _DISK_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise PipelineError(
            f"comparing {messages} messages needs about {needed >> 20} MiB for temporary files, but {folder} "
            f"has {free >> 20} MiB: set TMPDIR to a larger disk, or compare a part by --since"
        )

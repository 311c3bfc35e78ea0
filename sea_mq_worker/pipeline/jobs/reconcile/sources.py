"""Read all compared sources once, in an order in which events in transit never look lost."""

import operator
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.executor_settings import access_options, config_of
from sea_mq_worker.pipeline.jobs.land.stream_progress import incarnations, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile.audit import Audit, read_audit
from sea_mq_worker.pipeline.jobs.reconcile.broker import (
    ConsumerPosition,
    may_drop,
    query_positions,
    query_start,
)
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import (
    EVENT_COLUMNS,
    EVENTS,
    MESSAGES,
    Batches,
    EventFingerprints,
    MessageFingerprints,
)
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.result import Compared
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import Condition, Snapshot, read_inbox, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.jetstream.source import JetStreamSource
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
    positions: Sequence[ConsumerPosition]
    at: datetime
    rows: DataFrame
    pruned_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream, with the lake's messages that left it.

    Attributes:
        compared: the stream's bounds.
        messages: ``position`` and the columns of ``MESSAGES``.
        current: position of sequence 0 of the current stream.
        max_age_seconds: age at which the stream removes messages; 0: never.
        drops: whether the stream may remove messages for other reasons than age.
    """

    compared: Compared
    messages: DataFrame
    current: int = 0
    max_age_seconds: float = 0
    drops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All compared data.

    Attributes:
        inboxes: this service's inbox first, then the receivers'.
        streams: streams by name.
        events: rows of outbox and archive, which ``in_table`` distinguishes.
        audit: operators' actions in this service's schema.
        rows: number of rows read from each source except the outbox.
    """

    inboxes: Sequence[Inbox]
    streams: dict[str, Stream]
    events: DataFrame
    audit: Audit
    rows: dict[str, int]


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
    reading = _Reading(spark, wanted, held, on_progress, {})
    inboxes = [reading.inbox(None, settings, settings.consumers)]
    for each in wanted.receivers:
        ours = [consumer for consumer in each.settings.consumers if consumer.stream == settings.stream]
        inboxes.append(reading.inbox(each.config, each.settings, ours))
    names = [settings.stream, *(one.stream for inbox in inboxes for one in inbox.positions)]
    streamed = {name: reading.stream(settings, name) for name in dict.fromkeys(names)}
    moment = held.enter_context(snapshot(settings))
    events = reading.events(settings, moment)
    streams = {name: reading.with_lake(stream) for name, stream in streamed.items()}
    for name in streams.keys() - {settings.stream}:
        messages = within(streams[name].messages, "time", wanted)
        streams[name] = replace(streams[name], messages=messages)
    return Sources(
        inboxes=inboxes,
        streams=streams,
        events=events,
        audit=read_audit(moment),
        rows=reading.rows,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    spark: SparkSession
    wanted: ReconcileRequest
    held: ExitStack
    on_progress: Callable[[str], None]
    rows: dict[str, int]

    @property
    def since(self) -> datetime | None:
        return self.wanted.since and self.wanted.since - _CLOCK

    def inbox(self, config: str | None, settings: Settings, consumers: Sequence[ConsumerSettings]) -> Inbox:
        positions = query_positions(settings, consumers)
        moment = self.held.enter_context(snapshot(settings))
        with config_of(config):
            columns = ("message_id", *INBOX_COLUMNS)
            received: list[Condition] = [("received_at", ">=", self.since)]
            rows = read_inbox(self.spark, moment, columns=columns, where=received)
            kept = self._keep(f"inbox {settings.context}", rows.withColumnRenamed("message_id", "id"))
        pruned_before = read_audit(moment).inbox_pruned_before
        return Inbox(
            context=settings.context,
            positions=positions,
            at=moment.at,
            rows=kept,
            pruned_before=pruned_before,
        )

    def stream(self, settings: Settings, name: str) -> Stream:
        """Read a stream's fingerprints.

        Messages that retention removes in the meantime are missing without an error, so the first sequence is
        queried again afterwards.
        """
        before, start = query_start(settings, name, self.since)
        _check_disk(self.spark, before.last_seq - start + 1)
        fingerprints = _stream_fingerprints(self.spark, name, max(start, 1), before.last_seq)
        messages = self._keep(name, fingerprints)
        after, _ = query_start(settings, name, None)
        if after.created != before.created or after.last_seq < before.last_seq:
            raise DataLossError(
                f"stream {name} was recreated or restored during the read: run reconcile again when the "
                "broker is stable"
            )
        return Stream(
            compared=_compared(before, after, streamed=self.rows[name]),
            messages=messages.withColumn("position", F.col("seq")),
            max_age_seconds=before.max_age_seconds,
            drops=may_drop(before.config),
        )

    def with_lake(self, stream: Stream) -> Stream:
        """Add the lake's messages that left the stream: older incarnations, and those before its start.

        If the stream was restored, the later incarnation's message is used for a sequence.
        """
        if self.wanted.lake is None:
            return stream
        bounds = stream.compared
        bronze = LakeTable(self.wanted.lake, BRONZE)
        created, found = nanoseconds(bounds.created), incarnations(bronze, bounds.stream)
        numbers = [number for number, each in enumerate(found) if each.created == created]
        current = max(numbers, default=len(found)) * _INCARNATION
        parts = []
        for number, each in enumerate(found):
            conditions: list[tuple[str, str, Any]] = [("stream", "=", bounds.stream)]
            conditions.append(("incarnation", "=", each.incarnation))
            if each.created == created:
                conditions.append(("seq", "<", bounds.first_seq))
            if self.since:
                conditions += [("date", ">=", self.since.date()), ("time", ">=", self.since)]
            rows = self._lake_rows(bronze, conditions, ("seq", "time", "subject", "headers", "data"))
            part = rows.mapInArrow(MessageFingerprints(bounds.stream), from_arrow_schema(MESSAGES))
            position = F.col("seq") + number * _INCARNATION
            parts.append(part.withColumns({"position": position, "created": F.lit(each.created)}))
        if not parts:
            return replace(stream, current=current)
        landed = reduce(DataFrame.unionByName, parts)
        if len(numbers) > 1:
            landed = deduplicate_by(landed, ("created", "seq"), F.desc("position"))
        landed = self._keep(f"bronze {bounds.stream}", landed.drop("created"))
        streamed = stream.messages.withColumn("position", F.col("seq") + current)
        count = self.rows[f"bronze {bounds.stream}"]
        return replace(
            stream,
            compared=replace(bounds, landed=count),
            messages=streamed.unionByName(landed),
            current=current,
        )

    def events(self, settings: Settings, moment: Snapshot) -> DataFrame:
        """Return the rows of the outbox, which are read with the first comparison, and of the archive."""
        since, until = self.wanted.since, self.wanted.until
        fingerprints = EventFingerprints(settings.context, settings.source)
        created: list[Condition] = [("created_at", ">=", since), ("created_at", "<", until)]
        table = read_outbox(self.spark, moment, columns=EVENT_COLUMNS, where=created)
        events = table.mapInArrow(fingerprints, from_arrow_schema(EVENTS)).withColumn("in_table", F.lit(True))
        if self.wanted.lake is None:
            return events
        conditions: list[tuple[str, str, Any]] = [("context", "=", settings.context)]
        if since:  # an event is published after its creation
            conditions += [("date", ">=", since.date()), ("published_at", ">=", since)]
        columns = tuple(name for name in EVENT_COLUMNS if name != "state")
        rows = self._lake_rows(LakeTable(self.wanted.lake, ARCHIVE), conditions, columns)
        rows = within(rows.withColumn("state", F.lit("PUBLISHED")), "created_at", self.wanted)
        archived = self._keep("archive", rows.mapInArrow(fingerprints, from_arrow_schema(EVENTS)))
        return events.unionByName(archived.withColumn("in_table", F.lit(False)))

    def _lake_rows(self, table: LakeTable, conditions: Conditions, columns: Sequence[str]) -> DataFrame:
        """Return the rows that match, from the files that may contain some."""
        named = tuple(dict.fromkeys((*columns, *(name for name, _, _ in conditions))))
        rows = table.read(self.spark, conditions, columns=named)
        for name, compares, value in conditions:
            rows = rows.where(_OPERATORS[compares](F.col(name), F.lit(value)))
        return rows.select(*columns)

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


def within(rows: DataFrame, column: str, wanted: ReconcileRequest) -> DataFrame:
    """Return the rows whose time is in the compared range."""
    if wanted.since:
        rows = rows.where(F.col(column) >= F.lit(wanted.since))
    if wanted.until:
        rows = rows.where(F.col(column) < F.lit(wanted.until))
    return rows


def _stream_fingerprints(spark: SparkSession, name: str, first: int, last: int) -> DataFrame:
    options = {"stream": name, "startSeq": str(first), "endSeq": str(last), "failOnDataLoss": "false"}
    reader = JetStreamSource({**options, **access_options()}).reader(StructType())
    partitions = reader.partitions()
    read = _ReadPartitions(reader, partitions, MessageFingerprints(name))
    tasks = spark.range(0, len(partitions), 1, len(partitions))
    return tasks.mapInArrow(read, from_arrow_schema(MESSAGES))


def _check_disk(spark: SparkSession, messages: int) -> None:
    """Refuse a comparison whose temporary files will not fit on this machine."""
    if not str(spark.conf.get("spark.master", "")).startswith("local"):
        return
    folder = str(spark.conf.get("spark.local.dir", tempfile.gettempdir())).split(",")[0]
    needed, free = messages * _DISK_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise PipelineError(
            f"comparing {messages} messages needs about {needed >> 20} MiB for temporary files, but {folder} "
            f"has {free >> 20} MiB: set TMPDIR to a larger disk, or compare a part by --since"
        )


def _compared(before: StreamInfo, after: StreamInfo, *, streamed: int) -> Compared:
    return Compared(
        stream=before.name,
        created=before.created,
        first_seq=after.first_seq,
        last_seq=before.last_seq,
        first_time=after.first_time,
        last_time=before.last_time,
        streamed=streamed,
        landed=0,
    )

"""Read all compared sources once, in an order in which events in transit never look lost."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo, consumer_info, stream_info
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jobs.land.stream_progress import incarnations, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile.audit import read_audit
from sea_mq_worker.pipeline.jobs.reconcile.exchange import Batches, Part, read_parts
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import (
    EVENT_COLUMNS,
    RECEIVED,
    EventFingerprints,
    MessageFingerprints,
    received,
)
from sea_mq_worker.pipeline.jobs.reconcile.judging import Judge
from sea_mq_worker.pipeline.jobs.reconcile.result import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.rows import INBOX
from sea_mq_worker.pipeline.lake import schemas
from sea_mq_worker.pipeline.lake.read_files import BATCH_ROWS, dataset_of
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import Condition, Snapshot, snapshot, table_reader
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.source import JetStreamReader
from sea_mq_worker.pipeline.sources.jetstream.state import query_nats, stored_message, stream_state
from sea_mq_worker.pipeline.sources.tables.source import InboxSource, OutboxSource, TableReader
from sea_mq_worker.settings import Settings

_INCARNATION = 1 << 48
"""Offset between incarnations: positions are sequences, each incarnation after the previous one."""

_CLOCK = timedelta(hours=1)
"""Margin added to a time range, because the clocks of database and broker may differ."""

_DISK_BYTES = 850
"""Disk that a message, its row and its inbox row need together, in Spark's temporary files."""

_BUCKET_ROWS = 250_000
_BUCKETS_MIN = 8


def read_sources(
    spark: SparkSession,
    settings: Settings,
    wanted: ReconcileRequest,
    *,
    held: ExitStack,
    on_progress: Callable[[str], None],
) -> tuple[Judge, DataFrame]:
    """Read the streams, and prepare the read of all other sources.

    The sources are read as of moments against the direction in which an event travels: consumers' positions,
    inbox, streams, outbox, archive. An event found in one source had then already reached the sources
    before it. Events in transit therefore look pending, and never lost. Events that move to the lake in the
    meantime are found there, because its files are listed last. ``held`` keeps snapshots and persisted rows
    until it is closed.

    Returns:
        The judge, who knows all facts but the rows; and the rows of all sources, packed by ID.

    Raises:
        PipelineError: the disk for temporary files is too small.
        DataLossError: a stream was recreated or restored during the read.
    """
    since = wanted.since and wanted.since - _CLOCK
    consumers = _query_consumers(settings)
    inbox = held.enter_context(snapshot(settings))
    parts = _inbox(inbox, since)
    names = [settings.stream, *(one.stream for one in consumers)]
    before = {name: _query_stream(settings, name, since) for name in dict.fromkeys(names)}
    messages = sum(min(state.messages, state.last_seq - first + 1) for state, first in before.values())
    check_disk(spark, messages)
    moment = held.enter_context(snapshot(settings))
    parts += _outbox(settings, moment, wanted)
    streams = {name: state for name, (state, _) in before.items()}
    landed = sum(part.rows for part in _lake(settings, wanted, streams, since))
    buckets = _BUCKETS_MIN + (messages + sum(part.rows for part in parts) + landed) // _BUCKET_ROWS
    streamed = read_parts(spark, [part for each in before.values() for part in _stream(*each)], buckets)
    streamed = streamed.persist(StorageLevel.DISK_ONLY)
    held.callback(streamed.unpersist)
    with described(spark, "reconcile: read streams"):
        for row in streamed.groupBy("source").agg(F.sum("rows").alias("rows")).collect():
            on_progress(f"{row.source}: read {row.rows}")
    streams = {name: _after(settings, state) for name, state in streams.items()}
    parts += _lake(settings, wanted, streams, since)
    audit = read_audit(moment)
    judge = Judge(wanted, settings.context, consumers, inbox.at, streams, audit=audit, buckets=buckets)
    return judge, streamed.unionAll(read_parts(spark, parts, buckets))


def _query_consumers(settings: Settings) -> list[ConsumerInfo]:
    async def query(connection: NatsConnection) -> list[ConsumerInfo]:
        return [await consumer_info(connection, one.stream, one.durable) for one in settings.consumers]

    return query_nats(settings, query)


def _query_stream(settings: Settings, name: str, since: datetime | None) -> tuple[StreamInfo, int]:
    """Return a stream's state, and the sequence of the first message stored at a time or later."""

    async def query(connection: NatsConnection) -> tuple[StreamInfo, int]:
        state = await stream_info(connection, name)
        low, high = state.first_seq, state.last_seq + 1
        while since and low < high:  # times increase with sequences
            middle = (low + high) // 2
            found = await stored_message(connection, name, {"seq": middle, "next_by_subj": ">"})
            if found is None or datetime.fromisoformat(found["time"]) >= since:
                high = middle
            else:
                low = int(found["seq"]) + 1
        return state, low

    return query_nats(settings, query)


def _inbox(moment: Snapshot, since: datetime | None) -> list[Part]:
    columns = ("message_id", *RECEIVED.names[1:])
    reader = table_reader(moment, InboxSource, columns=columns, where=[("received_at", ">=", since)])
    return _table(INBOX, reader, received)


def _outbox(settings: Settings, moment: Snapshot, wanted: ReconcileRequest) -> list[Part]:
    created: list[Condition] = [("created_at", ">=", wanted.since), ("created_at", "<", wanted.until)]
    reader = table_reader(moment, OutboxSource, columns=EVENT_COLUMNS, where=created)
    represent = EventFingerprints(settings.context, settings.source, in_table=True)
    return _table("outbox", reader, represent)


def _table(source: str, reader: TableReader, represent: Callable[[Batches], Batches]) -> list[Part]:
    return [Part(source, partial(reader.read, pages), represent) for pages in reader.partitions()]


def _stream(state: StreamInfo, first: int) -> list[Part]:
    first, last = max(first, 1), state.last_seq
    options = JetStreamOptions(stream=state.name, start_seq=first, end_seq=last, fail_on_data_loss=False)
    reader, represent = JetStreamReader(options), MessageFingerprints(state.name)
    return [Part(state.name, partial(reader.read, range_), represent) for range_ in reader.partitions()]


def _after(settings: Settings, before: StreamInfo) -> StreamInfo:
    """Return a stream's state with its first message and its clock after the read.

    Messages that retention removes during the read are missing without an error.
    """
    after = stream_state(settings, before.name)
    if after.created != before.created or after.last_seq < before.last_seq:
        raise DataLossError(
            f"stream {before.name} was recreated or restored during the read: run reconcile again when the "
            "broker is stable"
        )
    return replace(before, first_seq=after.first_seq, first_time=after.first_time, now=after.now)


def _lake(
    settings: Settings, wanted: ReconcileRequest, streams: Mapping[str, StreamInfo], since: datetime | None
) -> Iterator[Part]:
    if wanted.lake is None:
        return
    created = [("created_at", ">=", wanted.since), ("created_at", "<", wanted.until)]
    conditions = [("context", "=", settings.context), *created]
    columns = {name: pc.field(name) for name in EVENT_COLUMNS} | {"state": pc.scalar("PUBLISHED")}
    represent = EventFingerprints(settings.context, settings.source, in_table=False)
    part = partial(Part, "archive", represent=represent)
    yield from _files(part, LakeTable(wanted.lake, schemas.ARCHIVE), conditions, columns)
    for stream in streams.values():
        yield from _landed(stream, LakeTable(wanted.lake, schemas.BRONZE), since)


def _landed(state: StreamInfo, bronze: LakeTable, since: datetime | None) -> Iterator[Part]:
    """Yield the lake's messages that left the stream: older incarnations, and those before its start.

    If the stream was restored, the later incarnation's message is used for a sequence.
    """
    created, found = nanoseconds(state.created), incarnations(bronze, state.name)
    current = max((n for n, each in enumerate(found) if each.created == created), default=len(found))
    columns = {name: pc.field(name) for name in ("seq", "subject", "time", "headers", "data")}
    replaced: dict[int, list[pa.Array]] = {}
    for number, each in reversed([*enumerate(found)]):
        conditions = [
            *[("stream", "=", state.name), ("incarnation", "=", each.incarnation), ("time", ">=", since)],
            ("seq", "<", state.first_seq if each.created == created else None),
        ]
        seqs = replaced.setdefault(each.created, [])
        represent = MessageFingerprints(state.name, (number - current) * _INCARNATION)
        part = partial(Part, f"bronze {state.name}", represent=represent)
        yield from _files(part, bronze, conditions, columns, replaced=seqs)
        if each.restores:
            seqs += bronze.peek(_given(conditions), ["seq"])["seq"].chunks


def _files(
    part: Callable[..., Part],
    table: LakeTable,
    conditions: Conditions,
    columns: Mapping[str, pc.Expression],
    *,
    replaced: Sequence[pa.Array] = (),
) -> Iterator[Part]:
    """Yield the files that may have rows that meet the conditions."""
    given = _given(conditions)
    matching = pq.filters_to_expression(given)
    if replaced:
        matching &= ~pc.field("seq").isin(pa.concat_arrays(replaced))
    for file in table.entries(given).to_pylist():
        yield part(read=partial(_read_file, table, file["path"], columns, matching), rows=file["rows"])


def _given(conditions: Conditions) -> Conditions:
    return [condition for condition in conditions if condition[2] is not None]


def _read_file(
    table: LakeTable, path: str, columns: Mapping[str, pc.Expression], matching: pc.Expression
) -> Batches:
    files = dataset_of(table.uri, table.table_schema, [path])
    yield from files.to_batches(columns=dict(columns), filter=matching, batch_size=BATCH_ROWS)


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

"""Read the compared data: rows of table and archive, messages of stream and bronze."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.executor_settings import access_options
from sea_mq_worker.pipeline.jobs.land.stream_progress import moment_text, nanoseconds
from sea_mq_worker.pipeline.jobs.reconcile.broker_state import StreamBounds
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import (
    CONTENT_COLUMNS,
    PASSED_COLUMNS,
    event_fingerprints,
    message_fingerprints,
    named,
)
from sea_mq_worker.pipeline.jobs.reconcile.outbox import Limits
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Snapshot, read_inbox, read_outbox
from sea_mq_worker.settings import Settings

_INCARNATION = 1 << 48
"""Offset between incarnations: positions are sequences, each incarnation after the previous one."""

_INBOX_COLUMNS = (
    *("message_id", "received_at", "processed_at", "dead_lettered_at", "locked_until"),
    *("content_hash", "stream_seq"),
)
_CLOCK = timedelta(hours=1)
"""Margin added to a time range, because the clocks of database and broker may differ."""

Keep: TypeAlias = Callable[[DataFrame], tuple[DataFrame, int]]
"""Persists a frame on the executors' disks and returns it with its number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of a stream, including messages of the lake that left the stream.

    Attributes:
        frame: ``id``, ``position``, ``seq``, ``time``, ``subject``, ``content`` and ``header_hash`` of each
            message.
        current: position of sequence 0 of the current stream.
        streamed: number of messages from the stream.
        landed: number of messages from the lake.
    """

    frame: DataFrame
    current: int
    streamed: int
    landed: int


def read_stream(spark: SparkSession, bounds: StreamBounds, keep: Keep) -> tuple[DataFrame, int]:
    """Read and persist the fingerprints of a stream's messages within the bounds.

    Messages that retention removes in the meantime are missing without an error, so the caller queries the
    first sequence again afterwards.
    """
    options = {
        "stream": bounds.state.name,
        "startSeq": str(max(bounds.start_seq, 1)),
        "endSeq": str(bounds.state.last_seq),
        "failOnDataLoss": "false",
    }
    messages = spark.read.format("jetstream").options(**access_options(), **options).load()
    return keep(message_fingerprints(messages))


def with_lake(
    spark: SparkSession,
    streamed: tuple[DataFrame, int],
    bounds: StreamBounds,
    *,
    lake: str | None,
    limits: Limits,
    keep: Keep,
) -> Messages:
    """Add the lake's messages that precede the first message of the stream in ``bounds``."""
    fingerprints, count = streamed
    name = bounds.state.name
    if lake is None:
        own = named(fingerprints, stream=name).withColumn("position", F.col("seq"))
        return Messages(frame=own, current=0, streamed=count, landed=0)
    landed = _landed(spark, lake, bounds, limits)
    found = {row.incarnation for row in landed.select("incarnation").distinct().collect()}
    created = _created(bounds)
    same = [each for each in found if each.partition("#")[0] == created]
    newest = max(same, key=_age, default=created)
    numbers = {each: number for number, each in enumerate(sorted({*found, newest}, key=_age))}
    current = numbers[newest] * _INCARNATION
    older, landed_count = keep(_placed(landed, numbers, several=len(same) > 1))
    twice = fingerprints.where(F.col("seq") < bounds.state.first_seq).select(
        (F.col("seq") + current).alias("position")
    )
    older = older.join(twice, "position", "left_anti").select(*fingerprints.columns, "position")
    own = fingerprints.withColumn("position", F.col("seq") + current)
    both = named(own.unionByName(older), stream=name)
    return Messages(frame=both, current=current, streamed=count, landed=landed_count)


def read_events(
    spark: SparkSession, settings: Settings, held: Snapshot, limits: Limits, keep: Keep
) -> tuple[DataFrame, int]:
    """Read and persist the fingerprints of the outbox's rows."""
    rows = read_outbox(
        spark,
        held,
        columns=(*CONTENT_COLUMNS, *PASSED_COLUMNS),
        where=[("created_at", ">=", limits.since), ("created_at", "<", limits.until)],
    )
    fingerprints = event_fingerprints(rows, context=settings.context, source=settings.source)
    return keep(fingerprints.withColumn("in_table", F.lit(True)))


def with_archive(
    spark: SparkSession,
    settings: Settings,
    events: DataFrame,
    *,
    lake: str | None,
    limits: Limits,
    keep: Keep,
) -> tuple[DataFrame, int]:
    """Add the archive's rows; of rows with one ID the table's row is used, else the one published last."""
    if lake is None:
        return events, 0
    columns = tuple(name for name in (*CONTENT_COLUMNS, *PASSED_COLUMNS, "context") if name != "state")
    rows = LakeTable(lake, ARCHIVE).read(spark, [("context", "=", settings.context)], columns=columns)
    rows = rows.where(F.col("context") == settings.context).withColumn("state", F.lit("PUBLISHED"))
    if limits.since is not None:
        rows = rows.where(F.col("created_at") >= F.lit(limits.since))
    if limits.until is not None:
        rows = rows.where(F.col("created_at") < F.lit(limits.until))
    archived, count = keep(event_fingerprints(rows, context=settings.context, source=settings.source))
    if not count:
        return events, 0
    both = events.unionByName(archived.withColumn("in_table", F.lit(False)))
    return deduplicate_by(both, "id", F.desc("in_table"), F.desc("published_at")), count


def read_received(spark: SparkSession, held: Snapshot, limits: Limits, keep: Keep) -> tuple[DataFrame, int]:
    """Read and persist the inbox's rows."""
    since = None if limits.since is None else limits.since - _CLOCK
    return keep(read_inbox(spark, held, columns=_INBOX_COLUMNS, where=[("received_at", ">=", since)]))


def stored_within(messages: DataFrame, limits: Limits) -> DataFrame:
    """Return the messages stored in the compared time range."""
    if limits.since is not None:
        messages = messages.where(F.col("time") >= F.lit(limits.since))
    if limits.until is not None:
        messages = messages.where(F.col("time") < F.lit(limits.until))
    return messages


def _landed(spark: SparkSession, lake: str, bounds: StreamBounds, limits: Limits) -> DataFrame:
    """Read messages from bronze that left the stream: older incarnations, and those before its start."""
    name = bounds.state.name
    columns = ("stream", "date", "incarnation", "seq", "time", "subject", "headers", "data")
    rows = LakeTable(lake, BRONZE).read(spark, [("stream", "=", name)], columns=columns)
    rows = rows.where(F.col("stream") == name)
    if limits.since is not None:
        day = (limits.since - _CLOCK).date()
        rows = rows.where((F.col("date") >= F.lit(day)) & (F.col("time") >= F.lit(limits.since - _CLOCK)))
    same = F.split_part("incarnation", F.lit("#"), F.lit(1)) == _created(bounds)
    return rows.where(~same | (F.col("seq") < bounds.state.first_seq))


def _placed(landed: DataFrame, numbers: dict[str, int], *, several: bool) -> DataFrame:
    """Add positions; if a stream was restored, the later incarnation's message is used for a sequence."""
    number = F.create_map(*(F.lit(part) for pair in numbers.items() for part in pair))[F.col("incarnation")]
    rows = landed
    if several:
        created = F.split_part("incarnation", F.lit("#"), F.lit(1))
        rows = deduplicate_by(rows, (created, "seq"), F.desc(number))
    fingerprints = message_fingerprints(rows, "incarnation")
    return fingerprints.withColumn("position", number * F.lit(_INCARNATION) + F.col("seq")).drop(
        "incarnation"
    )


def _created(bounds: StreamBounds) -> str:
    """Return the creation time in the lake's format."""
    return moment_text(nanoseconds(bounds.state.created))


def _age(incarnation: str) -> tuple[int, int]:
    """Return the sort key of an incarnation: creation time, then number of restores."""
    created, _, restored = incarnation.partition("#")
    return nanoseconds(created), int(restored or 0)

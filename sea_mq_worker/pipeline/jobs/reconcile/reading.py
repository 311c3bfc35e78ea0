"""Reads what is compared: rows of table and archive, messages of stream and bronze."""

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
    event_prints,
    message_prints,
    named,
)
from sea_mq_worker.pipeline.jobs.reconcile.outbox import Limits
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Snapshot, read_inbox, read_outbox
from sea_mq_worker.settings import Settings

_INCARNATION = 1 << 48
"""Places of messages: sequences, each incarnation's after those of the one before."""

_INBOX_COLUMNS = (
    *("message_id", "received_at", "processed_at", "dead_lettered_at", "locked_until"),
    *("content_hash", "stream_seq"),
)
_CLOCK = timedelta(hours=1)
"""Read so much more than a time asks for, whatever the clocks of database and broker say."""

Keep: TypeAlias = Callable[[DataFrame], tuple[DataFrame, int]]
"""Reads a frame, keeps its rows on the executors' disks, and returns it with their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of a stream, and of the lake what the stream no longer holds.

    Attributes:
        frame: ``id``, ``place``, ``seq``, ``time``, ``subject``, ``content`` and ``marks`` of each.
        current: place of the stream's own sequence 0.
        streamed: how many the stream gave.
        landed: how many came from the lake.
    """

    frame: DataFrame
    current: int
    streamed: int
    landed: int


def read_stream(spark: SparkSession, bounds: StreamBounds, keep: Keep) -> tuple[DataFrame, int]:
    """Read and keep the prints of a stream's messages within the bounds.

    What retention removes in the meantime is not there and no error: who judges asks for the first sequence
    again afterwards.
    """
    options = {
        "stream": bounds.state.name,
        "startSeq": str(max(bounds.start_seq, 1)),
        "endSeq": str(bounds.state.last_seq),
        "failOnDataLoss": "false",
    }
    messages = spark.read.format("jetstream").options(**access_options(), **options).load()
    return keep(message_prints(messages))


def with_lake(
    spark: SparkSession,
    streamed: tuple[DataFrame, int],
    bounds: StreamBounds,
    *,
    lake: str | None,
    limits: Limits,
    keep: Keep,
) -> Messages:
    """Add what the lake has of the stream from before its first message as of ``bounds``."""
    prints, count = streamed
    name = bounds.state.name
    if lake is None:
        own = named(prints, stream=name).withColumn("place", F.col("seq"))
        return Messages(frame=own, current=0, streamed=count, landed=0)
    landed = _landed(spark, lake, bounds, limits)
    found = {row.incarnation for row in landed.select("incarnation").distinct().collect()}
    created = _created(bounds)
    same = [each for each in found if each.partition("#")[0] == created]
    newest = max(same, key=_age, default=created)
    numbers = {each: number for number, each in enumerate(sorted({*found, newest}, key=_age))}
    current = numbers[newest] * _INCARNATION
    older, landed_count = keep(_placed(landed, numbers, several=len(same) > 1))
    twice = prints.where(F.col("seq") < bounds.state.first_seq).select(
        (F.col("seq") + current).alias("place")
    )
    older = older.join(twice, "place", "left_anti").select(*prints.columns, "place")
    own = prints.withColumn("place", F.col("seq") + current)
    both = named(own.unionByName(older), stream=name)
    return Messages(frame=both, current=current, streamed=count, landed=landed_count)


def read_events(
    spark: SparkSession, settings: Settings, held: Snapshot, limits: Limits, keep: Keep
) -> tuple[DataFrame, int]:
    """Read and keep the prints of the outbox's rows."""
    rows = read_outbox(
        spark,
        held,
        columns=(*CONTENT_COLUMNS, *PASSED_COLUMNS),
        created_since=limits.since,
        created_before=limits.until,
    )
    prints = event_prints(rows, context=settings.context, source=settings.source)
    return keep(prints.withColumn("in_table", F.lit(True)))


def with_archive(
    spark: SparkSession,
    settings: Settings,
    events: DataFrame,
    *,
    lake: str | None,
    limits: Limits,
    keep: Keep,
) -> tuple[DataFrame, int]:
    """Add the archive's rows; of several with one id the table's counts, else the one published last."""
    if lake is None:
        return events, 0
    columns = tuple(name for name in (*CONTENT_COLUMNS, *PASSED_COLUMNS, "context") if name != "state")
    rows = LakeTable(lake, ARCHIVE).read(spark, [("context", "=", settings.context)], columns=columns)
    rows = rows.where(F.col("context") == settings.context).withColumn("state", F.lit("PUBLISHED"))
    if limits.since is not None:
        rows = rows.where(F.col("created_at") >= F.lit(limits.since))
    if limits.until is not None:
        rows = rows.where(F.col("created_at") < F.lit(limits.until))
    archived, count = keep(event_prints(rows, context=settings.context, source=settings.source))
    if not count:
        return events, 0
    both = events.unionByName(archived.withColumn("in_table", F.lit(False)))
    return deduplicate_by(both, "id", F.desc("in_table"), F.desc("published_at")), count


def read_received(spark: SparkSession, held: Snapshot, limits: Limits, keep: Keep) -> tuple[DataFrame, int]:
    """Read and keep the inbox's rows."""
    since = None if limits.since is None else limits.since - _CLOCK
    return keep(read_inbox(spark, held, columns=_INBOX_COLUMNS, received_since=since))


def stored_within(messages: DataFrame, limits: Limits) -> DataFrame:
    """Return the messages that were stored in the time that is compared."""
    if limits.since is not None:
        messages = messages.where(F.col("time") >= F.lit(limits.since))
    if limits.until is not None:
        messages = messages.where(F.col("time") < F.lit(limits.until))
    return messages


def _landed(spark: SparkSession, lake: str, bounds: StreamBounds, limits: Limits) -> DataFrame:
    """Read of bronze what the stream does not hold any more: older streams, and what is before its first."""
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
    """Give places; where a stream was set back, the later incarnation's message counts at a sequence."""
    number = F.create_map(*(F.lit(part) for pair in numbers.items() for part in pair))[F.col("incarnation")]
    rows = landed
    if several:
        created = F.split_part("incarnation", F.lit("#"), F.lit(1))
        rows = deduplicate_by(rows, (created, "seq"), F.desc(number))
    prints = message_prints(rows, "incarnation")
    return prints.withColumn("place", number * F.lit(_INCARNATION) + F.col("seq")).drop("incarnation")


def _created(bounds: StreamBounds) -> str:
    """Return the creation time as the lake writes it."""
    return moment_text(nanoseconds(bounds.state.created))


def _age(incarnation: str) -> tuple[int, int]:
    """Sort incarnations: by creation, then by how often the stream was found set back."""
    created, _, restored = incarnation.partition("#")
    return nanoseconds(created), int(restored or 0)

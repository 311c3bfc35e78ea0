"""Select the events of a replay: from the outbox table, and from the archive if they left the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.jobs.replay.filter import Selection
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Snapshot, read_outbox
from sea_mq_worker.pipeline.sources.tables.source import PAGES_PER_PARTITION

CONTENT = (
    "aggregate_type",
    "aggregate_id",
    "event_version",
    "payload",
    "occurred_at",
    "correlation_id",
    "causation_id",
    "created_at",
    "partition_key",
    "ordering_key",
    "headers",
    "metadata",
    "stream",
    "stream_seq",
    "published_at",
)
"""Columns that are null for events that are in the table."""

_TIMES = ("occurred_at", "created_at", "published_at")
_OPTION_IDS_MAX = 1000
"""Cap on IDs that become a filter; more IDs are joined."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The state in which an earlier run of the same replay stopped.

    Attributes:
        through: everything up to this seq is done.
        begun_at: events published after this time are left out; None: the replay begins now.
    """

    through: int = 0
    begun_at: datetime | None = None


def select(
    spark: SparkSession,
    held: Snapshot,
    selection: Selection,
    *,
    lake: str | None,
    context: str,
    bounds: Bounds,
) -> DataFrame:
    """Return each event once: id, seq, event_type, ``archived`` and the columns of CONTENT.

    The table is read as of the snapshot and the archive afterwards, so an event that moves from one to the
    other is found in at least one. Times are microseconds since 1970.
    """
    known = _known(spark, held, selection)
    is_meant = F.col("state").isin(*selection.states) & _is_within(selection, bounds)
    if lake is None or EventState.PUBLISHED not in selection.states:
        here = known.where(is_meant)
        return here.select("id", "seq", "event_type", F.lit(False).alias("archived"), *_nulls())
    archived = _archive(spark, lake, context, selection).where(_is_within(selection, bounds))
    both = known.withColumn("is_meant", is_meant).alias("k").join(archived.alias("a"), "id", "full_outer")
    is_gone = F.col("k.seq").isNull()
    return both.where(is_gone | F.col("k.is_meant")).select(
        "id",
        F.coalesce("k.seq", "a.seq").alias("seq"),
        F.coalesce("k.event_type", "a.event_type").alias("event_type"),
        is_gone.alias("archived"),
        *_shown(is_gone),
    )


def _known(spark: SparkSession, held: Snapshot, selection: Selection) -> DataFrame:
    """Return the table's events in any state, filtered by immutable columns."""
    finds_ids = 0 < len(selection.ids) <= _OPTION_IDS_MAX
    frame = read_outbox(
        spark,
        held,
        columns=["id", "seq", "event_type", "state", "published_at"],
        where=[
            ("created_at", ">=", selection.since),
            ("created_at", "<", selection.until),
            ("event_type", "in", selection.event_types or None),
            ("ordering_key", "in", selection.ordering_keys or None),
            ("id", "in", selection.ids if finds_ids else None),
        ],
        pages_per_partition=0 if finds_ids else PAGES_PER_PARTITION,
    )
    return _of_ids(spark, frame, selection.ids)


def _archive(spark: SparkSession, lake: str, context: str, selection: Selection) -> DataFrame:
    """Return the latest archived version of each event."""
    frame = (
        LakeTable(lake, ARCHIVE).read(spark, [("context", "=", context)]).where(F.col("context") == context)
    )
    if selection.event_types:
        frame = frame.where(F.col("event_type").isin(*selection.event_types))
    if selection.ordering_keys:
        frame = frame.where(F.col("ordering_key").isin(*selection.ordering_keys))
    if selection.since:
        frame = frame.where(F.col("created_at") >= F.lit(selection.since))
    if selection.until:
        frame = frame.where(F.col("created_at") < F.lit(selection.until))
    return deduplicate_by(_of_ids(spark, frame, selection.ids), "id", F.desc("published_at"))


def _of_ids(spark: SparkSession, frame: DataFrame, ids: Sequence[UUID]) -> DataFrame:
    if not ids:
        return frame
    wanted = spark.createDataFrame(pa.table({"id": [str(one) for one in ids]})).distinct()
    return frame.join(wanted, "id", "left_semi")


def _is_within(selection: Selection, bounds: Bounds) -> Column:
    published = F.col("published_at")
    within = F.col("seq") > bounds.through
    if bounds.begun_at:
        within &= published.isNull() | (published <= F.lit(bounds.begun_at))
    if selection.published_since:
        within &= published >= F.lit(selection.published_since)
    if selection.published_until:
        within &= published < F.lit(selection.published_until)
    return F.coalesce(within, F.lit(False))


def _shown(is_gone: Column) -> list[Column]:
    columns = {name: F.col(f"a.{name}") for name in CONTENT}
    columns |= {name: F.unix_micros(column) for name, column in columns.items() if name in _TIMES}
    return [F.when(is_gone, column).alias(name) for name, column in columns.items()]


def _nulls() -> list[Column]:
    types = dict.fromkeys(_TIMES, "bigint") | {"stream_seq": "bigint", "event_version": "int"}
    return [F.lit(None).cast(types.get(name, "string")).alias(name) for name in CONTENT]

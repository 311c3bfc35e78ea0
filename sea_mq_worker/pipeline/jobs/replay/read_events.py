"""Read the events of a replay: from the outbox table, and from the archive if they left the table.

The events are chosen by a few narrow columns. Only then the payloads of the chosen events are read. Both
times the log of the archive's table shows which files can hold the events: by their partitions, and by the
ranges of their IDs, batches and times of publication.
"""

from datetime import timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.dataframes import deduplicate_by, matching
from sea_mq_worker.pipeline.jobs.replay.selection import Selection
from sea_mq_worker.pipeline.jobs.replay.store import RESTORED, Action
from sea_mq_worker.pipeline.lake.erased_ids import erased_hashes
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import PAGES_PER_PARTITION, Condition, Snapshot, read_outbox

_LOCATION = ("id", "batch", "date")
"""Columns whose ranges locate archived events among the archive's files."""

_LISTED_MAX = 1000
"""Cap on IDs that PostgreSQL and the archive's log are asked for; more IDs are only joined."""

_CLOCK_STEP_MAX = timedelta(days=1)
"""Cap on the time by which a publication may precede the creation, after PostgreSQL's clock was set back."""


def choose_events(
    spark: SparkSession,
    held: Snapshot,
    selection: Selection,
    *,
    lake: str | None,
    context: str,
    earlier: Action | None,
) -> DataFrame:
    """Return each event once: id, seq, event_type, ``archived``, and of an archived event batch and date.

    The table is read as of the snapshot and the archive afterwards, so an event that moves from one to the
    other is found in at least one. Of an event in both, the table's row counts, in any state. Of an event
    that was archived twice, the row that was published last counts. An event that was erased, and came back
    by a restored backup, is left out. So are the events that an interrupted run has done, ``earlier``, and
    those that were published since it began. Hold the snapshot until the frame's last action.
    """
    rows = _candidates(spark, held, selection, lake, context)
    if selection.ids:
        ids = spark.createDataFrame(pa.table({"id": [str(one) for one in selection.ids]}))
        rows = rows.join(ids, "id", "left_semi")
    if lake and (hashes := erased_hashes(lake)):
        erased = spark.createDataFrame(pa.table({"hash": sorted(hashes)}))
        rows = rows.join(erased, F.sha2("id", 256) == erased["hash"], "left_anti")
    once = deduplicate_by(rows, "id", "archived", F.desc("published_at"))
    if earlier:
        is_new = F.col("published_at") > F.lit(earlier.at)
        once = once.where((F.col("seq") > earlier.through) & ~F.coalesce(is_new, F.lit(False)))
    return matching(
        once,
        [
            ("state", "in", selection.states),
            ("published_at", ">=", selection.published_since),
            ("published_at", "<", selection.published_until),
        ],
    )


def _candidates(
    spark: SparkSession, held: Snapshot, selection: Selection, lake: str | None, context: str
) -> DataFrame:
    """Return the rows of table and archive that meet the conditions on columns that never change.

    The rows of an event meet all of these conditions, or none. Of the archive, rows that were published
    before the selection are left out, but not those after it: they may be later rows of the same event.
    """
    ids = [str(one) for one in selection.ids] if len(selection.ids) <= _LISTED_MAX else []
    immutable: list[Condition] = [
        ("created_at", ">=", selection.since),
        ("created_at", "<", selection.until),
        ("event_type", "in", selection.event_types or None),
        ("ordering_key", "in", selection.ordering_keys or None),
        ("id", "in", ids or None),
    ]
    rows = read_outbox(
        spark,
        held,
        columns=["id", "seq", "event_type", "state", "published_at"],
        where=immutable,
        pages_per_partition=0 if ids else PAGES_PER_PARTITION,
    ).withColumn("archived", F.lit(False))
    if not lake or EventState.PUBLISHED not in selection.states:
        return rows
    published = [selection.published_since, selection.since and selection.since - _CLOCK_STEP_MAX]
    archived = LakeTable(lake, ARCHIVE).read(
        spark,
        [("context", "=", context), *immutable, *(("published_at", ">=", limit) for limit in published)],
        columns=("id", "seq", "event_type", "published_at", "batch", "date"),
    )
    archived = archived.withColumns({"state": F.lit(str(EventState.PUBLISHED)), "archived": F.lit(True)})
    return rows.unionByName(archived, allowMissingColumns=True)


def with_content(spark: SparkSession, chosen: DataFrame, *, lake: str, context: str) -> DataFrame:
    """Add the columns of RESTORED, null for events in the table; times are texts."""
    archived = chosen.where("archived")
    ends = [(name, sign, end(name)) for name in _LOCATION for sign, end in ((">=", F.min), ("<=", F.max))]
    (found,) = archived.agg(*(end for _, _, end in ends)).collect()
    if found[0] is None:
        return chosen
    limits = [(name, sign, limit) for (name, sign, _), limit in zip(ends, found, strict=True)]
    rows = LakeTable(lake, ARCHIVE).read(spark, [("context", "=", context), *limits])
    content = rows.select("id", "batch", *(_content(name) for name in RESTORED if name not in chosen.columns))
    restored = archived.join(content, ["id", "batch"])
    return chosen.where("NOT archived").unionByName(restored, allowMissingColumns=True)


def _content(name: str) -> Column:
    is_time = pa.types.is_timestamp(ARCHIVE.schema.field(name).type)
    return F.concat(F.col(name).cast("string"), F.lit("Z")).alias(name) if is_time else F.col(name)

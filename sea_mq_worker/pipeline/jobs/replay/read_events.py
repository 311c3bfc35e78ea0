"""Read the events of a replay: from the outbox table, and from the archive if they left the table.

The events are chosen by a few narrow columns. Only then the payloads of the chosen events are read. Both
times the log of the archive's table shows which files can hold the events: by their partitions, and by the
ranges of their IDs, batches and times of publication.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import eq, ge, lt
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.jobs.replay.selection import Selection
from sea_mq_worker.pipeline.jobs.replay.store import RESTORED, RESTORED_TIMES, Action
from sea_mq_worker.pipeline.lake.erased_ids import erased_hashes
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Condition, Snapshot, read_outbox
from sea_mq_worker.pipeline.sources.tables.source import PAGES_PER_PARTITION

_COMPARISONS: Mapping[str, Callable[[Column, Any], Column]] = {
    "=": eq,
    ">=": ge,
    "<": lt,
    "in": lambda column, values: column.isin(*values),
}
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
    by a restored backup, is left out.

    Args:
        spark: the session.
        held: the snapshot, to be held until the frame's last action.
        selection: the filters.
        lake: the lake with the archive; None: only the table.
        context: the context of the archived events.
        earlier: the interrupted run that is continued: events up to its seq are done, and events that were
            published since it began are left out.
    """
    rows = _in_table(spark, held, selection)
    if lake and EventState.PUBLISHED in selection.states:
        rows = rows.unionByName(_in_archive(spark, lake, context, selection), allowMissingColumns=True)
    if selection.ids:
        ids = spark.createDataFrame(pa.table({"id": [str(one) for one in selection.ids]})).distinct()
        rows = rows.join(ids, "id", "left_semi")
    if lake and (hashes := erased_hashes(lake)):
        erased = spark.createDataFrame(pa.table({"hash": sorted(hashes)}))
        rows = rows.join(erased, F.sha2("id", 256) == erased["hash"], "left_anti")
    once = deduplicate_by(rows, "id", "archived", F.desc("published_at"))
    return once.where(F.col("state").isin(*selection.states) & _is_within(selection, earlier))


def with_content(spark: SparkSession, chosen: DataFrame, *, lake: str, context: str) -> DataFrame:
    """Add the columns of RESTORED, null for events in the table; times are microseconds since 1970."""
    archived = chosen.where("archived")
    (ends,) = archived.agg(*(end(name) for name in _LOCATION for end in (F.min, F.max))).collect()
    if ends[0] is None:
        return chosen
    ranges = [(name, ends[2 * at], ends[2 * at + 1]) for at, name in enumerate(_LOCATION)]
    limits = [limit for name, first, last in ranges for limit in ((name, ">=", first), (name, "<=", last))]
    rows = LakeTable(lake, ARCHIVE).read(spark, [("context", "=", context), *limits])
    for name, first, last in ranges:
        rows = rows.where(F.col(name).between(first, last))
    content = rows.where(F.col("context") == context).select(
        "id", "batch", *(_content(name) for name in RESTORED if name not in chosen.columns)
    )
    restored = archived.join(content, ["id", "batch"])
    return chosen.where("NOT archived").unionByName(restored, allowMissingColumns=True)


def _content(name: str) -> Column:
    return F.unix_micros(name).alias(name) if name in RESTORED_TIMES else F.col(name)


def _in_table(spark: SparkSession, held: Snapshot, selection: Selection) -> DataFrame:
    """Return the table's events in any state."""
    ids = _listed(selection)
    rows = read_outbox(
        spark,
        held,
        columns=["id", "seq", "event_type", "state", "published_at"],
        where=[*_immutable(selection), ("id", "in", ids)],
        pages_per_partition=0 if ids else PAGES_PER_PARTITION,
    )
    return rows.withColumn("archived", F.lit(False))


def _in_archive(spark: SparkSession, lake: str, context: str, selection: Selection) -> DataFrame:
    """Return the archive's rows; an event that was archived twice has two.

    Files are skipped by the earliest publication alone: a file beyond the latest one may have a later row of
    the same event, which then counts.
    """
    skip_unless: list[Condition] = [("context", "=", context)]
    if ids := _listed(selection):
        skip_unless.append(("id", "in", ids))
    if selection.published_since:
        skip_unless.append(("published_at", ">=", selection.published_since))
    if selection.since:
        skip_unless.append(("published_at", ">=", selection.since - _CLOCK_STEP_MAX))
    columns = ("id", "seq", "event_type", "published_at", "batch", "date")
    filtered = ("context", "created_at", "ordering_key")
    rows = LakeTable(lake, ARCHIVE).read(spark, skip_unless, columns=(*columns, *filtered))
    for name, sign, value in (("context", "=", context), *_immutable(selection)):
        if value is not None:
            rows = rows.where(_COMPARISONS[sign](F.col(name), value))
    state = F.lit(EventState.PUBLISHED.value).alias("state")
    return rows.select(*columns, state, F.lit(True).alias("archived"))


def _immutable(selection: Selection) -> list[Condition]:
    """Return the conditions on columns that never change, so that the rows of an event meet all or none."""
    return [
        ("created_at", ">=", selection.since),
        ("created_at", "<", selection.until),
        ("event_type", "in", selection.event_types or None),
        ("ordering_key", "in", selection.ordering_keys or None),
    ]


def _listed(selection: Selection) -> list[str] | None:
    """Return the IDs if they are few enough for a condition; None: all IDs must be read."""
    return [str(one) for one in selection.ids] if 0 < len(selection.ids) <= _LISTED_MAX else None


def _is_within(selection: Selection, earlier: Action | None) -> Column:
    published = F.col("published_at")
    within = F.lit(True)
    if earlier:
        within &= F.col("seq") > earlier.through
        within &= published.isNull() | (published <= F.lit(earlier.at))
    if selection.published_since:
        within &= published >= F.lit(selection.published_since)
    if selection.published_until:
        within &= published < F.lit(selection.published_until)
    return F.coalesce(within, F.lit(False))

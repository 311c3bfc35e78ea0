"""Update gold from silver: events per context, type and minute, for the minutes of new rows.

Each minute with a new row is counted again from all its rows in silver, and the file of its date is replaced
in one commit, so no event counts twice. An event is late if the stream stored it more than ``late_seconds``
after it occurred. An event without a time of occurrence is counted, but is not part of the percentiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.silver import SERIAL
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import committed, run_tasks
from sea_mq_worker.pipeline.lake.schemas import GOLD, SILVER
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import write_files

_HOUR = timedelta(hours=1)
_COUNTED = ["event_type", "occurred_at", "published_at", "bytes"]
_BY = ["event_type", "minute"]
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition with rows missing in gold, in minutes from ``first`` on, before ``behind``; its files."""

    context: str | None
    date: date
    first: datetime
    behind: datetime
    silver: Sequence[str]
    gold: Sequence[str]


def refresh(
    spark: SparkSession | None, lake: str, progresses: Sequence[StreamProgress], *, late_seconds: float
) -> int:
    """Update gold to the progress of silver; return the number of updated partitions."""
    silver, gold = LakeTable(lake, SILVER), LakeTable(lake, GOLD)

    def attempt() -> int:
        there, here = silver.watermarks(), gold.watermarks()
        ranges = {each: range(here(each.name), there(each.name)) for each in progresses}
        due = {progress: seqs for progress, seqs in ranges.items() if seqs}
        if not due:
            return 0
        partitions, rows = _partitions(silver, gold, due)
        count = partial(_count_again, silver, gold, late_seconds)
        entries = run_tasks(spark, "land: gold", count, partitions, rows=rows)
        replaced = [path for each in partitions for path in each.gold]
        watermarks = [Watermark(each.name, seqs.stop, after=seqs.start) for each, seqs in due.items()]
        serial = here(SERIAL)
        watermarks.append(Watermark(SERIAL, serial + 1, after=serial))
        gold.commit(gold.files(entries), *watermarks, metadata={"sea_mq.job": "land"}, replaced=replaced)
        return len(partitions)

    return committed(attempt)


def _partitions(
    silver: LakeTable, gold: LakeTable, due: Mapping[StreamProgress, range]
) -> tuple[list[_Partition], int]:
    """Return the partitions that have rows missing in gold, and silver's number of rows there."""
    touched = (
        pa.concat_tables(silver.entries(each.rows(seqs.start, seqs.stop)) for each, seqs in due.items())
        .group_by(["partition.context", "partition.date"])
        .aggregate([("min.published_at", "min"), ("max.published_at", "max")])
    )
    found, rows = [], 0
    for context, day, least, most in zip(*(column.to_pylist() for column in touched.columns), strict=True):
        partition: Conditions = [("context", "=", context or ""), ("date", "=", day)]
        first, last = (moment.replace(second=0, microsecond=0) for moment in (least, most))
        behind = last + timedelta(minutes=1)
        files = silver.entries([*partition, ("published_at", ">=", first), ("published_at", "<", behind)])
        rows += pc.sum(files["rows"]).as_py()
        paths = files["path"].to_pylist(), gold.paths(partition)
        found.append(_Partition(context, day, first, behind, *paths))
    return found, rows


def _count_again(
    silver: LakeTable, gold: LakeTable, late_seconds: float, partition: _Partition
) -> Iterator[pa.RecordBatch]:
    """Write gold with the minutes of a partition, counted again, and with all its other minutes."""

    def rows() -> Iterator[pa.RecordBatch]:
        minute, stored, start = pc.field("minute"), pc.field("published_at"), partition.first
        others = (minute < partition.first) | (minute >= partition.behind)
        yield from gold.load(partition.gold, matching=others).to_batches()
        while start < partition.behind:  # an hour at a time, to bound memory
            behind = min(partition.behind, start + _HOUR)
            events = silver.load(partition.silver, _COUNTED, (stored >= start) & (stored < behind))
            yield from _counted(events, late_seconds, partition).to_batches()
            start = behind

    return write_files(gold.lake, ((GOLD, batch) for batch in rows()))


def _counted(events: pa.Table, late_seconds: float, partition: _Partition) -> pa.Table:
    published = events["published_at"]
    delay = pc.subtract(published.cast(pa.int64()), events["occurred_at"].cast(pa.int64()))
    seconds = pc.divide(delay.cast(pa.float64(), safe=False), 1e6)  # 53 bits hold 285 years
    late = pc.greater(seconds, late_seconds).cast(pa.int64())
    minutes = pc.floor_temporal(published, unit="minute")
    counted = (
        pa.table(
            [events["event_type"], minutes, late, events["bytes"], seconds], [*_BY, "late", "bytes", "s"]
        )
        .group_by(_BY)
        .aggregate([([], "count_all"), ("late", "sum"), ("bytes", "sum"), ("s", "list")])
    )
    delays = [_percentiles(each) for each in counted["s_list"].to_pylist()]
    columns = {
        "event_type": counted["event_type"],
        "minute": counted["minute"],
        "events": counted["count_all"],
        "late": pc.fill_null(counted["late_sum"], 0),
        "bytes": counted["bytes_sum"],
        **{f"p{share}_seconds": [each[at] for each in delays] for at, share in enumerate(_PERCENTILES)},
        "context": [partition.context] * len(counted),
        "date": [partition.date] * len(counted),
    }
    return pa.table(columns, GOLD.schema)


def _percentiles(seconds: Sequence[float | None]) -> list[Any]:
    known = [each for each in seconds if each is not None]
    ranks = np.percentile(known, _PERCENTILES, method="inverted_cdf") if known else np.empty(0)
    return ranks.tolist() or [None] * len(_PERCENTILES)

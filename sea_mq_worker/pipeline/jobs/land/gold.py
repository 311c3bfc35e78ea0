"""Update gold from silver: events per context, type and minute, for the minutes of new rows.

Each minute with a new row is counted again from all its rows in silver, and the file of its date is replaced
in one commit, so no event counts twice. An event is late if the stream stored it more than ``late_seconds``
after it occurred. An event without a time of occurrence is counted, but is not part of the percentiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.silver import SERIAL
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import committed, run_tasks
from sea_mq_worker.pipeline.jobs.land.write_events import write_tables
from sea_mq_worker.pipeline.lake.read_files import dataset_of
from sea_mq_worker.pipeline.lake.schemas import GOLD, SILVER
from sea_mq_worker.pipeline.lake.storage import table_uri
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable, Watermark

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_BY = ["event_type", "minute"]
_PERCENTILES = (50, 95, 99)
_TASKS = pa.schema(
    [
        ("context", pa.string()),
        ("date", pa.date32()),
        ("first", pa.timestamp("us", tz="UTC")),
        ("behind", pa.timestamp("us", tz="UTC")),
        ("silver", pa.list_(pa.string())),
        ("gold", pa.list_(pa.string())),
    ]
)


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
        tasks, rows = _tasks(silver, gold, due)
        entries = run_tasks(spark, "land: gold", _CountMinutes(lake, late_seconds), tasks, rows=rows)
        touched = tasks.select(["context", "date"]).to_pylist()
        watermarks = [Watermark(each.name, seqs.stop, after=seqs.start) for each, seqs in due.items()]
        serial = here(SERIAL)
        watermarks.append(Watermark(SERIAL, serial + 1, after=serial))
        gold.commit(gold.files(entries), *watermarks, metadata={"sea_mq.job": "land"}, replaced=touched)
        return len(touched)

    return committed(attempt)


def _tasks(silver: LakeTable, gold: LakeTable, due: Mapping[StreamProgress, range]) -> tuple[pa.Table, int]:
    """Return the partitions and minutes that have rows missing in gold, and silver's number of rows there."""
    touched = (
        pa.concat_tables(silver.entries(each.rows(seqs.start, seqs.stop)) for each, seqs in due.items())
        .group_by(["partition.context", "partition.date"])
        .aggregate([("min.published_at", "min"), ("max.published_at", "max")])
    )
    tasks, rows = [], 0
    for context, date, least, most in zip(*(column.to_pylist() for column in touched.columns), strict=True):
        partition: Conditions = [("context", "=", context or ""), ("date", "=", date)]
        first, behind = _minute(least), _minute(most) + _MINUTE
        files = silver.entries([*partition, ("published_at", ">=", first), ("published_at", "<", behind)])
        rows += pc.sum(files["rows"]).as_py()
        tasks.append((context, date, first, behind, files["path"].to_pylist(), gold.paths(partition)))
    named = [dict(zip(_TASKS.names, task, strict=True)) for task in tasks]
    return pa.Table.from_pylist(named, schema=_TASKS), rows


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class _CountMinutes:
    """Counts the minutes of partitions again, and writes gold with them and all other minutes."""

    lake: str
    late_seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file."""
        tasks = (row for batch in batches for row in batch.to_pylist())
        minutes = (batch for task in tasks for rows in self._partition(task) for batch in rows.to_batches())
        yield from write_tables(self.lake, ((GOLD, batch) for batch in minutes))

    def _partition(self, task: Mapping[str, Any]) -> Iterator[pa.Table]:
        counted = dataset_of(table_uri(self.lake, GOLD.name), GOLD, task["gold"])
        others = (pc.field("minute") < task["first"]) | (pc.field("minute") >= task["behind"])
        yield counted.to_table(filter=others)
        events = dataset_of(table_uri(self.lake, SILVER.name), SILVER, task["silver"])
        columns = ["event_type", "occurred_at", "published_at", "bytes"]
        start = task["first"]
        while start < task["behind"]:  # an hour at a time, to bound memory
            behind = min(task["behind"], start + _HOUR)
            within = (pc.field("published_at") >= start) & (pc.field("published_at") < behind)
            yield self._minutes(events.to_table(columns=columns, filter=within), task)
            start = behind

    def _minutes(self, events: pa.Table, task: Mapping[str, Any]) -> pa.Table:
        published = events["published_at"]
        delay = pc.subtract(published.cast(pa.int64()), events["occurred_at"].cast(pa.int64()))
        seconds = pc.divide(delay.cast(pa.float64(), safe=False), 1e6)  # 53 bits hold 285 years
        late = pc.greater(seconds, self.late_seconds).cast(pa.int64())
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
            "context": [task["context"]] * len(counted),
            "date": [task["date"]] * len(counted),
        }
        return pa.table(columns, GOLD.schema)


def _percentiles(seconds: Sequence[float | None]) -> list[float | None]:
    known = [each for each in seconds if each is not None]
    if not known:
        return [None] * len(_PERCENTILES)
    found: list[float | None] = np.percentile(known, _PERCENTILES, method="inverted_cdf").tolist()
    return found

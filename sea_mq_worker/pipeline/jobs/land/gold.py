"""Update gold from silver: events per context, type and minute, for the dates of new rows.

Each affected date is recomputed from all its rows in silver and replaced in one commit, so no event counts
twice. An event is late if the stream stored it more than ``late_seconds`` after it occurred. An event without
a time of occurrence is counted, but is not part of the percentiles.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.jobs.land.silver import SERIAL
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.lake.table import NO_FILES, ConflictError, LakeTable, Watermark
from sea_mq_worker.pipeline.session import described

_ATTEMPTS = 5
_ACCURACY = 10_000
_BY = ("context", "date", "event_type", "minute")


def refresh(
    spark: SparkSession,
    silver: LakeTable,
    gold: LakeTable,
    progresses: Sequence[StreamProgress],
    *,
    late_seconds: float,
) -> int:
    """Update gold to the progress of silver; return the number of recomputed partitions."""
    replaced = conflicts = 0
    while True:
        serial = gold.watermark(SERIAL) or 0
        due = _due(silver, gold, progresses)
        if not due:
            return replaced
        with described(spark, "land: gold"):
            touched = _touched(spark, silver, due)
            files = gold.write(_minutes(spark, silver, touched, late_seconds)) if touched else NO_FILES
        watermarks = [Watermark(progress.name, value, after=reached) for progress, reached, value in due]
        try:
            gold.replace(files, touched, *watermarks, Watermark(SERIAL, serial + 1, after=serial))
            replaced += len(touched)
        except ConflictError:
            conflicts += 1
            if conflicts == _ATTEMPTS:
                raise


def _due(
    silver: LakeTable, gold: LakeTable, progresses: Sequence[StreamProgress]
) -> list[tuple[StreamProgress, int, int]]:
    """Return the incarnations in which silver is ahead of gold, with gold's and silver's watermarks."""
    there, here = silver.open(), gold.open()
    found = []
    for progress in progresses:
        value = (there.transaction_version(progress.name) if there else None) or 0
        reached = (here.transaction_version(progress.name) if here else None) or 0
        if reached < value:
            found.append((progress, reached, value))
    return found


def _touched(
    spark: SparkSession, silver: LakeTable, due: Sequence[tuple[StreamProgress, int, int]]
) -> list[Mapping[str, Any]]:
    """Return the partitions that contain rows missing in gold."""
    columns = ["stream", "incarnation", "seq", "context", "date"]
    frames = []
    for progress, reached, value in due:
        mine = [("stream", "=", progress.stream), ("incarnation", "=", progress.incarnation)]
        rows = silver.read(spark, [*mine, ("seq", ">", reached), ("seq", "<=", value)], columns=columns)
        same = (F.col("stream") == progress.stream) & (F.col("incarnation") == progress.incarnation)
        frames.append(rows.where(same & (F.col("seq") > reached) & (F.col("seq") <= value)))
    found = reduce(DataFrame.unionAll, frames).select("context", "date").distinct()
    return [row.asDict() for row in found.collect()]


def _minutes(
    spark: SparkSession, silver: LakeTable, touched: Sequence[Mapping[str, Any]], late_seconds: float
) -> DataFrame:
    dates = [partition["date"] for partition in touched]
    by = silver.table_schema.chosen(silver.table_schema.partition_by)
    which = F.broadcast(spark.createDataFrame(pa.Table.from_pylist(list(touched), schema=by)))
    rows = silver.read(spark, [("date", ">=", min(dates)), ("date", "<=", max(dates))])
    same = (rows["date"] == which["date"]) & rows["context"].eqNullSafe(which["context"])
    delay = F.col("published_at").cast("double") - F.col("occurred_at").cast("double")
    events = rows.join(which, same, "left_semi").withColumn("delay", delay)
    counted = (
        events.withColumn("minute", F.date_trunc("minute", "published_at"))
        .groupBy(*_BY)
        .agg(
            F.count("*").alias("events"),
            F.count_if(F.col("delay") > late_seconds).alias("late"),
            F.sum("bytes").alias("bytes"),
            F.percentile_approx("delay", [0.5, 0.95, 0.99], _ACCURACY).alias("p"),
        )
    )
    names = {f"p{share}_seconds": F.col("p")[rank] for rank, share in enumerate((50, 95, 99))}
    return counted.withColumns(names).repartition("context", "date")

"""A table of the lake takes files once, and shows nothing that was not committed."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.lake.layouts import BRONZE
from sea_mq_worker.pipeline.lake.table import LakeTable, Mark


def messages(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Return bronze rows, one a second from 1970 on."""
    return spark.range(first, last + 1).select(
        F.col("id").alias("seq"),
        F.lit("sea.event.order.paid.v1").alias("subject"),
        F.timestamp_seconds("id").alias("time"),
        F.array(F.struct(F.lit("a").alias("key"), F.lit("b").alias("value"))).alias("headers"),
        F.lit("{}").cast("binary").alias("data"),
        F.lit("first").alias("incarnation"),
        F.lit("SEA_EVENTS").alias("stream"),
        F.to_date(F.timestamp_seconds("id")).alias("date"),
    )


def test_committed_rows_are_read_back_whole(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    rows = messages(spark, 1, 100_000)

    assert table.commit(table.write(rows), Mark("land", 100_000))

    assert table.read(spark).exceptAll(rows).isEmpty()
    assert table.read(spark).count() == 100_000
    assert table.read(spark, [("date", "=", "1970-01-02")]).count() == 100_000 - 86_400 + 1


def test_files_are_invisible_until_they_are_committed(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    table.write(messages(spark, 1, 10))
    assert table.read(spark).isEmpty()


def test_a_mark_that_was_reached_takes_no_files_again(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    table.commit(table.write(messages(spark, 1, 10)), Mark("land", 10))

    assert not table.commit(table.write(messages(spark, 1, 10)), Mark("land", 10))

    assert table.read(spark).count() == 10
    assert table.mark("land") == 10

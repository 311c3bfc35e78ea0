"""Declarative pipeline, for Spark 4.1 or newer: orders of the lake as a table, and their number per day."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Add the new orders of each run."""
    silver = spark.readStream.format("delta").load(f"{spark.conf.get('lake')}/silver")
    total = fn.get_json_object("payload", "$.total").cast("double").alias("total")
    return silver.where("event_type = 'order.created'").select("message_id", "occurred_at", total)


@dp.materialized_view
def daily() -> DataFrame:
    """Count the orders of each day again."""
    day = fn.to_date("occurred_at").alias("day")
    counts = fn.count("*").alias("orders"), fn.sum("total").alias("total")
    return spark.table("orders").groupBy(day).agg(*counts)

"""Helpers for Spark DataFrames that several jobs use."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it


def deduplicate_by(rows: DataFrame, key: str | Sequence[str | Column], *order: str | Column) -> DataFrame:
    """Return one row per key: the first row in the given order."""
    keys = [key] if isinstance(key, str) else key
    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return rows.withColumn("rank_in_key", rank).where("rank_in_key = 1").drop("rank_in_key")

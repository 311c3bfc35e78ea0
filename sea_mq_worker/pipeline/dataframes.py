"""Helpers for Spark DataFrames that several jobs use."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

_T = TypeVar("_T")
_COMPARISONS: Mapping[str, Callable[[Column, Any], Column]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda column, values: column.isin(*values),
}


def in_tasks(
    spark: SparkSession,
    function: Callable[[_T], Iterable[pa.RecordBatch]],
    parts: Sequence[_T],
    schema: StructType | str,
    *,
    tasks_max: int | None = None,
) -> DataFrame:
    """Return the rows that a function yields for the parts, each in a task of Spark; both are pickled.

    ``tasks_max``: the most tasks, which then have several parts each; None: no limit.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from function(parts[number])

    tasks = max(1, min(len(parts), tasks_max or len(parts)))
    return spark.range(0, len(parts), 1, tasks).mapInArrow(run, schema)


def read_all(spark: SparkSession, reader: DataSourceReader, schema: StructType | str) -> DataFrame:
    """Return the rows of a data source, as ``spark.read`` does.

    To plan ``spark.read``, Spark starts one Python process after another, which takes seconds.
    """
    return in_tasks(spark, reader.read, reader.partitions(), schema)


def matching(rows: DataFrame, conditions: Sequence[tuple[str, str, Any]]) -> DataFrame:
    """Return the rows that meet all conditions: column, operator and value; None sets no condition."""
    for column, compares, value in conditions:
        if value is not None:
            rows = rows.where(_COMPARISONS[compares](F.col(column), value))
    return rows


def deduplicate_by(rows: DataFrame, key: str | Sequence[str | Column], *order: str | Column) -> DataFrame:
    """Return one row per key: the first row in the given order."""
    keys = [key] if isinstance(key, str) else key
    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return rows.withColumn("rank_in_key", rank).where("rank_in_key = 1").drop("rank_in_key")

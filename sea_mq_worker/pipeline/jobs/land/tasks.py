"""Run a function over Arrow batches: in this process, or in Spark with one task per row of its input."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.session import described

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROWS_IN_PROCESS = 10_000
"""Fewer messages are processed faster than Spark starts a job and a Python worker."""


def run_tasks(
    spark: SparkSession | None, description: str, function: ArrowFunction, tasks: pa.Table, schema: pa.Schema
) -> pa.Table:
    """Return the rows that the function yields for the tasks, of which each is one row.

    Args:
        spark: the session that runs the tasks; None: this process runs them.
        description: describes the tasks in Spark's web pages.
        function: yields rows of the schema; pickled for Spark.
        tasks: the function's input.
        schema: the result's columns.
    """
    count = tasks.num_rows
    if spark is None or not count:
        return pa.Table.from_batches(function(iter(tasks.to_batches())), schema)
    results = spark.range(0, count, 1, count).mapInArrow(
        _ByNumber(function, tasks), from_arrow_schema(schema)
    )
    with described(spark, description):
        return results.toArrow().cast(schema)


@dataclass(frozen=True, slots=True)
class _ByNumber:
    """Applies a function to the tasks whose numbers are the input."""

    function: ArrowFunction
    tasks: pa.Table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.function(iter(self.tasks.slice(number, 1).to_batches()))

"""Run a function over tasks, in threads of this process or in Spark, and commit the result."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.dataframes import in_tasks
from sea_mq_worker.pipeline.lake.read_files import read_batches
from sea_mq_worker.pipeline.lake.table import ConflictError, LakeTable
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, TableRows, write_files
from sea_mq_worker.pipeline.session import described

ROWS_IN_PROCESS = 10_000
"""Fewer messages are processed faster than Spark starts a job and a Python worker."""

THREADS = min(4, os.cpu_count() or 1)
"""Tasks at the same time in this process; more would wait for each other, as Python runs one of them."""

_CONFLICTS_MAX = 4
_T = TypeVar("_T")


def run_tasks(
    spark: SparkSession | None,
    description: str,
    function: Callable[[_T], Iterable[pa.RecordBatch]],
    tasks: Sequence[_T],
    *,
    rows: int,
    schema: pa.Schema = ENTRIES,
) -> pa.Table:
    """Return the rows that the function yields for the tasks, by default entries of files.

    Args:
        spark: the session that runs the tasks; None: this process runs them.
        description: describes the tasks in Spark's web pages.
        function: is pickled for Spark, together with the tasks.
        tasks: the function's input.
        rows: number of messages in all tasks; this process runs tasks of few messages.
        schema: the result's columns.
    """
    if spark is None or not tasks or rows <= ROWS_IN_PROCESS:
        with ThreadPoolExecutor(THREADS) as executor:
            found = executor.map(lambda task: [*function(task)], tasks)
            return pa.Table.from_batches(chain.from_iterable(found), schema)

    results = in_tasks(spark, function, tasks, from_arrow_schema(schema))
    with described(spark, description):
        return results.toArrow().cast(schema)


def rewrite(
    spark: SparkSession | None,
    description: str,
    table: LakeTable,
    files: pa.Table,
    make: Callable[[pa.RecordBatch], Iterable[TableRows]],
    *,
    matching: pc.Expression | None = None,
) -> pa.Table:
    """Write the rows of any tables that ``make`` makes from files of a table; return the new files' entries.

    ``files`` has path and number of rows of the files; rows that are not ``matching`` are not read.
    """

    def write(path: str) -> Iterator[pa.RecordBatch]:
        found = read_batches(table.uri, table.table_schema, [path], matching=matching)
        return write_files(table.lake, (rows for batch in found if batch.num_rows for rows in make(batch)))

    paths, rows = files["path"].to_pylist(), pc.sum(files["rows"]).as_py() or 0
    return run_tasks(spark, description, write, paths, rows=rows)


def committed(attempt: Callable[[], _T]) -> _T:
    """Repeat an attempt to commit while other runs commit before it.

    Raises:
        ConflictError: the fifth attempt has failed, too.
    """
    for _ in range(_CONFLICTS_MAX):
        with suppress(ConflictError):
            return attempt()
    return attempt()

"""Read a table's files: in Spark with the JVM from a folder, otherwise with pyarrow.

For object stores, the JVM would need an additional library and its own credentials.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.dataframes import in_tasks
from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, is_local, reachable

BATCH_ROWS = 20_000
_TASKS_MAX = 64


def dataset_of(uri: str, table_schema: TableSchema, paths: Sequence[str]) -> pads.Dataset:
    """Return the files, which are named by their paths below ``uri``, as an Arrow data set."""
    by = table_schema.chosen(table_schema.partition_by)
    return pads.dataset(
        list(paths),
        schema=table_schema.schema,
        filesystem=filesystem(uri),
        format="parquet",
        partitioning=pads.HivePartitioning(by, segment_encoding="uri"),
    )


def read_batches(
    uri: str,
    table_schema: TableSchema,
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    matching: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the matching rows of the files, with some columns or all.

    Raises:
        PipelineError: a file cannot be read.
    """
    with reachable(uri):
        files = dataset_of(uri, table_schema, paths)
        yield from files.to_batches(
            columns=columns and [*columns], filter=matching, batch_size=BATCH_ROWS, fragment_readahead=1
        )


def read_files(
    spark: SparkSession, uri: str, table_schema: TableSchema, paths: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return the rows of the files, which are named by their paths below ``uri``.

    Spark reads a value of a partition correctly only if it is ASCII, as contexts and dates are.
    """
    wanted = table_schema.chosen(columns)
    if not paths:
        return spark.createDataFrame(wanted.empty_table(), from_arrow_schema(wanted))
    if is_local(uri):
        # Brackets and stars in file names are not patterns.
        reader = spark.read.schema(from_arrow_schema(table_schema.schema))
        reader = reader.option("basePath", uri).option("__globPaths__", "false")
        return reader.parquet(*(f"{uri}/{path}" for path in paths)).select(*columns)

    def read(path: str) -> Iterator[pa.RecordBatch]:
        return read_batches(uri, table_schema, [path], columns)

    return in_tasks(spark, read, paths, from_arrow_schema(wanted), tasks_max=_TASKS_MAX)

"""Read a table's files in Spark: with the JVM from a folder, with pyarrow from an object store.

For object stores, the JVM would need an additional library and its own credentials.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, is_local
from sea_mq_worker.pipeline.lake.write_files import NULL_FOLDER

_BATCH_ROWS = 20_000
_TASKS_MAX = 64
_NON_ASCII = re.compile("%[89A-F]")
"""Matches folder names of partitions that Spark would decode wrongly, byte by byte."""


def read_files(
    spark: SparkSession, uri: str, table_schema: TableSchema, paths: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return the rows of the files, which are named by their paths below ``uri``."""
    schema = from_arrow_schema(table_schema.schema)
    wanted = table_schema.chosen(columns)
    if not paths:
        return spark.createDataFrame(wanted.empty_table())
    for_jvm = [path for path in paths if is_local(uri) and not _NON_ASCII.search(path)]
    for_tasks = sorted(set(paths).difference(for_jvm))
    frames = []
    if for_jvm:
        # Brackets and stars in file names are not patterns.
        reader = spark.read.schema(schema).option("basePath", uri).option("__globPaths__", "false")
        frames.append(reader.parquet(*(f"{uri}/{path}" for path in for_jvm)).select(*columns))
    if for_tasks:
        files = spark.createDataFrame(pa.table({"path": for_tasks}))
        tasks = files.repartition(min(len(for_tasks), _TASKS_MAX))
        frames.append(
            tasks.mapInArrow(ReadFiles(uri, table_schema, tuple(columns)), from_arrow_schema(wanted))
        )
    return reduce(DataFrame.unionAll, frames)


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Reads the files named in its rows; for ``DataFrame.mapInArrow``."""

    uri: str
    table_schema: TableSchema
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chosen columns; partition columns come from the path."""
        store = filesystem(self.uri)
        for batch in batches:
            for path in batch.column("path").to_pylist():
                with store.open_input_file(path) as source:
                    yield from self._rows(pq.ParquetFile(source), path)

    def _rows(self, file: pq.ParquetFile, path: str) -> Iterator[pa.RecordBatch]:
        partitions = dict(folder.split("=", 1) for folder in path.split("/")[:-1])
        schema = self.table_schema.chosen(self.columns)
        stored = [name for name in self.columns if name not in partitions]
        for batch in file.iter_batches(_BATCH_ROWS, columns=stored):
            arrays = [
                _constant(partitions[field.name], field.type, batch.num_rows)
                if field.name in partitions
                else batch.column(field.name).cast(field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _constant(folder: str, kind: pa.DataType, rows: int) -> pa.Array:
    value = None if folder == NULL_FOLDER else unquote(folder)
    return pa.repeat(pa.scalar(value, pa.string()).cast(kind), rows)

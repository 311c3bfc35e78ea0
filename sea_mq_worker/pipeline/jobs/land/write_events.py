"""Write messages into bronze, silver and the index of IDs in one pass, and files made from other files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.event_columns import to_bronze, to_silver
from sea_mq_worker.pipeline.jobs.land.repeats import to_ids
from sea_mq_worker.pipeline.jobs.land.tasks import run_tasks
from sea_mq_worker.pipeline.lake.erased_ids import without_erased
from sea_mq_worker.pipeline.lake.read_files import dataset_of
from sea_mq_worker.pipeline.lake.schemas import BRONZE, IDS, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.storage import table_uri
from sea_mq_worker.pipeline.lake.write_files import TableWriter
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.reader import SequenceRange, read_range

TableRows: TypeAlias = tuple[TableSchema, pa.RecordBatch]
"""Rows of a table."""


def write_tables(lake: str, rows: Iterable[TableRows]) -> Iterator[pa.RecordBatch]:
    """Write rows into several tables at the same time; yield the entry of each file."""
    writers: dict[str, TableWriter] = {}
    for table_schema, batch in rows:
        name = table_schema.name
        if name not in writers:
            writers[name] = TableWriter(table_uri(lake, name), table_schema)
        yield from writers[name].add(batch)
    for writer in writers.values():
        yield from writer.close()


@dataclass(frozen=True, slots=True)
class LandMessages:
    """Reads ranges of sequences from a stream and writes bronze, silver and the index of IDs."""

    lake: str
    options: JetStreamOptions
    incarnation: str
    erased: frozenset[str] = frozenset()
    """Hashes of message IDs that must not return."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the columns ``first`` and ``last``."""
        for task in (row for batch in batches for row in batch.to_pylist()):
            yield from write_tables(self.lake, self._rows(task["first"], task["last"]))

    def _rows(self, first: int, last: int) -> Iterator[TableRows]:
        sequences = SequenceRange(self.options.created or "", first, last)
        for messages in read_range(self.options, sequences):
            bronze = to_bronze(messages, self.incarnation)
            if self.erased:
                bronze = without_erased(bronze, to_silver(bronze).column("message_id"), self.erased)
            yield BRONZE, bronze
            yield from refined(bronze)


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Reads files of a table, and writes the rows of any tables that are made from theirs.

    Attributes:
        lake: the lake's address.
        source: the table.
        make: makes rows from a batch of the table.
        matching: the rows that are read; None: all.
    """

    lake: str
    source: TableSchema
    make: Callable[[pa.RecordBatch], Iterable[TableRows]]
    matching: pc.Expression | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the column ``path``."""
        paths = [path for batch in batches for path in batch.column("path").to_pylist()]
        files = dataset_of(table_uri(self.lake, self.source.name), self.source, paths)
        found = (batch for batch in files.to_batches(filter=self.matching) if batch.num_rows)
        yield from write_tables(self.lake, (rows for batch in found for rows in self.make(batch)))

    def run(self, spark: SparkSession | None, description: str, files: pa.Table) -> pa.Table:
        """Return the entries of all files, made from files with these paths and numbers of rows."""
        rows = pc.sum(files["rows"]).as_py() or 0
        return run_tasks(spark, description, self, files.select(["path"]), rows=rows)


def refined(bronze: pa.RecordBatch) -> list[TableRows]:
    """Return rows of silver and of the index of IDs."""
    silver = to_silver(bronze)
    return [(SILVER, silver), (IDS, to_ids(silver))]


def indexed(silver: pa.RecordBatch) -> list[TableRows]:
    """Return rows of the index of IDs."""
    return [(IDS, to_ids(silver))]


def kept(silver: pa.RecordBatch) -> list[TableRows]:
    """Return the same rows of silver."""
    return [(SILVER, silver)]

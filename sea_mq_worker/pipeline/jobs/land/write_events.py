"""Write messages into bronze, silver and the index of IDs in one pass, and files made from other files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.event_columns import to_bronze, to_silver
from sea_mq_worker.pipeline.jobs.land.repeats import to_ids
from sea_mq_worker.pipeline.jobs.land.tasks import run_tasks
from sea_mq_worker.pipeline.lake.erased_ids import without_erased
from sea_mq_worker.pipeline.lake.read_files import dataset_of
from sea_mq_worker.pipeline.lake.schemas import BRONZE, IDS, SILVER
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.lake.write_files import TableRows, write_files
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.reader import SequenceRange, read_range


@dataclass(frozen=True, slots=True)
class LandMessages:
    """Reads sequences from a stream and writes bronze, silver and the index of IDs."""

    lake: str
    options: JetStreamOptions
    incarnation: str
    erased: frozenset[str] = frozenset()
    """Hashes of message IDs that must not return."""

    def __call__(self, sequences: range) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file."""
        return write_files(self.lake, self._rows(sequences))

    def _rows(self, sequences: range) -> Iterator[TableRows]:
        wanted = SequenceRange(self.options.created or "", sequences[0], sequences[-1])
        for messages in read_range(self.options, wanted):
            bronze = to_bronze(messages, self.incarnation)
            if self.erased:
                bronze = without_erased(bronze, to_silver(bronze).column("message_id"), self.erased)
            yield BRONZE, bronze
            yield from refined(bronze)


def rewrite(
    spark: SparkSession | None,
    description: str,
    table: LakeTable,
    files: pa.Table,
    make: Callable[[pa.RecordBatch], Iterable[TableRows]],
    *,
    matching: pc.Expression | None = None,
) -> pa.Table:
    """Write the rows of any tables that are made from rows of files; return the entries of the new files.

    Args:
        spark: the session; None: work in this process.
        description: describes the tasks in Spark's web pages.
        table: the table that is read.
        files: path and number of rows of its files.
        make: makes rows from a batch of the table.
        matching: the rows that are read; None: all.
    """
    lake, uri, schema = table.lake, table.uri, table.table_schema

    def write(path: str) -> Iterator[pa.RecordBatch]:
        found = dataset_of(uri, schema, [path]).to_batches(filter=matching)
        return write_files(lake, (rows for batch in found if batch.num_rows for rows in make(batch)))

    return run_tasks(
        spark, description, write, files["path"].to_pylist(), rows=pc.sum(files["rows"]).as_py() or 0
    )


def refined(bronze: pa.RecordBatch) -> list[TableRows]:
    """Return rows of silver and of the index of IDs."""
    silver = to_silver(bronze)
    return [(SILVER, silver), *indexed(silver)]


def indexed(silver: pa.RecordBatch) -> list[TableRows]:
    """Return rows of the index of IDs."""
    return [(IDS, to_ids(silver))]

"""Write messages into bronze, silver and the index of IDs in one pass; remove repeated IDs afterwards."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.pipeline.jobs.land.event_columns import to_bronze, to_silver
from sea_mq_worker.pipeline.jobs.land.repeats import to_ids
from sea_mq_worker.pipeline.lake.erased_ids import without_erased
from sea_mq_worker.pipeline.lake.read_files import dataset_of
from sea_mq_worker.pipeline.lake.schemas import BRONZE, IDS, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.storage import table_uri
from sea_mq_worker.pipeline.lake.write_files import TableWriter, WriteFiles
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.reader import SequenceRange, read_range


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
        for task in _rows(batches):
            sequences = SequenceRange(self.options.created or "", task["first"], task["last"])
            writers = _Writers(self.lake, BRONZE, SILVER, IDS)
            for messages in read_range(self.options, sequences):
                bronze = to_bronze(messages, self.incarnation)
                if self.erased:
                    bronze = without_erased(bronze, to_silver(bronze).column("message_id"), self.erased)
                yield from writers.add(bronze, *_refined(bronze))
            yield from writers.close()


@dataclass(frozen=True, slots=True)
class RefineBronze:
    """Reads files of bronze and writes silver and the index of IDs."""

    lake: str
    matching: pc.Expression

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the column ``path``."""
        writers = _Writers(self.lake, SILVER, IDS)
        for bronze in _read(self.lake, BRONZE, batches, filter=self.matching):
            yield from writers.add(*_refined(bronze))
        yield from writers.close()


@dataclass(frozen=True, slots=True)
class RemoveRows:
    """Writes files of silver again, without the rows of some sequences."""

    lake: str
    seqs: pa.Array

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the column ``path``."""
        others = ~pc.field("seq").isin(self.seqs)
        return WriteFiles(table_uri(self.lake, SILVER.name), SILVER)(
            _read(self.lake, SILVER, batches, filter=others)
        )


@dataclass(frozen=True, slots=True)
class IndexSilver:
    """Reads files of silver and writes the index of their IDs."""

    lake: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the column ``path``."""
        rows = _read(self.lake, SILVER, batches)
        return WriteFiles(table_uri(self.lake, IDS.name), IDS)(map(to_ids, rows))


class _Writers:
    """Writes batches into several tables at the same time."""

    def __init__(self, lake: str, *schemas: TableSchema) -> None:
        self._writers = [TableWriter(table_uri(lake, schema.name), schema) for schema in schemas]

    def add(self, *batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Write one batch into each table; yield the entries of completed files."""
        for writer, batch in zip(self._writers, batches, strict=True):
            yield from writer.add(batch)

    def close(self) -> Iterator[pa.RecordBatch]:
        """Complete all files; yield their entries."""
        for writer in self._writers:
            yield from writer.close()


def _refined(bronze: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    silver = to_silver(bronze)
    return silver, to_ids(silver)


def _read(
    lake: str, schema: TableSchema, tasks: Iterable[pa.RecordBatch], **options: Any
) -> Iterator[pa.RecordBatch]:
    paths = [task["path"] for task in _rows(tasks)]
    batches = dataset_of(table_uri(lake, schema.name), schema, paths).to_batches(**options)
    return (batch for batch in batches if batch.num_rows)


def _rows(tasks: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in tasks:
        yield from batch.to_pylist()

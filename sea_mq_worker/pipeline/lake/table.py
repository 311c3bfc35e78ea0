"""A Delta table of the lake: files by Spark's tasks, one atomic commit by the driver, read as Parquet.

A commit carries a mark, a name and a number that only rises. Who says what it has written by such a mark can
neither write it twice nor leave something out, whatever becomes of its own notes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.files import RESULT_DDL, WriteFiles
from sea_mq_worker.pipeline.lake.layouts import Layout
from sea_mq_worker.pipeline.lake.storage import table_uri

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
"""(column, operator, value), all of which must hold; operators as deltalake takes them."""

_READER_VERSION = 1
"""Tables that ask for more (deletion vectors, column mapping) cannot be read as plain Parquet."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files that tasks have written and nobody sees yet."""

    actions: tuple[AddAction, ...]
    rows: int

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(action.size for action in self.actions)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a writer has come: ``value`` rises from commit to commit under the same ``name``."""

    name: str
    value: int


class LakeTable:
    """One table of a lake, made at the first commit."""

    def __init__(self, lake: str, layout: Layout) -> None:
        self.uri = table_uri(lake, layout.name)
        self.layout = layout

    def open(self) -> DeltaTable | None:
        """Return the table as it is now; None: nothing was committed yet.

        Raises:
            PipelineError: another tool turned features on that this reader would get wrong.
        """
        if not DeltaTable.is_deltatable(self.uri):
            return None
        table = DeltaTable(self.uri)
        if table.protocol().min_reader_version > _READER_VERSION:
            raise PipelineError(
                f"{self.uri} asks for Delta reader version {table.protocol().min_reader_version}: turn "
                "deletion vectors and column mapping off for it, they would be ignored here"
            )
        return table

    def mark(self, name: str) -> int | None:
        """Return the last value committed under a mark's name; None: there is none."""
        table = self.open()
        return table.transaction_version(name) if table else None

    def read(self, spark: SparkSession, skip_unless: Conditions = ()) -> DataFrame:
        """Return the rows as of now.

        Args:
            spark: the session.
            skip_unless: leave out files that hold no row like this, by partition or ``ranged`` column; rows
                that are otherwise may still be among those returned.
        """
        schema = from_arrow_schema(self.layout.schema)
        table = self.open()
        files = table.file_uris(file_pruning_predicate=list(skip_unless) or None) if table else []
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", self.uri).parquet(*files)

    def write(self, frame: DataFrame) -> Files:
        """Write the frame's rows into new files by Spark's tasks; ``commit`` adds them to the table."""
        columns = frame.select(*self.layout.schema.names)
        written = columns.mapInArrow(WriteFiles(self.uri, self.layout), RESULT_DDL).collect()
        now = int(time.time() * 1000)
        actions = [AddAction(r.path, r.size, r.partitions, now, True, r.stats) for r in written]
        return Files(tuple(actions), sum(r.rows for r in written))

    def commit(self, files: Files, mark: Mark) -> bool:
        """Make the files part of the table, all or none.

        Returns False, and leaves the table as it is, where the mark's value was reached before.

        Raises:
            PipelineError: somebody else committed under this mark at the same time.
        """
        table = self.open() or self._create()
        reached = table.transaction_version(mark.name)
        if reached is not None and reached >= mark.value:
            return False
        properties = CommitProperties(
            app_transactions=[Transaction(mark.name, mark.value)], max_commit_retries=5
        )
        try:
            table.create_write_transaction(
                list(files.actions),
                "append",
                table.schema(),
                partition_by=list(self.layout.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise PipelineError(f"{self.uri}: another run commits at the same time: {error}") from error
        return True

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.uri, self.layout.schema, mode="ignore", partition_by=list(self.layout.partition_by)
        )

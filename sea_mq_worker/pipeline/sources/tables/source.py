"""Spark data sources ``outbox`` and ``inbox``: the worker's tables in PostgreSQL, read as Arrow.

With the option ``snapshot`` the tasks read ranges of the table's pages in parallel, all from that snapshot.
Without it one task reads everything by one statement, since two statements would see different states, and
each action of Spark reads the table again. Times outside the years 2 to 9998, also infinity, become the first
or last time of these years.

Options: ``snapshot``; ``columns``, comma-separated; ``states``, ``eventTypes``, ``orderingKeys``, ``ids`` and
``consumers``, each a JSON list; ``publishedBefore``, ``createdSince``, ``createdBefore``, ``receivedSince``
and ``receivedBefore``, each an ISO 8601 time; ``partition``, the name of one of a partitioned table;
``firstPage``, ``endPage`` (not included) and ``pagesPerPartition``; ``config``, a settings file. Server, user
and schema come from the settings where a task runs.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sea_mq_worker.adapters.postgres.connection import quoted_schema
from sea_mq_worker.adapters.postgres.schema.leaf_partitions import LEAVES, LeafPartition, PageRange, ranges
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.executor_settings import CONFIG, executor_settings
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, connected, record_batches
from sea_mq_worker.pipeline.sources.tables.query import INBOX, OUTBOX, SourceTable, TableQuery, table_query

_NEEDS = ("database_url",)


class TableReader(DataSourceReader):
    """Reads the table's rows that match the options; a partition is a PageRange, or None for all."""

    def __init__(self, query: TableQuery, config: dict[str, str]) -> None:
        self._query = query
        self._config = config

    def partitions(self) -> list[InputPartition]:
        """Divide the table's present pages, which contain all rows of the snapshot.

        The snapshot's session holds a lock on the table: no leaf can be dropped, and a new leaf has no rows
        in the snapshot.
        """
        if self._query.is_whole:
            return [InputPartition(None)]
        first, end = self._query.pages
        size = self._query.pages_per_partition or sys.maxsize
        found = [pages for leaf in self._leaves() for pages in ranges(leaf, size, first=first, end=end)]
        # For an empty list, Spark would request a partition of None.
        return [InputPartition(pages) for pages in found or [PageRange("", 0, 0)]]

    def _leaves(self) -> list[LeafPartition]:
        table, wanted = self._query.table.name, self._query.partition
        with connected(executor_settings(self._config, needs=_NEEDS), purpose="pipeline plan") as cursor:
            cursor.execute(LEAVES, (table,))
            leaves = [LeafPartition(*row) for row in cursor.fetchall()]
        chosen = [leaf for leaf in leaves if wanted in {"", leaf.name}]
        if wanted and not chosen:
            raise PipelineError(f"{table} has no partition {wanted!r}")
        if len(chosen) > 1 and self._query.pages != (0, None):
            raise PipelineError(
                "option 'partition': name the partition that 'firstPage' and 'endPage' refer to"
            )
        return chosen

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of pages."""
        settings = executor_settings(self._config, needs=_NEEDS)
        with connected(settings, purpose="pipeline read") as cursor:
            if self._query.snapshot:
                cursor.execute(ONE_MOMENT)
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{self._query.snapshot}'")
            table = f"{quoted_schema(settings.database_schema)}.{self._query.table.name}"
            cursor.execute(self._query.sql(table, partition.value))
            yield from record_batches(cursor)


class _TableSource(DataSource):
    table: SourceTable

    def schema(self) -> str:
        """Return the columns that the options choose."""
        return table_query(self.table, self.options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Parse the options; a schema given by the caller is refused."""
        query = table_query(self.table, self.options)
        if tuple(schema.names) != query.columns:
            raise ValueError("choose columns by the option 'columns', not by a schema")
        return TableReader(query, {CONFIG: self.options[CONFIG]} if CONFIG in self.options else {})


class OutboxSource(_TableSource):
    """``spark.read.format("outbox")``: the rows of ``outbox_events``."""

    table = OUTBOX

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "outbox"


class InboxSource(_TableSource):
    """``spark.read.format("inbox")``: the rows of ``inbox_messages``."""

    table = INBOX

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "inbox"

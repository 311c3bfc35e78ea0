"""Spark data sources ``outbox`` and ``inbox``: the worker's tables in PostgreSQL, read as Arrow.

With the option ``snapshot`` the tasks read ranges of the table's pages side by side, all as of that one
moment; without it one task reads all by one statement, since two statements would see different moments. Each
action of Spark without a snapshot reads anew. Times beyond the years 2 to 9998, infinity too, come as the
first or the last moment of these years.

Options: ``snapshot``; ``columns``, comma-separated; ``states``, ``eventTypes``, ``orderingKeys``, ``ids`` and
``consumers``, each a JSON list; ``publishedBefore``, ``createdSince``, ``createdBefore``, ``receivedSince``
and ``receivedBefore``, each an ISO 8601 time; ``firstPage``, ``endPage`` (not included) and
``pagesPerPartition``; ``config``, a settings file. Server, user and schema come from the settings where a
task runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sea_mq_worker.pipeline.access import CONFIG, executor_settings
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, connected, record_batches
from sea_mq_worker.pipeline.sources.tables.query import INBOX, OUTBOX, Table, TableQuery, table_query

_NEEDS = ("database_url",)
_PAGES = "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint"


@dataclass(frozen=True)
class PageRange(InputPartition):
    """The pages that one task reads, the last not included; None: all."""

    pages: tuple[int, int] | None


class TableReader(DataSourceReader):
    """Reads the rows of a table that its options choose."""

    def __init__(self, query: TableQuery, config: dict[str, str]) -> None:
        self._query = query
        self._config = config

    def partitions(self) -> list[PageRange]:
        """Part the table's pages; whatever the snapshot shows is in those that are there now."""
        query = self._query
        first, end = query.pages
        if query.pages_per_partition is None and end is None and not first:
            return [PageRange(None)]
        if end is None:
            with connected(executor_settings(self._config, needs=_NEEDS), purpose="pipeline plan") as cursor:
                cursor.execute(_PAGES, (query.table.name,))
                end = cursor.fetchone()[0]
        size = query.pages_per_partition or max(1, end - first)
        ranges = [PageRange((start, min(start + size, end))) for start in range(first, end, size)]
        return ranges or [PageRange((first, first))]  # without any, Spark would ask for one that is None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of pages."""
        assert isinstance(partition, PageRange)  # noqa: S101 - Spark hands back what `partitions` made
        settings = executor_settings(self._config, needs=_NEEDS)
        with connected(settings, purpose="pipeline read") as cursor:
            if self._query.snapshot:
                cursor.execute(ONE_MOMENT)
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{self._query.snapshot}'")
            cursor.execute(self._query.sql(settings.database_schema, partition.pages))
            yield from record_batches(cursor)


class _TableSource(DataSource):
    table: Table

    def schema(self) -> str:
        """Return the columns that the options choose."""
        return table_query(self.table, self.options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the options; a schema of the caller's is not taken."""
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

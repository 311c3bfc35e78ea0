"""Spark data sources ``outbox`` and ``inbox``: the worker's tables in PostgreSQL, read as Arrow.

One task reads all rows by one statement, since two statements would see different states; each action of
Spark reads the table again. With the options ``snapshot`` and ``pages``, tasks read ranges of the table's
pages in parallel, all from that snapshot. Transactions are read-only. Times outside the years 2 to 9998, also
infinity, become the first or last time of these years.

Options: ``columns``, comma-separated; ``where``, a SQL condition; ``snapshot``; ``pages``, a JSON list of
leaf, first and end; ``pagesPerPartition``; ``config``, a settings file. Server, user and schema come from the
settings where a task runs.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sea_mq_worker.adapters.postgres.connection import quoted_schema
from sea_mq_worker.adapters.postgres.schema.leaf_partitions import LeafPartition, PageRange, ranges
from sea_mq_worker.domain.errors import StoreUnavailableError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.executor_settings import CONFIG, executor_settings
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, connected

FIRST_TIME = datetime(2, 1, 1, tzinfo=UTC)
"""The earliest time that is read exactly: Python has no earlier one in every time zone."""

LAST_TIME = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
"""The latest time that is read exactly."""

PAGES_PER_PARTITION = 16384

_OPTIONS = frozenset({"columns", "where", "snapshot", "pagesperpartition", "pages", CONFIG})
_OUTBOX = (
    "id string, aggregate_type string, aggregate_id string, event_type string, event_version int, "
    "payload string, payload_bytes int, occurred_at timestamp, correlation_id string, causation_id string, "
    "seq bigint, created_at timestamp, partition_key string, ordering_key string, headers string, "
    "metadata string, bytes int, available_at timestamp, is_open boolean, publish_attempts int, "
    "failures int, first_attempt_at timestamp, stream string, stream_seq bigint, state string, "
    "claimed_at timestamp, claimed_by string, published_at timestamp, publish_error string"
)
_INBOX = (
    "message_id string, subject string, received_at timestamp, processed_at timestamp, attempts int, "
    "last_error string, consumer string, stream string, stream_seq bigint, content_hash binary, "
    "locked_until timestamp, locked_by string, reply string, dead_letter_reason string, "
    "dead_letter_begun_at timestamp, dead_lettered_at timestamp"
)
_EXPRESSIONS = {"payload_bytes": "octet_length(payload::text)"}


class TableReader(DataSourceReader):
    """Reads the rows that the options choose; a partition is a PageRange, or None for all."""

    def __init__(self, table: str, columns: Mapping[str, str], options: Mapping[str, str]) -> None:
        """Read columns, given with their types in Spark's DDL."""
        self._table = table
        self._selected = ", ".join(_selected(*column) for column in columns.items())
        self._where = options.get("where", "true")
        self._snapshot = options.get("snapshot", "")
        self._pages = json.loads(options.get("pages", "[]"))
        self._pages_per_partition = int(options.get("pagesPerPartition", PAGES_PER_PARTITION))
        self._access = {CONFIG: options[CONFIG]} if CONFIG in options else {}

    def partitions(self) -> list[InputPartition]:
        """Divide the pages."""
        found = [
            InputPartition(part)
            for leaf, first, end in self._pages
            for part in ranges(LeafPartition(leaf, end), self._pages_per_partition, first=first)
        ]
        return found or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of pages.

        Raises:
            StoreUnavailableError: the connection was lost, or the server ended the statement.
        """
        settings = executor_settings(self._access, needs=("database_url",))
        with connected(settings, purpose="pipeline read") as cursor:
            cursor.execute(ONE_MOMENT)
            if self._snapshot:
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self._snapshot)}")
            cursor.execute(self._statement(settings.database_schema, partition.value))
            try:
                yield from cursor.fetch_record_batch()
            except OSError as error:  # Arrow's form of a driver's error in the middle of a stream
                reason = str(error).splitlines()[0]
                raise StoreUnavailableError(f"PostgreSQL ended a read early: {reason}") from None

    def _statement(self, schema: str, pages: PageRange | None) -> str:
        statement = f"SELECT {self._selected} FROM "  # noqa: S608 - names of this module, and the user's condition
        if pages is None:
            return f"{statement}{quoted_schema(schema)}.{self._table} WHERE {self._where}"
        within = f"ctid >= '({pages.first},0)'::tid AND ctid < '({pages.end},0)'::tid"
        return f"{statement}{pages.leaf} WHERE ({self._where}) AND {within}"


class _TableSource(DataSource):
    format_name: str
    table: str
    ddl: str

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    def schema(self) -> str:
        """Return the columns that the options choose."""
        return ", ".join(f"{name} {kind}" for name, kind in self._columns().items())

    def reader(self, schema: StructType | None) -> TableReader:
        """Return the reader; a schema given by the caller is refused."""
        columns = self._columns()
        if schema and schema.names != list(columns):
            raise ValueError("choose columns by the option 'columns', not by a schema")
        return TableReader(self.table, columns, self.options)

    def _columns(self) -> dict[str, str]:
        """Return the chosen columns with their types in Spark's DDL.

        Raises:
            PipelineError: an option is unknown, or a column.
        """
        if unknown := sorted({name.lower() for name in self.options} - _OPTIONS):
            raise PipelineError(f"{self.table}: unknown option {unknown[0]!r}")
        kinds = dict(column.split() for column in self.ddl.split(", "))
        chosen = [name.strip() for name in self.options.get("columns", ",".join(kinds)).split(",")]
        if unknown := [name for name in chosen if name not in kinds]:
            raise PipelineError(f"{self.table} has no column {unknown[0]!r}")
        return {name: kinds[name] for name in chosen}


class OutboxSource(_TableSource):
    """``spark.read.format("outbox")``: the rows of ``outbox_events``."""

    format_name, table, ddl = "outbox", "outbox_events", _OUTBOX


class InboxSource(_TableSource):
    """``spark.read.format("inbox")``: the rows of ``inbox_messages``."""

    format_name, table, ddl = "inbox", "inbox_messages", _INBOX


def literal(value: datetime | int | str | UUID) -> str:
    """Return a value as a SQL literal. ADBC reads by COPY, which takes no parameters."""
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::timestamptz"
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _selected(name: str, kind: str) -> str:
    """Return a column in a form that Spark can hold; times outside its range become the nearest limit."""
    expression = _EXPRESSIONS.get(name, name)
    if kind == "string":  # also ids and JSON
        expression = f"{name}::text"
    elif kind == "timestamp":
        first, last = literal(FIRST_TIME), literal(LAST_TIME)
        expression = (
            f"CASE WHEN {name} < {first} THEN {first} WHEN {name} > {last} THEN {last} ELSE {name} END"
        )
    return f"{expression} AS {name}"

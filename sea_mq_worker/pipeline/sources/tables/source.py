"""Spark data sources ``outbox`` and ``inbox``: the worker's tables in PostgreSQL, read as Arrow.

One task reads all rows by one statement, since two statements would see different states; each action of
Spark reads the table again. Transactions are read-only. Times outside the years 2 to 9998, also infinity,
become the first or last time of these years.

Options: ``columns``, comma-separated; ``where``, a SQL condition; ``config``, a settings file. Server, user
and schema come from the settings where a task runs. Query plans, event logs and Spark's web pages show the
options, so none contains a secret.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.sources.tables.connection import ONE_MOMENT, connected
from sea_mq_worker.postgres.partitions import PageRange
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.settings import load_settings

FIRST_TIME = datetime(2, 1, 1, tzinfo=UTC)
"""The earliest time that is read exactly: Python has no earlier one in every time zone."""

LAST_TIME = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
"""The latest time that is read exactly."""

_OPTIONS = frozenset({"columns", "where", "config"})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReader(DataSourceReader):
    """Reads columns, given with their types in Spark's DDL; tasks read one of ``ranges`` each."""

    table: str
    columns: Mapping[str, str]
    where: str = "true"
    config: str | None = None
    snapshot: str = ""
    ranges: Sequence[PageRange | None] = (None,)

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each range of pages."""
        return [*map(InputPartition, self.ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of pages.

        Raises:
            StoreUnavailableError: the connection was lost, or the server ended the statement.
        """
        settings = load_settings(needs=("database_url",), config=self.config)
        with connected(settings, purpose="pipeline read") as cursor:
            cursor.execute(ONE_MOMENT)
            if self.snapshot:
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}")
            cursor.execute(self._statement(settings.database_schema, partition.value))
            try:
                yield from cursor.fetch_record_batch()
            except OSError as error:  # Arrow's form of a driver's error in the middle of a stream
                reason = str(error).splitlines()[0]
                raise StoreUnavailableError(f"PostgreSQL ended a read early: {reason}") from None

    def _statement(self, schema: str, pages: PageRange | None) -> str:
        selected = ", ".join(_selected(*column) for column in self.columns.items())
        statement = f"SELECT {selected} FROM "  # noqa: S608 - names of this module, and the user's condition
        if pages is None:
            return f"{statement}{quoted_schema(schema)}.{self.table} WHERE {self.where}"
        within = f"ctid >= '({pages.first},0)'::tid AND ctid < '({pages.end},0)'::tid"
        return f"{statement}{pages.leaf} WHERE ({self.where}) AND {within}"


class _TableSource(DataSource):
    format_name: str
    table: str
    ddl: str

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    @classmethod
    def columns(cls, names: Sequence[str] | None) -> dict[str, str]:
        """Return the types of columns, by default of all, in Spark's DDL.

        Raises:
            PipelineError: there is no such column.
        """
        kinds = dict(column.split() for column in cls.ddl.split(", "))
        if unknown := [name for name in names or () if name not in kinds]:
            raise PipelineError(f"{cls.table} has no column {unknown[0]!r}")
        return {name: kinds[name] for name in names or kinds}

    def schema(self) -> str:
        """Return the columns that the options choose."""
        return self.reader(None).ddl

    def reader(self, schema: StructType | None) -> TableReader:
        """Return the reader; a schema given by the caller is refused."""
        given = {name.lower(): value for name, value in self.options.items()}
        if unknown := sorted(given.keys() - _OPTIONS):
            raise PipelineError(f"{self.table}: unknown option {unknown[0]!r}")
        names = given.get("columns")
        columns = self.columns(names and [name.strip() for name in names.split(",")])
        if schema and schema.names != list(columns):
            raise ValueError("choose columns by the option 'columns', not by a schema")
        where, config = given.get("where", "true"), given.get("config")
        return TableReader(table=self.table, columns=columns, where=where, config=config)


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

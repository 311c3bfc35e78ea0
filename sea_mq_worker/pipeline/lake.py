"""The lake: Delta tables that Spark alone writes, in a folder, in an object store, or by name in a catalog.

Times are UTC in microseconds; ``date`` is the day of a table's main time. A lake of release 1.0 has the same
tables with fewer columns, and is continued: ``create`` adds what is missing.
"""

import hashlib
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.session import properties_set

CATALOG = "catalog:"
"""Prefix of a lake's address that names a schema of a catalog, as ``catalog:main.events``."""

_EVENT_COLUMNS = (
    "message_id STRING, event_type STRING, event_version INT, source STRING, aggregate STRING, "
    "occurred_at TIMESTAMP, correlation_id STRING, causation_id STRING, partition_key STRING, context "
    "STRING"
)
_MISSING = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}
_BEING_CREATED = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_CONFLICT = re.compile(
    rf"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w+Exception|{_BEING_CREATED}"
)
_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns in Spark's DDL, its partition columns, and the columns with statistics.

    Only columns with statistics appear in the log of the table, so that no payload does.
    """

    name: str
    ddl: str
    partition_by: tuple[str, ...]
    ranged: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [column.split()[0] for column in self.ddl.split(", ") if not column.startswith("value: ")]


BRONZE = Table(
    "bronze",
    "seq BIGINT, subject STRING, time TIMESTAMP, headers ARRAY<STRUCT<key: STRING, value: STRING>>, data "
    f"BINARY, incarnation STRING, {_EVENT_COLUMNS}, stream STRING, date DATE",
    partition_by=("stream", "date"),
    ranged=("seq", "time", "incarnation"),
)
"""Messages as stored in the stream, each once. ``incarnation`` distinguishes streams with the same name:
creation time, and ``#n`` after the n-th restore. The key of a row is (stream, incarnation, seq). The event
columns are null in rows of release 1.0."""

SILVER = Table(
    "silver",
    "message_id STRING, event_type STRING, event_version INT, subject STRING, source STRING, aggregate "
    "STRING, occurred_at TIMESTAMP, published_at TIMESTAMP, correlation_id STRING, causation_id STRING, "
    "partition_key STRING, payload STRING, bytes BIGINT, stream STRING, incarnation STRING, seq BIGINT, "
    "context STRING, date DATE",
    partition_by=("context", "date"),
    ranged=("message_id", "published_at", "stream", "incarnation", "seq"),
)
"""The first copy of each message ID; what is no UUID counts by stream and ID. ``published_at`` is the time
of storage, ``date`` its day, ``bytes`` the body's size. ``payload`` is null if the body is not UTF-8,
``context`` if the subject is not an event's."""

GOLD = Table(
    "gold",
    "event_type STRING, minute TIMESTAMP, events BIGINT, late BIGINT, bytes BIGINT, p50_seconds DOUBLE, "
    "p95_seconds DOUBLE, p99_seconds DOUBLE, context STRING, date DATE",
    partition_by=("context", "date"),
    ranged=("minute",),
)
"""Per context, event type and minute of ``published_at``; percentiles of ``published_at - occurred_at``."""

ARCHIVE = Table(
    "archive",
    "id STRING, aggregate_type STRING, aggregate_id STRING, event_type STRING, event_version INT, payload "
    "STRING, occurred_at TIMESTAMP, correlation_id STRING, causation_id STRING, seq BIGINT, created_at "
    "TIMESTAMP, partition_key STRING, ordering_key STRING, headers STRING, metadata STRING, available_at "
    "TIMESTAMP, publish_attempts INT, failures INT, first_attempt_at TIMESTAMP, stream STRING, stream_seq "
    "BIGINT, published_at TIMESTAMP, publish_error STRING, batch BIGINT, context STRING, date DATE",
    partition_by=("context", "date"),
    ranged=("id", "seq", "created_at", "published_at", "batch"),
)
"""Outbox rows in their published state. JSON columns contain PostgreSQL's text; ``date`` is the day of
``published_at``; only release 1.0 filled ``batch``. An event that was published again after archiving has
several rows; the one with the latest ``published_at`` is current."""

ERASED = Table("erased", "id_sha256 STRING, erased_at TIMESTAMP", partition_by=(), ranged=("id_sha256",))
"""One row per erased message ID: the hexadecimal SHA-256 of its UTF-8 text."""


class Lake:
    """The tables at an address: a folder, a URI such as ``s3://bucket/path``, or ``catalog:main.events``."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark = spark
        self.address = address.rstrip("/")
        parts = urlsplit(address)
        if parts.scheme in {"", "file"}:
            folder = Path(unquote(parts.path) if parts.scheme else address)
            self.address = str(folder.expanduser().absolute())

    def table(self, name: str) -> str:
        """Return the SQL identifier of a table; a slash in its name is part of a path."""
        if self.address.startswith(CATALOG):
            # Catalogs allow no other characters, and do not distinguish case.
            plain = re.sub("[^a-z0-9]", "_", name)
            if re.search("[^a-z0-9./]", name):  # which another name may have become, too
                plain += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            parts = [*self.address.removeprefix(CATALOG).split("."), plain]
            return ".".join(f"`{part}`" for part in parts)
        return "delta.`{}/{}`".format(self.address.replace("`", "``"), name.replace("`", "``"))

    def folder(self, name: str) -> str:
        """Return where a query keeps its checkpoint.

        Raises:
            PipelineError: the lake is a catalog's, which has no folder.
        """
        if self.address.startswith(CATALOG):
            raise PipelineError(
                f"{self.address}: a catalog has no place for checkpoints: name a folder by --checkpoints"
            )
        return f"{self.address}/{name}"

    def exists(self, name: str) -> bool:
        """Return whether the lake has a table."""
        try:
            return self.spark.catalog.tableExists(self.table(name))
        except AnalysisException as error:
            if error.getCondition() in _MISSING:
                return False
            raise

    def read(self, name: str) -> DataFrame:
        """Return the rows of a table, which has to exist."""
        return self.spark.table(self.table(name))

    def follow(self, name: str, **options: str) -> DataFrame:
        """Return the rows of a table, and those that will be added, for a streaming query."""
        reader = self.spark.readStream.options(**options)
        if self.address.startswith(CATALOG):
            return reader.table(self.table(name))
        return reader.format("delta").load(f"{self.address}/{name}")

    def create(self, table: Table) -> None:
        """Create a table, or add what a table of an earlier release lacks; other runs may do the same."""
        repeated(lambda: self._create(table))

    def _create(self, table: Table) -> None:
        name = self.table(table.name)
        properties = {
            "delta.dataSkippingStatsColumns": ",".join(table.ranged),
            "delta.autoOptimize.autoCompact": "true",
            # A query that follows the table may stand still for so long.
            "delta.logRetentionDuration": "interval 30 days",
        }
        if not self.exists(table.name):
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
            by = f"PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {name} ({table.ddl}) USING delta {by} TBLPROPERTIES ({listed})"
            )
            if not self.exists(table.name):  # though another run's CREATE was seen
                raise ConflictError(f"{name} is being created")
            return
        present = self.read(table.name).columns
        wanted = StructType.fromDDL(table.ddl)
        assert isinstance(wanted, StructType)  # noqa: S101 - of columns
        if missing := [
            f"`{each.name}` {each.dataType.simpleString()}" for each in wanted if each.name not in present
        ]:
            self.spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(missing)})")
        given: dict[str, str] = dict(self.spark.sql(f"SHOW TBLPROPERTIES {name}").collect())
        wrong = {key: value for key, value in properties.items() if given.get(key) != value}
        if wrong:
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in wrong.items())
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})")

    def insert_new(self, table: str, rows: DataFrame, on: str, **literals: Any) -> int:
        """Insert the rows ``s`` that match no row ``t``; return how many. Of two runs at once one fails.

        Args:
            table: the table's name.
            rows: the rows, with the columns to insert and those of the condition; the table may have more.
            on: the condition in SQL, in which ``{name}`` is one of the literals.
            literals: their values.
        """
        present = self.read(table).columns
        columns = [f"`{name}`" for name in rows.columns if name in present]
        values = ", ".join(f"s.{name}" for name in columns)
        insert = f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"  # noqa: S608
        merge = f"MERGE INTO {self.table(table)} AS t USING {{rows}} AS s ON {on} {insert}"
        [counts] = rows.sparkSession.sql(merge, rows=rows, **literals).collect()
        return int(counts["num_inserted_rows"])

    def vacuum(self, tables: Sequence[Table], hours: int | None) -> None:
        """Delete files that no version of this many hours needs; None: do nothing."""
        if hours is None:
            return
        properties = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # of less than a week
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",  # tasks, instead of 10,000
        }
        with properties_set(self.spark, properties):
            for table in tables:
                self.spark.sql(f"VACUUM {self.table(table.name)} RETAIN {hours} HOURS")

    def require(self, names: Sequence[str]) -> None:
        """Check that the lake has one of the tables before it is read.

        Raises:
            PipelineError: it has none.
        """
        if not any(map(self.exists, names)):
            raise PipelineError(
                f"{self.address}: there is no lake; check the address, or create it by `pipeline land` or"
                " `pipeline archive`"
            )


class ConflictError(PipelineError):
    """Another run has changed a table meanwhile."""


def repeated(action: Callable[[], _T]) -> _T:
    """Run an action that commits to a table, again while other runs commit at the same time.

    Raises:
        ConflictError: others were faster each time.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except (PySparkException, Py4JJavaError, ConflictError) as error:
            text = str(error)
            is_last = attempt + 1 == _ATTEMPTS
            is_conflict = isinstance(error, ConflictError) or _CONFLICT.search(text)
            if not is_conflict or (is_last and _BEING_CREATED in text):
                raise
        time.sleep(random.uniform(0, _PAUSE_SECONDS * 2**attempt))  # noqa: S311 - no secret
    raise ConflictError("other runs write to the lake all the time: let one job at a time land a stream")

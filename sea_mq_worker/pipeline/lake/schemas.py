"""The lake's tables: columns, their meaning, and partitions.

Times are UTC in microseconds. ``date`` is the day of the table's main time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

_TYPES = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "double": pa.float64(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """A table of the lake.

    Attributes:
        name: the table's folder.
        schema: all columns, partition columns last.
        partition_by: columns whose values are in folder names and not in the files.
        ranged: columns whose minimum and maximum are in the log entry of each file.
        sort_by: columns by which the rows of a file are sorted, so that a search reads a part of the file.
    """

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    ranged: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()

    @property
    def file_schema(self) -> pa.Schema:
        """The columns in the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def chosen(self, columns: Sequence[str]) -> pa.Schema:
        """Return the given columns, in this order."""
        return pa.schema([self.schema.field(name) for name in columns])


def _columns(text: str) -> pa.Schema:
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split() for column in text.split(", "))])


BRONZE = TableSchema(
    name="bronze",
    schema=_columns(
        "seq bigint, subject string, time timestamp, headers headers, data binary, incarnation string, "
        "stream string, date date"
    ),
    partition_by=("stream", "date"),
    ranged=("seq", "time", "incarnation"),
)
"""Messages as stored in the stream, each once. ``incarnation`` distinguishes streams with the same name:
creation time and number of detected restores. The key of a row is (stream, incarnation, seq)."""

SILVER = TableSchema(
    name="silver",
    schema=_columns(
        "message_id string, event_type string, event_version int, subject string, source string, "
        "aggregate string, occurred_at timestamp, published_at timestamp, correlation_id string, "
        "causation_id string, partition_key string, payload string, bytes bigint, stream string, "
        "incarnation string, seq bigint, context string, date date"
    ),
    partition_by=("context", "date"),
    ranged=("message_id", "published_at", "stream", "incarnation", "seq"),
)
"""One row per message ID: its first copy. ``published_at`` is the time of storage in the stream, ``date`` its
day, and ``bytes`` the body's size. ``payload`` is null if the body is not UTF-8, ``context`` if the subject
is not an event's."""

IDS = TableSchema(
    name="ids",
    schema=_columns("high bigint, low bigint, watermark string, seq bigint, published_at timestamp"),
    partition_by=(),
    ranged=("high", "published_at"),
    sort_by=("high", "low"),
)
"""Index of the message IDs in silver. ``high`` and ``low`` are the bits of a UUID, or of another ID's hash. A
row counts if silver's watermark of the name ``watermark`` has reached ``seq``."""

GOLD = TableSchema(
    name="gold",
    schema=_columns(
        "event_type string, minute timestamp, events bigint, late bigint, bytes bigint, p50_seconds double, "
        "p95_seconds double, p99_seconds double, context string, date date"
    ),
    partition_by=("context", "date"),
    ranged=("minute",),
)
"""Per context, event type and minute of ``published_at``; percentiles of ``published_at - occurred_at``."""

ARCHIVE = TableSchema(
    name="archive",
    schema=_columns(
        "id string, aggregate_type string, aggregate_id string, event_type string, event_version int, "
        "payload string, occurred_at timestamp, correlation_id string, causation_id string, seq bigint, "
        "created_at timestamp, partition_key string, ordering_key string, headers string, metadata string, "
        "available_at timestamp, publish_attempts int, failures int, first_attempt_at timestamp, "
        "stream string, stream_seq bigint, published_at timestamp, publish_error string, batch bigint, "
        "context string, date date"
    ),
    partition_by=("context", "date"),
    ranged=("id", "seq", "created_at", "published_at", "batch"),
)
"""Outbox rows in their published state, without columns that only unpublished events have. JSON columns
contain PostgreSQL's text. ``batch`` is the number of the context's commit, ``date`` the day of
``published_at``. An event that is inserted again after archiving has several rows; the one with the latest
``published_at`` is current."""

SCHEMAS = (BRONZE, SILVER, IDS, GOLD, ARCHIVE)
"""All tables of a lake."""

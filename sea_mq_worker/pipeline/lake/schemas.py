"""The lake's tables: columns, their meaning, and partitions.

Times are UTC in microseconds. ``date`` is the day of the table's main time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

_MOMENT = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))


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


BRONZE = TableSchema(
    name="bronze",
    schema=pa.schema(
        [
            ("seq", pa.int64()),
            ("subject", pa.string()),
            ("time", _MOMENT),
            ("headers", _HEADERS),
            ("data", pa.binary()),
            ("incarnation", pa.string()),
            ("stream", pa.string()),
            ("date", pa.date32()),
        ]
    ),
    partition_by=("stream", "date"),
    ranged=("seq", "time", "incarnation"),
)
"""Messages as stored in the stream, each once. ``incarnation`` distinguishes streams with the same name:
creation time and number of detected restores. The key of a row is (stream, incarnation, seq)."""

SILVER = TableSchema(
    name="silver",
    schema=pa.schema(
        [
            ("message_id", pa.string()),
            ("event_type", pa.string()),
            ("event_version", pa.int32()),
            ("subject", pa.string()),
            ("source", pa.string()),
            ("aggregate", pa.string()),
            ("occurred_at", _MOMENT),
            ("published_at", _MOMENT),
            ("correlation_id", pa.string()),
            ("causation_id", pa.string()),
            ("partition_key", pa.string()),
            ("payload", pa.string()),
            ("bytes", pa.int64()),
            ("stream", pa.string()),
            ("incarnation", pa.string()),
            ("seq", pa.int64()),
            ("context", pa.string()),
            ("date", pa.date32()),
        ]
    ),
    partition_by=("context", "date"),
    ranged=("message_id", "published_at", "stream", "incarnation", "seq"),
)
"""One row per message ID: its first copy. ``published_at`` is the time of storage in the stream, ``date`` its
day, and ``bytes`` the body's size. ``payload`` is null if the body is not UTF-8, ``context`` if the subject
is not an event's."""

IDS = TableSchema(
    name="ids",
    schema=pa.schema(
        [
            ("high", pa.int64()),
            ("low", pa.int64()),
            ("watermark", pa.string()),
            ("seq", pa.int64()),
            ("published_at", _MOMENT),
        ]
    ),
    partition_by=(),
    ranged=("high", "published_at"),
    sort_by=("high", "low"),
)
"""Index of the message IDs in silver. ``high`` and ``low`` are the bits of a UUID, or of another ID's hash. A
row counts if silver's watermark of the name ``watermark`` has reached ``seq``."""

GOLD = TableSchema(
    name="gold",
    schema=pa.schema(
        [
            ("event_type", pa.string()),
            ("minute", _MOMENT),
            ("events", pa.int64()),
            ("late", pa.int64()),
            ("bytes", pa.int64()),
            ("p50_seconds", pa.float64()),
            ("p95_seconds", pa.float64()),
            ("p99_seconds", pa.float64()),
            ("context", pa.string()),
            ("date", pa.date32()),
        ]
    ),
    partition_by=("context", "date"),
    ranged=("minute",),
)
"""Per context, event type and minute of ``published_at``; percentiles of ``published_at - occurred_at``."""

ARCHIVE = TableSchema(
    name="archive",
    schema=pa.schema(
        [
            ("id", pa.string()),
            ("aggregate_type", pa.string()),
            ("aggregate_id", pa.string()),
            ("event_type", pa.string()),
            ("event_version", pa.int32()),
            ("payload", pa.string()),
            ("occurred_at", _MOMENT),
            ("correlation_id", pa.string()),
            ("causation_id", pa.string()),
            ("seq", pa.int64()),
            ("created_at", _MOMENT),
            ("partition_key", pa.string()),
            ("ordering_key", pa.string()),
            ("headers", pa.string()),
            ("metadata", pa.string()),
            ("available_at", _MOMENT),
            ("publish_attempts", pa.int32()),
            ("failures", pa.int32()),
            ("first_attempt_at", _MOMENT),
            ("stream", pa.string()),
            ("stream_seq", pa.int64()),
            ("published_at", _MOMENT),
            ("publish_error", pa.string()),
            ("batch", pa.int64()),
            ("context", pa.string()),
            ("date", pa.date32()),
        ]
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

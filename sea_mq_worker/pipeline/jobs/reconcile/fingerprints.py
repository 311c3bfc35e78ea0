"""Fingerprints that represent rows and messages in comparisons, so that Spark never shuffles payloads.

``content`` equals the inbox's content_hash: SHA-256 of subject and body. ``header_hash`` is SHA-256 of the
headers that the row determines. It excludes the broker's headers (``nats-*``), trace headers, which differ
between attempts, and ``ce-source``, which is a setting and not part of the row.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.domain.errors import InvalidEventError
from sea_mq_worker.domain.events import ClaimedEvent
from sea_mq_worker.domain.headers import MSG_ID, outbound_message
from sea_mq_worker.domain.inbound import storage_id
from sea_mq_worker.domain.messages import InboundMessage

CONTENT_COLUMNS = (
    *("id", "seq", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "partition_key", "ordering_key", "headers", "metadata"),
)
"""Columns of a row that determine its message."""

PASSED_COLUMNS = ("created_at", "published_at", "stream", "stream_seq", "state")
"""Columns of a row that are compared unchanged."""

EVENT_DDL = (
    "id string, seq bigint, ordering_key string, event_type string, correlation_id string, "
    "occurred_at timestamp, created_at timestamp, published_at timestamp, stream string, stream_seq bigint, "
    "state string, sent_as string, content binary, header_hash binary"
)
"""A row in the comparison. ``sent_as`` is its subject, null with both hashes if the row makes no message."""

_MOMENT = pa.timestamp("us", tz="UTC")
_EVENTS = pa.schema(
    [
        *((name, pa.string()) for name in ("id",)),
        ("seq", pa.int64()),
        *((name, pa.string()) for name in ("ordering_key", "event_type", "correlation_id")),
        *((name, _MOMENT) for name in ("occurred_at", "created_at", "published_at")),
        ("stream", pa.string()),
        ("stream_seq", pa.int64()),
        *((name, pa.string()) for name in ("state", "sent_as")),
        *((name, pa.binary()) for name in ("content", "header_hash")),
    ]
)
_UNMARKED = ("traceparent", "tracestate", "ce-source")
_BROKER = "nats-"
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class EventFingerprints:
    """Encodes each row as the message that the worker would send; for ``DataFrame.mapInArrow``."""

    context: str
    source: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with the schema ``EVENT_DDL``."""
        for batch in batches:
            yield pa.RecordBatch.from_pylist([self._print(row) for row in batch.to_pylist()], schema=_EVENTS)

    def _print(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            message = outbound_message(_event(row), context=self.context, source=self.source)
        except InvalidEventError:
            return row
        content = hashlib.sha256(message.subject.encode() + b"\0" + message.payload)
        return row | {
            "sent_as": message.subject,
            "content": content.digest(),
            "header_hash": header_hash(message.headers),
        }


def event_fingerprints(rows: DataFrame, *, context: str, source: str) -> DataFrame:
    """Fingerprint outbox or archive rows with the columns ``CONTENT_COLUMNS`` and ``PASSED_COLUMNS``."""
    return rows.select(*CONTENT_COLUMNS, *PASSED_COLUMNS).mapInArrow(
        EventFingerprints(context, source), EVENT_DDL
    )


def header_hash(headers: Mapping[str, str]) -> bytes:
    """Hash headers, sorted by lower-case name."""
    lines = sorted(f"{name.lower()}:{value}" for name, value in headers.items() if _is_hashed(name.lower()))
    return hashlib.sha256("\n".join(lines).encode()).digest()


def message_fingerprints(messages: DataFrame, *more: str) -> DataFrame:
    """Fingerprint messages; ``id`` is null for messages without a valid ID. Columns ``more`` are kept."""
    lines = F.transform(
        F.filter("headers", lambda header: _hashed(F.lower(header["key"]))),
        lambda header: F.concat(F.lower(header["key"]), F.lit(":"), header["value"]),
    )
    id_ = F.lower(F.coalesce(_header(MSG_ID), _header("ce-id")))
    body = F.coalesce("data", F.lit(b""))
    return messages.select(
        F.when(id_.rlike(_UUID), id_).alias("id"),
        "seq",
        "time",
        "subject",
        F.unhex(F.sha2(F.concat(F.encode("subject", "UTF-8"), F.lit(b"\0"), body), 256)).alias("content"),
        F.unhex(F.sha2(F.array_join(F.array_sort(lines), "\n"), 256)).alias("header_hash"),
        *more,
    )


@dataclass(frozen=True, slots=True)
class StorageIds:
    """Gives messages without a valid ID the same ID as the inbox, derived from their stream sequence."""

    stream: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows with an ID."""
        for batch in batches:
            rows = [row | {"id": storage_id(self._message(row))} for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, schema=batch.schema)

    def _message(self, row: dict[str, Any]) -> InboundMessage:
        return InboundMessage(
            stream=self.stream,
            seq=row["seq"],
            consumer="",
            subject=row["subject"],
            payload=b"",
            headers={},
            stored_at=row["time"],
            deliveries=0,
            reply="",
        )


def named(fingerprints: DataFrame, *, stream: str) -> DataFrame:
    """Give every message an ID; this reads ``fingerprints``, and twice if a message has no ID."""
    without = fingerprints.where(F.col("id").isNull())
    if without.isEmpty():
        return fingerprints
    nameless = without.mapInArrow(StorageIds(stream), fingerprints.schema)
    return fingerprints.where(F.col("id").isNotNull()).unionByName(nameless)


def _event(row: dict[str, Any]) -> ClaimedEvent:
    return ClaimedEvent(
        id=row["id"],
        seq=row["seq"],
        aggregate_type=row["aggregate_type"],
        aggregate_id=row["aggregate_id"],
        event_type=row["event_type"],
        event_version=row["event_version"],
        payload=row["payload"].encode(),
        occurred_at=row["occurred_at"],
        correlation_id=row["correlation_id"] or "",
        causation_id=row["causation_id"] or "",
        partition_key=row["partition_key"] or "",
        headers=row["headers"] or "",
        metadata=row["metadata"] or "",
        attempts=0,
        failures=0,
        age_seconds=0.0,
        attempted_seconds_ago=0.0,
    )


def _header(name: str) -> Column:
    """Return a header's value; of repeated headers the last one counts, as in the worker."""
    found = F.filter("headers", lambda header: F.lower(header["key"]) == name.lower())
    return F.try_element_at(found, F.lit(-1))["value"]


def _is_hashed(name: str) -> bool:
    return not name.startswith(_BROKER) and name not in _UNMARKED


def _hashed(name: Column) -> Column:
    return ~name.startswith(_BROKER) & ~name.isin(*_UNMARKED)

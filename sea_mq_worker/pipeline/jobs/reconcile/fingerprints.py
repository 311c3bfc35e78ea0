"""Fingerprints that represent rows and messages in comparisons, so that Spark never shuffles payloads.

``content`` equals the inbox's content_hash: SHA-256 of subject and body. ``header_hash`` is SHA-256 of the
headers that the row determines. It excludes the broker's headers (``nats-*``), trace headers, which differ
between attempts, and ``ce-source``, which is a setting and not part of the row.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.domain.errors import InvalidEventError
from sea_mq_worker.domain.events import ClaimedEvent
from sea_mq_worker.domain.headers import MSG_ID, outbound_message
from sea_mq_worker.domain.inbound import storage_id
from sea_mq_worker.domain.messages import InboundMessage, OutboundMessage
from sea_mq_worker.domain.subjects import event_subject

Batches: TypeAlias = Iterator[pa.RecordBatch]

PASSED_COLUMNS = (
    *("id", "seq", "ordering_key", "event_type", "correlation_id", "occurred_at", "created_at"),
    *("published_at", "stream", "stream_seq", "state"),
)
"""Columns of a row that are compared unchanged."""

_OF_MESSAGE = (
    *("id", "seq", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "partition_key", "headers", "metadata"),
)
EVENT_COLUMNS = (*PASSED_COLUMNS, *(name for name in _OF_MESSAGE if name not in PASSED_COLUMNS))
"""Columns of a row that are compared, or determine its message."""

_MOMENT = pa.timestamp("us", tz="UTC")
_HASHES = [("content", pa.binary()), ("header_hash", pa.binary())]
_TYPES = {"seq": pa.int64(), "stream_seq": pa.int64()} | dict.fromkeys(
    ("occurred_at", "created_at", "published_at"), _MOMENT
)
EVENTS = pa.schema(
    [*((name, _TYPES.get(name, pa.string())) for name in PASSED_COLUMNS), ("sent_as", pa.string()), *_HASHES]
)
"""A row in the comparison. ``sent_as`` is its subject, null with both hashes if the row makes no message."""

MESSAGES = pa.schema(
    [("id", pa.string()), ("seq", pa.int64()), ("time", _MOMENT), ("subject", pa.string()), *_HASHES]
)
"""A message in the comparison. A message without a valid ID has the ID under which the inbox records it."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_BROKER = "nats-"
_UNMARKED = pa.array(["traceparent", "tracestate", "ce-source"])
_TEXTS = ("aggregate_type", "aggregate_id", "event_type", "partition_key")
_PLAIN = "^[!#$&-~]*$"
"""Text that the worker sends as it is, in a header: visible ASCII without quotation mark and per cent."""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class MessageFingerprints:
    """Represents each message of a stream; for ``DataFrame.mapInArrow``."""

    stream: str

    def __call__(self, batches: Batches) -> Batches:
        """Yield rows with the schema ``MESSAGES``."""
        for batch in batches:
            columns = [batch.column(name) for name in ("seq", "time", "subject")]
            content = _content(batch.column("subject"), batch.column("data"))
            hashes = content, _header_hashes(batch.column("headers"))
            yield pa.RecordBatch.from_arrays([self._ids(batch), *columns, *hashes], schema=MESSAGES)

    def _ids(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the ID of each message; of repeated headers the last one counts, as in the worker."""
        rows, keys, values = _flat(batch.column("headers"))
        given: dict[int, str] = {}
        for name in ("ce-id", MSG_ID.lower()):
            has = pc.equal(keys, name)
            last = dict(zip(rows.filter(has).to_pylist(), values.filter(has).to_pylist(), strict=True))
            given |= {row: text.lower() for row, text in last.items() if text}
        return pa.array(
            [
                text if _UUID.fullmatch(text := given.get(row, "")) else self._storage_id(batch, row)
                for row in range(batch.num_rows)
            ],
            pa.string(),
        )

    def _storage_id(self, batch: pa.RecordBatch, row: int) -> str:
        seq, time = (batch.column(name)[row].as_py() for name in ("seq", "time"))
        return storage_id(
            InboundMessage(
                stream=self.stream, seq=seq, stored_at=time, consumer="", subject="", payload=b"", headers={},
                deliveries=0, reply="",
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventFingerprints:
    """Represents each row by the message that the worker sends for it; for ``DataFrame.mapInArrow``.

    Rows with own headers or with text that has to be encoded are few, so only those go through the worker's
    encoder; the headers of all others are columns of the row.
    """

    context: str
    source: str

    def __call__(self, batches: Batches) -> Batches:
        """Yield rows with the schema ``EVENTS``."""
        for batch in batches:
            simple = pc.is_null(batch.column("headers"))
            for name in _TEXTS:
                simple = pc.and_(simple, pc.match_substring_regex(batch.column(name), _PLAIN).fill_null(True))
            for rows, encode in (
                (batch.filter(simple), self._of_columns),
                (batch.filter(pc.invert(simple)), self._one_by_one),
            ):
                columns = [rows.column(name).cast(EVENTS.field(name).type) for name in PASSED_COLUMNS]
                yield pa.RecordBatch.from_arrays([*columns, *encode(rows)], schema=EVENTS)

    def _of_columns(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        types, versions = rows.column("event_type"), rows.column("event_version")
        kinds = zip(types.to_pylist(), versions.to_pylist(), strict=True)
        subjects = pa.array([_subject(self.context, *kind) for kind in kinds], pa.string())
        key = rows.column("partition_key")
        headers = {
            "ce-causationid": rows.column("causation_id"),
            "ce-correlationid": rows.column("correlation_id"),
            "ce-eventversion": versions.cast(pa.string()),
            "ce-id": rows.column("id"),
            "ce-partitionkey": pc.if_else(pc.equal(key, ""), None, key),
            "ce-specversion": pa.repeat(pa.scalar("1.0"), rows.num_rows),
            "ce-subject": _joined("/", rows.column("aggregate_type"), rows.column("aggregate_id")),
            "ce-time": _rfc3339(rows.column("occurred_at")),
            "ce-type": types,
        }  # in the order of their names, as _header_hashes sorts lines
        lines = [_joined(":", pa.scalar(name), values) for name, values in headers.items()]
        text = pc.binary_join_element_wise(*lines, "\n", null_handling="skip")
        return (
            subjects,
            _content(subjects, rows.column("payload")),
            _sha256(pc.if_else(subjects.is_valid(), text, None)),
        )

    def _one_by_one(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        messages = [self._message(row) for row in rows.to_pylist()]
        subjects = pa.array([sent and sent.subject for sent in messages], pa.string())
        headers = pa.array([sent and list(sent.headers.items()) for sent in messages], _HEADERS)
        return subjects, _content(subjects, rows.column("payload")), _header_hashes(headers)

    def _message(self, row: dict[str, Any]) -> OutboundMessage | None:
        given = {name: row[name] for name in _OF_MESSAGE} | {"payload": row["payload"].encode()}
        event = ClaimedEvent(**given, attempts=0, failures=0, age_seconds=0.0, attempted_seconds_ago=0.0)
        try:
            return outbound_message(event, context=self.context, source=self.source)
        except InvalidEventError:
            return None


def _flat(headers: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the row, the lower-case name and the value of each header."""
    pairs = pc.list_flatten(headers)
    return (
        pc.list_parent_indices(headers),
        pc.utf8_lower(pc.struct_field(pairs, [0])),
        pc.struct_field(pairs, [1]),
    )


def _content(subjects: pa.Array, bodies: pa.Array) -> pa.Array:
    return _sha256(_joined("\0", subjects.cast(pa.binary()), bodies.cast(pa.binary()).fill_null(b"")))


def _header_hashes(headers: pa.Array) -> pa.Array:
    """Hash the headers of each message as lines of lower-case name and value, in their order."""
    rows, names, values = _flat(headers)
    is_hashed = pc.invert(pc.or_(pc.starts_with(names, _BROKER), pc.is_in(names, _UNMARKED)))
    lines: list[list[str]] = [[] for _ in range(len(headers))]
    hashed = _joined(":", names, values).filter(is_hashed).to_pylist()
    for row, line in zip(rows.filter(is_hashed).to_pylist(), hashed, strict=True):
        lines[row].append(line)
    texts = pa.array(["\n".join(sorted(each)) for each in lines], pa.string())
    return _sha256(pc.if_else(headers.is_valid(), texts, None))


def _joined(separator: str, *columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*columns, pa.scalar(separator).cast(columns[-1].type))


def _sha256(texts: pa.Array) -> pa.Array:
    values = texts.cast(pa.binary()).to_pylist()
    return pa.array([None if each is None else hashlib.sha256(each).digest() for each in values], pa.binary())


def _rfc3339(moments: pa.Array) -> pa.Array:
    text = pc.replace_substring(moments.cast(_MOMENT).cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
    return _joined("Z", pc.replace_substring_regex(text, r"\.000000$", ""), pa.scalar(""))


@lru_cache(maxsize=1024)
def _subject(context: str, event_type: str, version: int) -> str | None:
    """Return the subject of an event; None: type and version give no valid subject."""
    try:
        return event_subject(context, event_type, version)
    except InvalidEventError:
        return None

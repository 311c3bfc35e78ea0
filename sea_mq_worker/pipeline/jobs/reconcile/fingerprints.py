"""Fingerprints that represent rows and messages in comparisons, so that no task exchanges payloads.

``content`` equals the inbox's content_hash: SHA-256 of subject and body. ``header_hash`` is SHA-256 of the
headers that the row determines. It excludes the broker's headers (``nats-*``), trace headers, which differ
between attempts, and ``ce-source``, which is a setting and not part of the row.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.inbox.message import MARKER, SCHEDULE, storage_id
from sea_mq_worker.nats.headers import EVENT_HEADERS, MSG_ID
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage
from sea_mq_worker.nats.subjects import event_subject
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.pipeline.jobs.reconcile.exchange import Batches

_MOMENT = pa.timestamp("us", tz="UTC")
_HASHES = [("content", pa.binary()), ("header_hash", pa.binary())]
_PASSED = pa.schema(
    [
        *[("id", pa.string()), ("seq", pa.int64()), ("ordering_key", pa.string()), ("state", pa.string())],
        *[("event_type", pa.string()), ("correlation_id", pa.string()), ("stream", pa.string())],
        *[("occurred_at", _MOMENT), ("created_at", _MOMENT), ("published_at", _MOMENT)],
        ("stream_seq", pa.int64()),
    ]
)
EVENTS = pa.schema([*_PASSED, ("in_table", pa.bool_()), *_HASHES])
"""A row of table or archive in the comparison; both hashes are null if the row makes no message."""

_OF_MESSAGE = (
    *("id", "seq", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "partition_key", "headers", "metadata"),
)
EVENT_COLUMNS = tuple(dict.fromkeys((*_PASSED.names, *_OF_MESSAGE)))
"""Columns of a row that are compared, or determine its message."""

MESSAGES = pa.schema(
    [
        *[("id", pa.string()), ("stream", pa.string()), ("seq", pa.int64()), ("position", pa.int64())],
        *[("time", _MOMENT), ("subject", pa.string()), *_HASHES],
    ]
)
"""A message in the comparison. A message without a valid ID has the ID under which the inbox records it."""

RECEIVED = pa.schema(
    [
        *[("id", pa.string()), ("processed_at", _MOMENT), ("dead_lettered_at", _MOMENT)],
        *[("locked_until", _MOMENT), ("content_hash", pa.binary()), ("stream_seq", pa.int64())],
    ]
)
"""A row of an inbox in the comparison."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_BROKER = "nats-"
_SERVERS = pa.array([MARKER.lower(), SCHEDULE.lower()])
_UNMARKED = pa.array(["traceparent", "tracestate", "ce-source", "ce-datacontenttype"])
_TEXT_COLUMNS = [
    each for each in EVENT_HEADERS if each.column and each.name not in {MSG_ID, "ce-time", "ce-subject"}
]
_HASHED = sorted(
    header.name
    for header in EVENT_HEADERS
    if (header.made or header.column) and header.name not in {MSG_ID, "ce-source", "ce-datacontenttype"}
)
"""In the order of their names, as ``_header_hashes`` sorts lines."""
_TEXTS = ("aggregate_type", "aggregate_id", "event_type", "partition_key")
_PLAIN = "^[!#$&-~]*$"
"""Text that the worker sends as it is, in a header: visible ASCII without quotation mark and per cent."""
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class MessageFingerprints:
    """Represents each message of a stream; ``base`` is the position of sequence 0."""

    stream: str
    base: int = 0

    def __call__(self, batches: Batches) -> Batches:
        """Yield rows with the schema ``MESSAGES``."""
        for batch in map(_without_servers, batches):
            seq, time, subject = (batch.column(name) for name in ("seq", "time", "subject"))
            hashes = _content(subject, batch.column("data")), _header_hashes(batch.column("headers"))
            place = pa.repeat(pa.scalar(self.stream), batch.num_rows), seq, pc.add(seq, self.base)
            columns = [self._ids(batch), *place, time, subject, *hashes]
            yield pa.RecordBatch.from_arrays(columns, schema=MESSAGES)

    def _ids(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the ID of each message; of repeated headers the last one counts, as in the worker."""
        rows, names, values = _flat(batch.column("headers"))
        ids = pa.nulls(batch.num_rows, pa.string())
        for name in (MSG_ID.lower(), "ce-id"):
            has = pc.equal(names, name)
            last = np.full(batch.num_rows, -1)
            last[rows.filter(has).to_numpy()] = np.flatnonzero(has)
            given = values.take(pa.array(last, mask=last < 0))
            ids = pc.coalesce(ids, pc.if_else(pc.equal(given, ""), None, pc.utf8_lower(given)))
        is_valid = pc.match_substring_regex(ids, _UUID).fill_null(False)
        if pc.all(is_valid, min_count=0).as_py():
            return ids
        return pa.array(
            [
                text if valid else self._storage_id(batch, row)
                for row, (text, valid) in enumerate(zip(ids.to_pylist(), is_valid.to_pylist(), strict=True))
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
    in_table: bool

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
                columns = [rows.column(field.name).cast(field.type) for field in _PASSED]
                columns.append(pa.repeat(pa.scalar(self.in_table), rows.num_rows))
                yield pa.RecordBatch.from_arrays([*columns, *encode(rows)], schema=EVENTS)

    def _of_columns(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        types, versions = rows.column("event_type"), rows.column("event_version")
        kinds = zip(types.to_pylist(), versions.to_pylist(), strict=True)
        subjects = pa.array([_subject(self.context, *kind) for kind in kinds], pa.string())
        made = {
            "ce-eventversion": versions.cast(pa.string()),
            "ce-specversion": pa.repeat(pa.scalar("1.0"), rows.num_rows),
            "ce-subject": _joined("/", rows.column("aggregate_type"), rows.column("aggregate_id")),
            "ce-time": _rfc3339(rows.column("occurred_at")),
            "ce-type": types,
        }
        for header in _TEXT_COLUMNS:
            values = rows.column(header.column)
            made[header.name] = pc.if_else(pc.equal(values, ""), None, values)
        lines = [_joined(":", pa.scalar(name), made[name]) for name in _HASHED]
        text = pc.binary_join_element_wise(*lines, "\n", null_handling="skip")
        hashes = _sha256(pc.if_else(subjects.is_valid(), text, None))
        return _content(subjects, rows.column("payload")), hashes

    def _one_by_one(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        messages = [self._message(row) for row in rows.to_pylist()]
        subjects = pa.array([sent and sent.subject for sent in messages], pa.string())
        headers = pa.array([sent and list(sent.headers.items()) for sent in messages], _HEADERS)
        return _content(subjects, rows.column("payload")), _header_hashes(headers)

    def _message(self, row: dict[str, Any]) -> OutboundMessage | None:
        given = {name: row[name] for name in _OF_MESSAGE} | {"payload": row["payload"].encode()}
        event = OutboxEvent(**given, attempts=0, failures=0, age_seconds=0.0, attempted_seconds_ago=0.0)
        try:
            return outbound_message(event, context=self.context, source=self.source)
        except InvalidEventError:
            return None


def received(batches: Batches) -> Batches:
    """Yield rows of an inbox with the schema ``RECEIVED``."""
    for batch in batches:
        yield batch.rename_columns(RECEIVED.names).cast(RECEIVED)


def _without_servers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out messages that carry no event: the server's delete markers, and schedules."""
    rows, names, _ = _flat(batch.column("headers"))
    of_server = rows.filter(pc.is_in(names, _SERVERS)).to_numpy()
    if not len(of_server):
        return batch
    keep = np.full(batch.num_rows, fill_value=True)
    keep[of_server] = False
    return batch.filter(pa.array(keep))


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
    """Hash the headers of each message as lines of lower-case name and value, sorted by name."""
    flat = _flat(headers)
    is_hashed = pc.invert(pc.or_(pc.starts_with(flat[1], _BROKER), pc.is_in(flat[1], _UNMARKED)))
    rows, names, values = (column.filter(is_hashed) for column in flat)
    encoded = names.dictionary_encode()
    rank = np.argsort(np.argsort(encoded.dictionary.to_numpy(zero_copy_only=False)))
    order = np.lexsort((rank[encoded.indices], rows))
    ends = np.cumsum(np.bincount(rows, minlength=len(headers)))
    lines = pa.ListArray.from_arrays(
        pa.array(np.append(0, ends), pa.int32()), _joined(":", names, values).take(pa.array(order))
    )
    return _sha256(pc.if_else(headers.is_valid(), pc.binary_join(lines, "\n"), None))


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

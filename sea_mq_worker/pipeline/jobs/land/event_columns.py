"""Columns of bronze and silver, computed from whole Arrow batches.

The ID of a message is Nats-Msg-Id, else ce-id, else derived from the place and time of storage, which a
restore preserves. Names of headers are case-insensitive, and the first of repeated headers counts.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.pipeline.lake.schemas import BRONZE, SILVER

UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"

_SUBJECT = r"^(?P<context>[a-z0-9][a-z0-9_-]*)\.event\.(?P<type>.+)\.v(?P<version>[1-9][0-9]{0,9})$"
_MOMENT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_BAD_ENCODING = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INT_MAX = 2**31 - 1
_TEXT = pa.string()
_NO_TEXT = pa.scalar(None, _TEXT)
_TIME = SILVER.schema.field("occurred_at").type
_FIRST, _LAST = (pa.scalar(moment.replace(tzinfo=UTC), _TIME) for moment in (datetime.min, datetime.max))  # noqa: DTZ901


def to_bronze(messages: pa.RecordBatch, incarnation: str) -> pa.RecordBatch:
    """Return messages of the source ``jetstream`` as rows of bronze."""
    added = {
        "incarnation": pa.repeat(pa.scalar(incarnation), messages.num_rows),
        "date": messages.column("time").cast(pa.timestamp("us")).cast(pa.date32(), safe=False),
    }
    columns = [added[name] if name in added else messages.column(name) for name in BRONZE.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=BRONZE.schema.names)


def to_silver(bronze: pa.RecordBatch) -> pa.RecordBatch:
    """Return typed columns, one row per message, also for repeated IDs.

    A percent-encoded attribute is decoded if its encoding is valid. A time is null unless it is RFC 3339 and
    within the years 1 to 9999, a version unless it fits 32 bits, and a payload unless it is UTF-8.
    """
    headers = _Headers(bronze.column("headers"))
    subjects = bronze.column("subject").dictionary_encode()
    parts = pc.extract_regex(subjects.dictionary, _SUBJECT)
    context, kind, version = (pc.struct_field(parts, [part]).take(subjects.indices) for part in range(3))
    columns = {
        "message_id": _message_ids(bronze, headers),
        "event_type": pc.coalesce(kind, headers.attribute("type")),
        "event_version": pc.coalesce(_numbers(version), _numbers(headers.attribute("eventversion"))),
        "source": headers.attribute("source"),
        "aggregate": headers.attribute("subject"),
        "occurred_at": _moments(headers.attribute("time")),
        "published_at": bronze.column("time"),
        "correlation_id": headers.attribute("correlationid"),
        "causation_id": headers.attribute("causationid"),
        "partition_key": headers.attribute("partitionkey"),
        "payload": _cast(bronze.column("data"), _TEXT, bytes.decode),
        "bytes": pc.binary_length(bronze.column("data")).cast(pa.int64()),
        "context": context,
    }
    names = SILVER.schema.names
    return pa.RecordBatch.from_arrays(
        [columns[name] if name in columns else bronze.column(name) for name in names], names=names
    )


class _Headers:
    """Header values by name, for all messages at once."""

    def __init__(self, headers: pa.ListArray) -> None:
        pairs = pc.list_flatten(headers)
        self._count = len(headers)
        self._rows = np.repeat(np.arange(self._count), pc.list_value_length(headers).to_numpy())
        self._names = pc.ascii_lower(pc.struct_field(pairs, [0]))
        self._values = pc.struct_field(pairs, [1])

    def first(self, name: str) -> pa.Array:
        """Return the first value of each message; null: the message has no such header."""
        found = pc.equal(self._names, name)
        rows, places = np.unique(self._rows[found.to_numpy(zero_copy_only=False)], return_index=True)
        place = np.full(self._count, -1)
        place[rows] = places
        return self._values.filter(found).take(pa.array(place, mask=place < 0))

    def attribute(self, name: str) -> pa.Array:
        """Return the first value of a CloudEvents attribute, decoded."""
        values = self.first(f"ce-{name}")
        encoded = pc.fill_null(pc.match_substring(values, "%"), fill_value=False)
        if not pc.any(encoded, min_count=0).as_py():
            return values
        decoded = [_decoded(value) for value in values.filter(encoded).to_pylist()]
        return pc.replace_with_mask(values, encoded, pa.array(decoded, _TEXT))


def _decoded(value: str) -> str:
    return value if _BAD_ENCODING.search(value) else unquote(value)


def _message_ids(bronze: pa.RecordBatch, headers: _Headers) -> pa.Array:
    given = pc.coalesce(_filled(headers.first("nats-msg-id")), _filled(headers.attribute("id")))
    # Normalize UUIDs in the same way as the worker.
    given = pc.if_else(pc.match_substring_regex(given, UUID), pc.ascii_lower(given), given)
    if not given.null_count:
        return given
    moment = pc.replace_substring(bronze.column("time").cast(pa.timestamp("us")).cast(_TEXT), " ", "T")
    stored = pc.binary_join_element_wise(bronze.column("stream"), bronze.column("seq").cast(_TEXT), "/")
    stored = pc.binary_join_element_wise(pc.binary_join_element_wise(stored, moment, "@"), "Z", "")
    return pc.coalesce(given, stored)


def _filled(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, ""), _NO_TEXT, values)


def _numbers(texts: pa.Array) -> pa.Array:
    """Parse whole numbers."""
    numbers = pc.if_else(pc.match_substring_regex(texts, r"^-?\d{1,10}$"), texts, _NO_TEXT).cast(pa.int64())
    fits = pc.less_equal(pc.abs(numbers), _INT_MAX)
    return pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())


def _moments(texts: pa.Array) -> pa.Array:
    """Parse RFC 3339, truncated to microseconds."""
    cut = pc.replace_substring_regex(pc.ascii_upper(texts), _BEYOND_MICROSECONDS, r"\1")
    formed = pc.if_else(pc.match_substring_regex(cut, _MOMENT), cut, _NO_TEXT)
    moments = _cast(formed, _TIME, lambda text: datetime.fromisoformat(text).astimezone(UTC))
    within = pc.and_(pc.greater_equal(moments, _FIRST), pc.less_equal(moments, _LAST))
    return pc.if_else(within, moments, pa.scalar(None, _TIME))


def _cast(values: pa.Array, kind: pa.DataType, one: Callable[[Any], object]) -> pa.Array:
    """Convert values; null: ``one`` refuses it, such as the 30th of February or bytes that are not UTF-8."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_or_none(one, value) for value in values.to_pylist()], kind)


def _or_none(one: Callable[[Any], object], value: Any) -> object:
    with suppress(ValueError, OverflowError):
        return None if value is None else one(value)
    return None

"""Convert raw messages to Arrow columns, thousands at a time; a message's headers describe its event.

Parsing each header in Python would cost more than the rest of a read.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Frame: TypeAlias = tuple[bytes, bytes, bytes, bytes]
"""Header block, body, subject and reply of a message as received. A consumer's reply tells sequence and time;
a direct get has no reply, and tells subject, sequence and time in lines after the message's own headers."""

_TEXT = pa.string()
_PAIR = pa.struct([pa.field("key", _TEXT), pa.field("value", _TEXT)])
_MOMENT = pa.timestamp("us", tz="UTC")
_EVENT = pa.schema(
    [
        ("message_id", _TEXT),
        ("event_type", _TEXT),
        ("event_version", pa.int32()),
        ("source", _TEXT),
        ("aggregate", _TEXT),
        ("occurred_at", _MOMENT),
        ("correlation_id", _TEXT),
        ("causation_id", _TEXT),
        ("partition_key", _TEXT),
        ("context", _TEXT),
    ]
)
SCHEMA = pa.schema(
    [
        ("stream", _TEXT),
        ("created", _TEXT),
        ("seq", pa.int64()),
        ("subject", _TEXT),
        ("time", _MOMENT),
        ("headers", pa.list_(pa.field("element", _PAIR))),
        ("data", pa.binary()),
        *_EVENT,
    ]
)
"""``created`` is the stream's creation time in the server's format. ``headers`` are as received: in order,
with repeated names; bytes that are not UTF-8 become escapes such as ``\\xff``.

The other columns describe the event. ``message_id`` is Nats-Msg-Id, else ce-id, else made from the place and
time of storage, which a restore preserves. Names of headers ignore case, and the last of repeated headers
counts, as for the worker. A percent-encoded attribute is decoded if its encoding is valid. A time is null
unless it is RFC 3339 and within the years 1 to 9999, a version unless it fits 32 bits."""

ADDED = b"Nats-Stream: "
"""First of the lines that the server adds after a message's own headers; no later line can contain it."""

_LINES = tuple(enumerate(map(len, ("Nats-Subject: ", "Nats-Sequence: ", "Nats-Time-Stamp: ")), 1))
_REPLY_WORDS = 9
_REPLY_SEQ_AT = 5

_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_EVENT_SUBJECT = r"^(?P<context>[a-z0-9][a-z0-9_-]*)\.event\.(?P<type>.+)\.v(?P<version>[1-9][0-9]{0,9})$"
_RFC3339 = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_BAD_ENCODING = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INT_MAX = 2**31 - 1
_FIRST, _LAST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))  # noqa: DTZ901


def to_batch(stream: str, created: str, frames: Sequence[Frame]) -> pa.RecordBatch:
    """Build the rows of a batch, in the order of ``frames``, which came in one way."""
    is_delivered = bool(frames and frames[0][3])
    owns, subjects, seqs, times = (_delivered if is_delivered else _stored)(frames)
    count = len(frames)
    columns = {
        "stream": pa.repeat(pa.scalar(stream), count),
        "created": pa.repeat(pa.scalar(created), count),
        "seq": seqs.cast(pa.int64()),
        "subject": subjects,
        "time": times.cast(pa.timestamp("ns", tz="UTC")).cast(_MOMENT, safe=False),
        "headers": _headers(pa.array([own.partition(b"\r\n")[2] for own in owns], pa.binary())),
        "data": pa.array([frame[1] for frame in frames], pa.binary()),
    }
    columns |= event_columns(columns)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _stored(frames: Sequence[Frame]) -> tuple[list[bytes], pa.Array, pa.Array, pa.Array]:
    """Split the answers to direct gets: header blocks, subjects, sequences and times."""
    parts = [frame[0].rpartition(ADDED) for frame in frames]
    added = pc.split_pattern(_text(pa.array([part[2] for part in parts], pa.binary())), "\r\n")
    told = (pc.utf8_slice_codeunits(pc.list_element(added, line), skip) for line, skip in _LINES)
    subjects, seqs, times = told
    return [part[0] for part in parts], subjects, seqs, times


def _delivered(frames: Sequence[Frame]) -> tuple[list[bytes], pa.Array, pa.Array, pa.Array]:
    """Split a consumer's deliveries as ``_stored`` does.

    A reply is ``$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQ.OWN_SEQ.NANOSECONDS.PENDING``, or has the domain and
    the account before the stream.
    """
    words = pc.split_pattern(pa.array([frame[3] for frame in frames], pa.binary()).cast(_TEXT), ".")
    at = _REPLY_SEQ_AT if len(words[0]) == _REPLY_WORDS else _REPLY_SEQ_AT + 2
    subjects = _text(pa.array([frame[2] for frame in frames], pa.binary()))
    seqs, times = pc.list_element(words, at), pc.list_element(words, at + 2)
    return [frame[0] for frame in frames], subjects, seqs, times.cast(pa.int64())


def _headers(blocks: pa.Array) -> pa.Array:
    """Split header blocks, whose lines end in CRLF; a line without a colon is a key without a value."""
    lines = pc.split_pattern(blocks, b"\r\n")
    flat = pc.list_flatten(lines)
    filled = pc.greater(pc.binary_length(flat), 0)
    pairs = pc.split_pattern(flat.filter(filled), b":", max_splits=1)
    if pc.any(pc.less(pc.list_value_length(pairs), 2)).as_py():
        pairs = pc.list_slice(pairs, 0, 2, return_fixed_size_list=True)  # adds null for the value
    keys, values = (_text(pc.fill_null(pc.list_element(pairs, at), b"")) for at in (0, 1))
    fields = pa.StructArray.from_arrays([keys, pc.ascii_trim(values, " \t")], fields=list(_PAIR))
    # Number of non-empty lines before each message's first line.
    zero = pa.array([0], pa.int32())
    counted = pa.concat_arrays([zero, pc.cumulative_sum(filled.cast(pa.int32()))])
    offsets = counted.take(pa.concat_arrays([zero, pc.cumulative_sum(pc.list_value_length(lines))]))
    return pa.ListArray.from_arrays(offsets, fields, type=SCHEMA.field("headers").type)


def _text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(_TEXT)
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="backslashreplace") for value in column.to_pylist()], _TEXT)


# --- The columns that describe the event.


def event_columns(messages: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Read the event of each message from its subject and its headers."""
    headers = _Headers(messages["headers"])
    subjects = messages["subject"].dictionary_encode()
    parts = pc.extract_regex(subjects.dictionary, _EVENT_SUBJECT)
    context, kind, version = (pc.struct_field(parts, [part]).take(subjects.indices) for part in range(3))
    return {
        "message_id": _message_ids(messages, headers),
        "event_type": pc.coalesce(kind, headers.attribute("type")),
        "event_version": pc.coalesce(_numbers(version), _numbers(headers.attribute("eventversion"))),
        "source": headers.attribute("source"),
        "aggregate": headers.attribute("subject"),
        "occurred_at": _moments(headers.attribute("time")),
        "correlation_id": headers.attribute("correlationid"),
        "causation_id": headers.attribute("causationid"),
        "partition_key": headers.attribute("partitionkey"),
        "context": context,
    }


class _Headers:
    """Header values by name, for all messages at once."""

    def __init__(self, headers: pa.ListArray) -> None:
        pairs = pc.list_flatten(headers)
        self._rows = np.repeat(np.arange(len(headers)), pc.list_value_length(headers).to_numpy())
        self._count = len(headers)
        self._names = pc.ascii_lower(pc.struct_field(pairs, [0]))
        self._values = pc.struct_field(pairs, [1])

    def last(self, name: str) -> pa.Array:
        """Return the last value of each message; null: the message has no such header."""
        found = pc.equal(self._names, name).to_numpy(zero_copy_only=False).nonzero()[0]
        place = np.full(self._count, -1)
        place[self._rows[found]] = found  # of repeated places the last is kept
        return self._values.take(pa.array(place, mask=place < 0))

    def attribute(self, name: str) -> pa.Array:
        """Return the last value of a CloudEvents attribute, decoded."""
        values = self.last(f"ce-{name}")
        encoded = pc.fill_null(pc.match_substring(values, "%"), fill_value=False)
        if not pc.any(encoded, min_count=0).as_py():
            return values
        decoded = [_decoded(value) for value in values.filter(encoded).to_pylist()]
        return pc.replace_with_mask(values, encoded, pa.array(decoded, _TEXT))


def _decoded(value: str) -> str:
    return value if _BAD_ENCODING.search(value) else unquote(value, errors="backslashreplace")


def _message_ids(messages: Mapping[str, pa.Array], headers: _Headers) -> pa.Array:
    given = pc.coalesce(_filled(headers.last("nats-msg-id")), _filled(headers.attribute("id")))
    # The worker writes UUIDs in lower case, too.
    given = pc.if_else(pc.match_substring_regex(given, _UUID), pc.ascii_lower(given), given)
    if not given.null_count:
        return given
    moment = pc.replace_substring(messages["time"].cast(pa.timestamp("us")).cast(_TEXT), " ", "T")
    stored = pc.binary_join_element_wise(messages["stream"], messages["seq"].cast(_TEXT), "/")
    stored = pc.binary_join_element_wise(pc.binary_join_element_wise(stored, moment, "@"), "Z", "")
    return pc.coalesce(given, stored)


def _filled(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, _TEXT), values)


def _numbers(texts: pa.Array) -> pa.Array:
    """Parse whole numbers."""
    matched = pc.match_substring_regex(texts, r"^-?\d{1,10}$")
    numbers = pc.if_else(matched, texts, pa.scalar(None, _TEXT)).cast(pa.int64())
    fits = pc.less_equal(pc.abs(numbers), _INT_MAX)
    return pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())


def _moments(texts: pa.Array) -> pa.Array:
    """Parse RFC 3339, truncated to microseconds."""
    cut = pc.replace_substring_regex(pc.ascii_upper(texts), _BEYOND_MICROSECONDS, r"\1")
    formed = pc.if_else(pc.match_substring_regex(cut, _RFC3339), cut, pa.scalar(None, _TEXT))
    try:
        moments = formed.cast(_MOMENT)
    except pa.ArrowInvalid:  # such as the 30th of February
        moments = pa.array(map(_moment, formed.to_pylist()), _MOMENT)
    first, last = (pa.scalar(moment, _MOMENT) for moment in (_FIRST, _LAST))  # here: it imports pandas
    within = pc.and_(pc.greater_equal(moments, first), pc.less_equal(moments, last))
    return pc.if_else(within, moments, pa.scalar(None, _MOMENT))


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError, OverflowError):
        return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
    return None

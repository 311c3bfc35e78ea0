"""Convert raw messages to Arrow columns, thousands at a time.

Parsing each header in Python would cost more than the rest of a read.
"""

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Frame: TypeAlias = tuple[bytes, bytes]
"""Header block and body of a message, as received from a direct get."""

_PAIR = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
_MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("created", pa.string()),
        ("seq", pa.int64()),
        ("subject", pa.string()),
        ("time", _MOMENT),
        ("headers", pa.list_(pa.field("element", _PAIR))),
        ("data", pa.binary()),
    ]
)
"""``created`` is the stream's creation time in the server's format. ``headers`` are as received: in order,
with repeated names; bytes that are not UTF-8 become U+FFFD."""

ADDED = b"Nats-Stream: "
"""First of the lines that the server adds after a message's own headers; no later line can contain it."""

_OWN_FROM = len(b"NATS/1.0\r\n")
_SUBJECT, _SEQ, _TIME = enumerate(map(len, ("Nats-Subject: ", "Nats-Sequence: ", "Nats-Time-Stamp: ")), 1)


def to_batch(stream: str, created: str, frames: Sequence[Frame]) -> pa.RecordBatch:
    """Build the rows of a batch, in the order of ``frames``."""
    parts = [head.rpartition(ADDED) for head, _ in frames]
    added = pc.split_pattern(_text(pa.array([part[2] for part in parts], pa.binary())), "\r\n")
    own = pa.array([part[0][_OWN_FROM:] for part in parts], pa.binary())
    count = len(frames)
    columns = [
        pa.repeat(pa.scalar(stream), count),
        pa.repeat(pa.scalar(created), count),
        _added(added, *_SEQ).cast(pa.int64()),
        _added(added, *_SUBJECT),
        moments(_added(added, *_TIME)),
        headers_of(own),
        pa.array([data for _, data in frames], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def moments(texts: pa.Array) -> pa.Array:
    """Parse RFC 3339 times, truncated to microseconds."""
    return texts.cast(pa.timestamp("ns", tz="UTC")).cast(_MOMENT, safe=False)


def headers_of(blocks: pa.Array) -> pa.Array:
    """Split header blocks, whose lines end in CRLF, into lists of key and value."""
    lines = pc.split_pattern(blocks, b"\r\n")
    lengths = pc.list_value_length(lines)
    flat = pc.list_flatten(lines)
    filled = pc.greater(pc.binary_length(flat), 0)
    pairs = pc.split_pattern(flat.filter(filled), b":", max_splits=1)
    if not pc.all(pc.equal(pc.list_value_length(pairs), 2), min_count=0).as_py():
        return _one_by_one(blocks)
    keys, values = (_text(pc.list_element(pairs, at)) for at in (0, 1))
    offsets = _offsets(lengths, filled)
    fields = pa.StructArray.from_arrays([keys, pc.ascii_trim(values, " \t")], fields=list(_PAIR))
    return pa.ListArray.from_arrays(offsets, fields, type=SCHEMA.field("headers").type)


def _added(lines: pa.Array, line: int, skip: int) -> pa.Array:
    return pc.utf8_slice_codeunits(pc.list_element(lines, line), skip)


def _offsets(lengths: pa.Array, filled: pa.Array) -> pa.Array:
    """Return the number of non-empty lines before each message's first line."""
    counted = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(filled.cast(pa.int32()))])
    ends = pc.cumulative_sum(lengths)
    return pa.concat_arrays([pa.array([0], pa.int32()), counted.take(ends)])


def _text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in column.to_pylist()], pa.string())


def _decoded(value: bytes) -> str:
    return value.decode(errors="replace")


def _one_by_one(blocks: pa.Array) -> pa.Array:
    """Parse blocks that have lines without a colon; such a line becomes a key without a value."""
    return pa.array(
        [[_pair(line) for line in block.split(b"\r\n") if line] for block in blocks.to_pylist()],
        SCHEMA.field("headers").type,
    )


def _pair(line: bytes) -> dict[str, str]:
    key, _, value = line.partition(b":")
    return {"key": _decoded(key), "value": _decoded(value).strip(" \t")}

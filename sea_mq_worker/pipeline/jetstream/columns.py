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
    count, moments = len(frames), _added(added, *_TIME).cast(pa.timestamp("ns", tz="UTC"))
    columns = [
        pa.repeat(pa.scalar(stream), count),
        pa.repeat(pa.scalar(created), count),
        _added(added, *_SEQ).cast(pa.int64()),
        _added(added, *_SUBJECT),
        moments.cast(_MOMENT, safe=False),
        _headers(pa.array([part[0][_OWN_FROM:] for part in parts], pa.binary())),
        pa.array([data for _, data in frames], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _added(lines: pa.Array, line: int, skip: int) -> pa.Array:
    return pc.utf8_slice_codeunits(pc.list_element(lines, line), skip)


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
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in column.to_pylist()], pa.string())

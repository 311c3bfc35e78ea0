"""Pass Arrow rows between Spark's tasks as few large values, so that Java handles no single row."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.dataframes import in_tasks

Batches: TypeAlias = Iterator[pa.RecordBatch]
Column: TypeAlias = NDArray[Any]

PACKED = pa.schema(
    [("bucket", pa.int32()), ("source", pa.string()), ("rows", pa.int64()), ("packed", pa.binary())]
)
"""Rows of a source in Arrow's IPC format, compressed; rows with the same key have the same bucket."""

_PACKED_ROWS = 100_000
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_TASKS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a source: a function that reads it, and one that represents its rows in the comparison.

    Attributes:
        rows: estimated number of rows.
    """

    source: str
    read: Callable[[], Iterable[pa.RecordBatch]]
    represent: Callable[[Batches], Batches]
    rows: int = 50_000


def read_parts(spark: SparkSession, parts: Sequence[Part], buckets: int) -> DataFrame:
    """Return the represented rows of all parts, packed by ``id``."""
    packed = partial(_packed, buckets)
    return in_tasks(spark, packed, parts, from_arrow_schema(PACKED), tasks_max=_TASKS_MAX)


def pack(source: str, rows: pa.Table, key: str, buckets: int) -> pa.RecordBatch:
    """Divide rows among buckets by a text column."""
    texts = rows[key].cast(pa.binary()).to_pylist()
    bucket = np.fromiter(map(zlib.crc32, texts), np.int64, len(texts)) % buckets
    order = np.argsort(bucket, kind="stable")
    numbers, starts, sizes = np.unique(bucket[order], return_index=True, return_counts=True)
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    sink, ends = pa.BufferOutputStream(), [0]
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
            writer.write_table(sorted_rows.slice(start, size))
        ends.append(sink.tell())
    places = pa.py_buffer(np.array(ends, np.int32))
    packed = pa.Array.from_buffers(pa.binary(), len(sizes), [None, places, sink.getvalue()])
    columns = [pa.array(numbers, pa.int32()), pa.repeat(source, len(sizes)), pa.array(sizes), packed]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def unpack(batches: Iterable[pa.RecordBatch]) -> dict[str, pa.Table]:
    """Return the rows of each source."""
    found = defaultdict(list)
    for batch in batches:
        for source, packed in zip(batch["source"].to_pylist(), batch["packed"], strict=True):
            found[source].append(pa.ipc.open_stream(packed.as_buffer()).read_all())
    return {source: pa.concat_tables(tables).combine_chunks() for source, tables in found.items()}


def _packed(buckets: int, part: Part) -> Batches:
    for rows in _tables(part.represent(iter(part.read()))):
        yield pack(part.source, rows, "id", buckets)


def _tables(batches: Batches) -> Iterator[pa.Table]:
    """Join batches, so that few values are exchanged."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _PACKED_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)

"""Spark tasks write a table's Parquet files; nobody sees them before the driver commits them."""

import functools
import json
import operator
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from sea_mq_worker.pipeline.lake.layouts import Layout
from sea_mq_worker.pipeline.lake.storage import filesystem

RESULT_DDL = "path string, size bigint, rows bigint, stats string, partitions map<string,string>"
_RESULT = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("stats", pa.string()),
        ("partitions", pa.map_(pa.string(), pa.string())),
    ]
)

_COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """Writes the batches of one task, a file a partition of the table; for ``DataFrame.mapInArrow``."""

    uri: str
    layout: Layout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row a file: what the table's log has to say of it."""
        store = filesystem(self.uri)
        files: dict[tuple[Any, ...], _File] = {}
        for batch in batches:
            for values, part in _split(batch, self.layout.partition_by):
                if values not in files:
                    files[values] = _File(store, self.layout, values)
                files[values].add(part)
        for file in files.values():
            yield file.close()


@dataclass(slots=True)
class _File:
    store: pafs.FileSystem
    layout: Layout
    values: tuple[Any, ...]
    rows: int = 0
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    path: str = ""
    writer: pq.ParquetWriter | None = None
    sink: Any = None

    def add(self, part: pa.Table) -> None:
        if self.writer is None:
            self._open(part.schema)
        assert self.writer is not None  # noqa: S101 - _open has set it
        self.writer.write_table(part)
        self.rows += part.num_rows
        for name in self.layout.ranged:
            self._widen(name, part.column(name))

    def close(self) -> pa.RecordBatch:
        if self.writer is not None:
            self.writer.close()
            self.sink.close()
        size = self.store.get_file_info(self.path).size
        partitions = {name: _text(value) for name, value in self._partitions().items()}
        row = {
            "path": self.path,
            "size": size,
            "rows": self.rows,
            "stats": self._stats(),
            "partitions": list(partitions.items()),
        }
        return pa.RecordBatch.from_pylist([row], schema=_RESULT)

    def _open(self, schema: pa.Schema) -> None:
        values = self._partitions().items()
        folder = "/".join(f"{name}={quote(_text(value) or '', safe='')}" for name, value in values)
        self.store.create_dir(folder, recursive=True)
        self.path = f"{folder}/part-{uuid.uuid4()}.zstd.parquet"
        self.sink = self.store.open_output_stream(self.path)
        self.writer = pq.ParquetWriter(self.sink, schema, compression=_COMPRESSION)

    def _partitions(self) -> dict[str, Any]:
        return dict(zip(self.layout.partition_by, self.values, strict=True))

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] is None:
            return
        least, most = self.ranges.get(name, (found["min"], found["max"]))
        self.ranges[name] = (min(least, found["min"]), max(most, found["max"]))

    def _stats(self) -> str:
        least = {name: _stat(low) for name, (low, _) in self.ranges.items()}
        most = {name: _stat(high, up=True) for name, (_, high) in self.ranges.items()}
        return json.dumps({"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": {}})


def _split(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Part a batch by the values of its partition columns, and drop these columns."""
    table = pa.Table.from_batches([batch])
    keys = table.select(by).group_by(list(by)).aggregate([]).to_pylist()
    for key in keys:
        part = table if len(keys) == 1 else table.filter(_matches(key))
        yield tuple(key[name] for name in by), part.drop_columns(list(by))


def _matches(key: dict[str, Any]) -> pc.Expression:
    return functools.reduce(operator.and_, (pc.field(name) == value for name, value in key.items()))


def _text(value: Any) -> str | None:
    return value.isoformat() if isinstance(value, date) else value


def _stat(value: Any, *, up: bool = False) -> Any:
    """Write a bound as the Delta log does: moments in milliseconds, rounded away from what they bound."""
    if not isinstance(value, datetime):
        return value
    moment = value + timedelta(microseconds=999) if up else value
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

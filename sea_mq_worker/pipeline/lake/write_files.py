"""Write a table's Parquet files in Spark tasks; readers see them only after the driver's commit."""

import json
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

from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, make_durable, reachable

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Folder name that represents null."""

FILE_BYTES_MAX = 128 * 2**20
"""A file of at least this size is closed, and the next one begun."""

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
_GROUP_BYTES = 16 * 2**20
_GROUP_ROWS = 100_000
_OPEN_MAX = 16
_TEXT_MAX = 128


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """Writes the batches of one task, for ``DataFrame.mapInArrow``; a file holds rows of one partition.

    Memory is bounded for any number of partitions and rows: at most ``_OPEN_MAX`` files are open, the least
    recently written one is closed for the next, and each buffers at most one row group.
    """

    uri: str
    table_schema: TableSchema
    file_bytes: int = FILE_BYTES_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per file: its entry for the table's log."""
        store = filesystem(self.uri)
        files: dict[tuple[Any, ...], _File] = {}
        for batch in batches:
            for values, part in _split(batch, self.table_schema):
                file = files.pop(values, None) or _File.begun(self.uri, store, self.table_schema, values)
                file.add(part)
                if file.written >= self.file_bytes:
                    yield file.close()
                    continue
                files[values] = file
                if len(files) > _OPEN_MAX:
                    yield files.pop(next(iter(files))).close()
        for file in files.values():
            yield file.close()


@dataclass(slots=True)
class _File:
    uri: str
    path: str
    store: pafs.FileSystem
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    table_schema: TableSchema
    partitions: dict[str, str | None]
    rows: int = 0
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    waiting: list[pa.Table] = field(default_factory=list)

    @classmethod
    def begun(
        cls, uri: str, store: pafs.FileSystem, table_schema: TableSchema, values: tuple[Any, ...]
    ) -> "_File":
        partitions = {
            name: _text(value) for name, value in zip(table_schema.partition_by, values, strict=True)
        }
        folder = "/".join(f"{name}={_folder(value)}" for name, value in partitions.items())
        store.create_dir(folder, recursive=True)
        path = f"{folder}/part-{uuid.uuid4()}.zstd.parquet"
        sink = store.open_output_stream(path)
        writer = pq.ParquetWriter(sink, table_schema.file_schema, compression=_COMPRESSION)
        return cls(uri, path, store, sink, writer, table_schema, partitions)

    @property
    def written(self) -> int:
        return int(self.sink.tell())

    def add(self, part: pa.Table) -> None:
        self.rows += part.num_rows
        for name in self.table_schema.ranged:
            self._widen(name, part.column(name))
        self.waiting.append(part)
        if (
            sum(table.nbytes for table in self.waiting) >= _GROUP_BYTES
            or sum(table.num_rows for table in self.waiting) >= _GROUP_ROWS
        ):
            self._flush()

    def close(self) -> pa.RecordBatch:
        self._flush()
        with reachable(self.uri):
            self.writer.close()
            size = self.written
            self.sink.close()
            make_durable(self.uri, self.path)
        row = {
            "path": self.path,
            "size": size,
            "rows": self.rows,
            "stats": self._stats(),
            "partitions": list(self.partitions.items()),
        }
        return pa.RecordBatch.from_pylist([row], schema=_RESULT)

    def _flush(self) -> None:
        if self.waiting:
            with reachable(self.uri):
                self.writer.write_table(pa.concat_tables(self.waiting))
            self.waiting = []

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        self.nulls[name] = self.nulls.get(name, 0) + column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is None:
            return
        least, most = self.ranges.get(name, (found["min"], found["max"]))
        self.ranges[name] = (min(least, found["min"]), max(most, found["max"]))

    def _stats(self) -> str:
        ranges = {name: ends for name, ends in self.ranges.items() if not any(map(_is_long, ends))}
        stats = {
            "numRecords": self.rows,
            "minValues": {name: _stat(least) for name, (least, _) in ranges.items()},
            "maxValues": {name: _stat(most, up=True) for name, (_, most) in ranges.items()},
            "nullCount": self.nulls,
        }
        return json.dumps(stats)


def _split(batch: pa.RecordBatch, table_schema: TableSchema) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Split a batch by the values of its partition columns, and drop these columns."""
    table = pa.Table.from_batches([batch]).cast(table_schema.schema)
    by = list(table_schema.partition_by)
    keys = table.select(by).group_by(by).aggregate([]).to_pylist()
    for key in keys:
        part = table if len(keys) == 1 else table.filter(_matches(key))
        yield tuple(key[name] for name in by), part.drop_columns(by)


def _matches(key: dict[str, Any]) -> pc.Expression:
    found = pc.scalar(True)
    for name, value in key.items():
        found &= pc.field(name).is_null() if value is None else pc.field(name) == pc.scalar(value)
    return found


def _text(value: Any) -> str | None:
    """Format a partition's value as in the Delta log, which makes no difference between empty and null."""
    if value is None or value == "":
        return None
    return value.isoformat() if isinstance(value, date) else str(value)


def _folder(value: str | None) -> str:
    return NULL_FOLDER if value is None else quote(value, safe="")


def _is_long(value: Any) -> bool:
    """Return whether a bound is too long for the log; queries always read a file without bounds."""
    return isinstance(value, str) and len(value) > _TEXT_MAX


def _stat(value: Any, *, up: bool = False) -> Any:
    """Format a bound as in the Delta log: times in milliseconds, rounded outwards."""
    if not isinstance(value, datetime):
        return value
    moment = value + timedelta(microseconds=999) if up else value
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

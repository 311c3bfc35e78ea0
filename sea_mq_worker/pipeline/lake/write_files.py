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

ENTRIES = pa.schema(
    [(name, pa.string()) for name in ("table", "path", "stats", "partitions")]
    + [(name, pa.int64()) for name in ("size", "rows")]
)
"""Columns of the entries for a table's log, one per file; ``stats`` and ``partitions`` are JSON."""

_COMPRESSION = "zstd"
_GROUP_BYTES = 16 * 2**20
_GROUP_ROWS = 100_000
_SEARCHED_ROWS = 4096
"""Size of a sorted file's row groups, of which a search for an ID reads one."""

_OPEN_MAX = 16
_TEXT_MAX = 128


class TableWriter:
    """Writes batches into files; a file holds rows of one partition.

    Memory is bounded for any number of partitions and rows: at most ``_OPEN_MAX`` files are open, the least
    recently written one is closed for the next, and each buffers at most one row group.
    """

    def __init__(self, uri: str, table_schema: TableSchema, file_bytes: int = FILE_BYTES_MAX) -> None:
        self._uri, self._table_schema, self._file_bytes = uri, table_schema, file_bytes
        self._store = filesystem(uri)
        self._files: dict[tuple[Any, ...], _File] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Write a batch; yield the entries of files that this has completed."""
        for values, part in _split(batch, self._table_schema):
            file = self._files.pop(values, None)
            file = file or _File.begun(self._uri, self._store, self._table_schema, values)
            file.add(part)
            if file.written >= self._file_bytes:
                yield file.close()
                continue
            self._files[values] = file
            if len(self._files) > _OPEN_MAX:
                yield self._files.pop(next(iter(self._files))).close()

    def close(self) -> Iterator[pa.RecordBatch]:
        """Complete all files; yield their entries."""
        while self._files:
            yield self._files.popitem()[1].close()


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """Writes the batches of one task, for ``DataFrame.mapInArrow``."""

    uri: str
    table_schema: TableSchema
    file_bytes: int = FILE_BYTES_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file."""
        writer = TableWriter(self.uri, self.table_schema, self.file_bytes)
        for batch in batches:
            yield from writer.add(batch)
        yield from writer.close()


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
        folders = [f"{name}={_folder(value)}" for name, value in partitions.items()]
        if folders:
            store.create_dir("/".join(folders), recursive=True)
        path = "/".join([*folders, f"part-{uuid.uuid4()}.zstd.parquet"])
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
            "table": self.table_schema.name,
            "path": self.path,
            "stats": self._stats(),
            "partitions": json.dumps(self.partitions),
            "size": size,
            "rows": self.rows,
        }
        return pa.RecordBatch.from_pylist([row], schema=ENTRIES)

    def _flush(self) -> None:
        if self.waiting:
            rows, by = pa.concat_tables(self.waiting), self.table_schema.sort_by
            ordered = rows.sort_by([(name, "ascending") for name in by]) if by else rows
            with reachable(self.uri):
                self.writer.write_table(ordered, row_group_size=_SEARCHED_ROWS if by else None)
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

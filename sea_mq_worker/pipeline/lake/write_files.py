"""Write a table's Parquet files in Spark tasks; readers see them only after the driver's commit."""

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import accumulate
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, make_durable, reachable, table_uri

FILE_BYTES_MAX = 128 * 2**20
"""A file of at least this size is closed, and the next one begun."""

ENTRIES = pa.schema(
    [(name, pa.string()) for name in ("table", "path", "stats", "partitions")]
    + [(name, pa.int64()) for name in ("size", "rows")]
)
"""Columns of the entries for a table's log, one per file; ``stats`` and ``partitions`` are JSON."""

_SMALL_BYTES = FILE_BYTES_MAX // 2
_COMPRESSION = "zstd"
_GROUP_BYTES = 16 * 2**20
_GROUP_ROWS = 100_000
_SEARCHED_ROWS = 4096
"""Size of a sorted file's row groups, of which a search for an ID reads one."""

_OPEN_MAX = 16

TableRows: TypeAlias = tuple[TableSchema, pa.RecordBatch]
"""Rows of a table."""


def write_files(
    lake: str, rows: Iterable[TableRows], *, file_bytes: int = FILE_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Write rows of one or more tables into files, each with rows of one partition; yield each file's entry.

    Memory is bounded for any number of partitions and rows: at most ``_OPEN_MAX`` files of a table are open,
    the least recently written one is closed for the next, and each buffers at most one row group.
    """
    tables: dict[str, tuple[pafs.FileSystem, dict[tuple[Any, ...], _File]]] = {}
    for table_schema, batch in rows:
        uri = table_uri(lake, table_schema.name)
        if uri not in tables:
            tables[uri] = filesystem(uri), {}
        store, files = tables[uri]
        for values, part in _split(batch, table_schema):
            file = files.pop(values, None) or _File(uri, store, table_schema, values)
            file.add(part)
            if file.written >= file_bytes:
                yield file.close()
                continue
            files[values] = file
            if len(files) > _OPEN_MAX:
                yield files.pop(next(iter(files))).close()
    for _, files in tables.values():
        yield from (file.close() for file in files.values())


def groups_to_merge(
    files: Iterable[Mapping[str, Any]], files_max: int
) -> Mapping[tuple[tuple[Any, ...], int], list[str]]:
    """Group the paths of small files by partition and number, where a partition has more than ``files_max``.

    A group becomes a file of a good size; it is sorted in memory, where all files would not fit.
    """
    partitions, groups = defaultdict[tuple[Any, ...], list[Mapping[str, Any]]](list), defaultdict(list)
    for file in files:
        if file["size_bytes"] < _SMALL_BYTES:
            partition = tuple(value for name, value in file.items() if name.startswith("partition."))
            partitions[partition].append(file)
    for partition, small in partitions.items():
        begins = accumulate((file["size_bytes"] for file in small), initial=0)
        for begin, file in zip(begins, small if len(small) > files_max else (), strict=False):
            groups[partition, begin // _SMALL_BYTES].append(file["path"])
    return groups


class _File:
    def __init__(
        self, uri: str, store: pafs.FileSystem, table_schema: TableSchema, values: Sequence[Any]
    ) -> None:
        self._uri, self._table_schema = uri, table_schema
        self._partitions = dict(zip(table_schema.partition_by, map(_text, values), strict=True))
        folder = "".join(f"{name}={_folder(text)}/" for name, text in self._partitions.items())
        self._path = f"{folder}part-{uuid.uuid4()}.zstd.parquet"
        with reachable(uri):
            if folder:
                store.create_dir(folder.rstrip("/"), recursive=True)
            self._sink = store.open_output_stream(self._path)
            self._writer = pq.ParquetWriter(self._sink, table_schema.file_schema, compression=_COMPRESSION)
        self._rows = 0
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._nulls = dict.fromkeys(table_schema.ranged, 0)
        self._waiting = table_schema.file_schema.empty_table()

    @property
    def written(self) -> int:
        return int(self._sink.tell())

    def add(self, part: pa.Table) -> None:
        self._rows += part.num_rows
        for name in self._table_schema.ranged:
            self._widen(name, part.column(name))
        self._waiting = pa.concat_tables([self._waiting, part])
        if self._waiting.nbytes >= _GROUP_BYTES or self._waiting.num_rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> pa.RecordBatch:
        self._flush()
        with reachable(self._uri):
            self._writer.close()
            size = self.written
            self._sink.close()
            make_durable(self._uri, self._path)
        row = {
            "table": self._table_schema.name,
            "path": self._path,
            "stats": self._stats(),
            "partitions": json.dumps(self._partitions),
            "size": size,
            "rows": self._rows,
        }
        return pa.RecordBatch.from_pylist([row], schema=ENTRIES)

    def _flush(self) -> None:
        rows, by = self._waiting, self._table_schema.sort_by
        if rows.num_rows:
            ordered = rows.sort_by([(name, "ascending") for name in by]) if by else rows
            with reachable(self._uri):
                self._writer.write_table(ordered, row_group_size=_SEARCHED_ROWS if by else None)
            self._waiting = rows.schema.empty_table()

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        self._nulls[name] += column.null_count
        ends = [*pc.min_max(column).as_py().values(), *self._ranges.get(name, ())]
        if known := [end for end in ends if end is not None]:
            self._ranges[name] = min(known), max(known)

    def _stats(self) -> str:
        stats = {
            "numRecords": self._rows,
            "minValues": {name: _stat(least) for name, (least, _) in self._ranges.items()},
            "maxValues": {name: _stat(most) for name, (_, most) in self._ranges.items()},
            "nullCount": self._nulls,
        }
        return json.dumps(stats)


def _split(batch: pa.RecordBatch, table_schema: TableSchema) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Split a batch by the values of its partition columns, and drop these columns."""
    table = pa.Table.from_batches([batch]).cast(table_schema.schema)
    by = list(table_schema.partition_by)
    keys = table.select(by).group_by(by).aggregate([]).to_pylist()
    for key in keys:
        part = table
        for name, value in key.items() if len(keys) > 1 else ():
            is_null = pc.field(name).is_null()
            part = part.filter(is_null if value is None else pc.field(name) == value)
        yield tuple(key[name] for name in by), part.drop_columns(by)


def _text(value: Any) -> str | None:
    """Format a partition's value as in the Delta log, which makes no difference between empty and null."""
    if value is None or value == "":
        return None
    return value.isoformat() if isinstance(value, date) else str(value)


def _folder(value: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")


def _stat(value: Any) -> Any:
    """Format a bound as in the Delta log: of a time its milliseconds, to which readers add one."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")

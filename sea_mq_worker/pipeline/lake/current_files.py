"""The files of a table's version: which ones a merge takes together, and their removal from the table."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from sea_mq_worker.pipeline.lake.write_files import FILE_BYTES_MAX

File: TypeAlias = Mapping[str, Any]
"""A file in the form of delta-rs, with its path as the log has it: percent-encoded."""

_SMALL_BYTES = FILE_BYTES_MAX // 2


def files_of(table: DeltaTable | None) -> list[File]:
    """Return the current files."""
    return list(pa.table(table.get_add_actions()).to_pylist()) if table else []


def path_of(file: File) -> str:
    """Return the file's path below the table's address."""
    return unquote(file["path"])


def crowded_partitions(table: DeltaTable | None, files_max: int) -> list[list[File]]:
    """Return the small files of each partition that has more than ``files_max`` of them."""
    small = defaultdict[tuple[Any, ...], list[File]](list)
    for file in files_of(table):
        if file["size_bytes"] < _SMALL_BYTES:
            small[tuple(file.get("partition", {}).values())].append(file)
    return [files for files in small.values() if len(files) > files_max]


def groups_to_merge(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield groups that become files of a good size; one is sorted in memory, many would not fit."""
    group: list[File] = []
    size = 0
    for file in files:
        group.append(file)
        size += file["size_bytes"]
        if size >= _SMALL_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def removals(table: DeltaTable, partitions: Collection[Mapping[str, Any]]) -> list[RemoveAction]:
    """Return the removal of all files of the partitions."""
    wanted = {tuple(sorted(partition.items())) for partition in partitions}
    files = files_of(table if wanted else None)
    return [removal(file) for file in files if tuple(sorted(file["partition"].items())) in wanted]


def removal(file: File, *, data_change: bool = True) -> RemoveAction:
    """Return the removal of a file; without ``data_change`` other files have its rows."""
    return RemoveAction(path_of(file), data_change, int(time.time() * 1000), file["size_bytes"])

"""A Delta table of the lake: files by Spark's tasks, one atomic commit by the driver, read as Parquet.

A commit carries marks, names with numbers. Who says what it has written by such a mark can neither write it
twice nor leave something out, whatever becomes of its own notes.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.read_files import ReadFiles, read_files
from sea_mq_worker.pipeline.lake.schemas import SCHEMAS, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, is_local, make_durable, reachable, table_uri
from sea_mq_worker.pipeline.lake.watermarks import ConflictError, Watermark, is_reached
from sea_mq_worker.pipeline.lake.write_files import FILE_BYTES_MAX, RESULT_DDL, WriteFiles

__all__ = ["Conditions", "ConflictError", "Files", "LakeTable", "Watermark"]

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
"""(column, operator, value), all of which must hold; operators as deltalake takes them."""

_READER_VERSION = 1
"""Tables that ask for more (deletion vectors, column mapping) cannot be read as plain Parquet."""

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Files:
    """Files that tasks have written and nobody sees yet."""

    actions: tuple[AddAction, ...]
    rows: int

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(action.size for action in self.actions)


NO_FILES = Files((), 0)


def check_lake(lake: str) -> None:
    """Make sure that a lake to be read is there.

    Raises:
        PipelineError: none of its tables is.
    """
    if not any(LakeTable(lake, layout).open() for layout in SCHEMAS):
        raise PipelineError(
            f"{lake}: there is no lake; see whether the path is right, or begin one by `pipeline land` or"
            " `pipeline archive`"
        )


class LakeTable:
    """One table of a lake, made at the first commit."""

    def __init__(self, lake: str, layout: TableSchema) -> None:
        self.uri = table_uri(lake, layout.name)
        self.layout = layout

    def open(self) -> DeltaTable | None:
        """Return the table as it is now; None: nothing was committed yet.

        Raises:
            PipelineError: it cannot be read, or another tool turned features on that this reader would get
                wrong.
        """
        with reachable(self.uri):
            if not DeltaTable.is_deltatable(self.uri):
                return None
            table = DeltaTable(self.uri)
        if table.protocol().min_reader_version > _READER_VERSION:
            raise PipelineError(
                f"{self.uri} asks for Delta reader version {table.protocol().min_reader_version}: turn "
                "deletion vectors and column mapping off for it, they would be ignored here"
            )
        return table

    def mark(self, name: str) -> int | None:
        """Return the last value committed under a mark's name; None: there is none."""
        table = self.open()
        return table.transaction_version(name) if table else None

    def sync(self) -> None:
        """Have the last commit outlive a loss of power, also where who made it was killed right afterwards.

        Raises:
            PipelineError: the disk cannot promise it.
        """
        table = self.open()
        if table:
            with reachable(self.uri), suppress(FileNotFoundError):  # a checkpoint has taken its place
                self._sync(table.version())

    def read(
        self, spark: SparkSession, skip_unless: Conditions = (), *, columns: Sequence[str] = ()
    ) -> DataFrame:
        """Return the rows as of now.

        Args:
            spark: the session.
            skip_unless: leave out files that hold no row like this, by partition or ``ranged`` column; rows
                that are otherwise may still be among those returned.
            columns: only these; all unless given.
        """
        return read_files(
            spark, self.uri, self.layout, self._paths(skip_unless), columns or self.layout.schema.names
        )

    def peek(self, skip_unless: Conditions, columns: Sequence[str]) -> pa.Table:
        """Return rows as ``read`` does, but here and now: for few files."""
        reader = ReadFiles(self.uri, self.layout, tuple(columns))
        paths = pa.RecordBatch.from_pydict({"path": pa.array(self._paths(skip_unless), pa.string())})
        return pa.Table.from_batches(reader(iter([paths])), schema=self.layout.chosen(columns))

    def write(self, frame: DataFrame) -> Files:
        """Write the frame's rows into new files by Spark's tasks; ``commit`` adds them to the table.

        Raises:
            PipelineError: the lake's folder cannot be written.
        """
        if is_local(self.uri):
            filesystem(self.uri)
        columns = frame.select(*self.layout.schema.names)
        written = columns.mapInArrow(WriteFiles(self.uri, self.layout), RESULT_DDL).collect()
        now = int(time.time() * 1000)
        actions = [AddAction(r.path, r.size, r.partitions, now, True, r.stats) for r in written]
        return Files(tuple(actions), sum(r.rows for r in written))

    def commit(self, files: Files, *marks: Watermark) -> bool:
        """Make the files part of the table, all or none.

        Returns False, and leaves the table as it is, where the first mark's value was reached before.

        Raises:
            ConflictError: somebody else moved a mark at the same time, or it is not where it must be before.
        """
        return self._commit(files, (), marks)

    def replace(self, files: Files, partitions: Collection[Mapping[str, Any]], *marks: Watermark) -> bool:
        """Put the files in the place of all that the partitions hold, in one step; else as ``commit``.

        Args:
            files: what the partitions shall hold.
            partitions: value by partition column, each as in a row.
            marks: as of ``commit``.
        """
        return self._commit(files, partitions, marks)

    def compact(self, files_max: int) -> int:
        """Merge the files of each partition that has more small ones than ``files_max``.

        Readers and writers are not disturbed: the old files stay until ``vacuum``, and a merge that collides
        with a commit is left to the next time.

        Returns:
            How many partitions were merged.
        """
        table = self.open()
        if table is None:
            return 0
        small = Counter(
            tuple(file["partition"][name] for name in self.layout.partition_by)
            for file in _files(table)
            if file["size_bytes"] < FILE_BYTES_MAX // 2
        )
        crowded = [values for values, files in small.items() if files > files_max]
        return sum(self._merge(table, values) for values in crowded)

    def vacuum(self, hours: int) -> list[str]:
        """Delete files that no version of the last ``hours`` has, those of killed runs as well.

        A file that a run is just writing is safe while the run takes fewer hours than these.

        Returns:
            The files deleted.
        """
        table = self.open()
        if table is None:
            return []
        with reachable(self.uri):
            return table.vacuum(
                retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
            )

    def _paths(self, skip_unless: Conditions) -> list[str]:
        table = self.open()
        # An empty text would be taken for null.
        asked = [c for c in skip_unless if c[2] != "" or c[0] in self.layout.partition_by]
        pruned = table.file_uris(file_pruning_predicate=asked or None) if table else []
        # Below the table's address a file is named as it is, while the address itself is percent-encoded.
        levels = len(self.layout.partition_by) + 1
        return ["/".join(uri.split("/")[-levels:]) for uri in pruned]

    def _commit(
        self, files: Files, replaced: Collection[Mapping[str, Any]], marks: Sequence[Watermark]
    ) -> bool:
        transactions = [Transaction(mark.name, mark.value) for mark in marks]
        # Every attempt looks at the marks of the very version that it builds upon.
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
        refused = ""
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt * _PAUSE_SECONDS)
            table = self.open() or self._create()
            if is_reached(table, marks):
                if not attempt:
                    return False
                raise ConflictError(f"{self.uri}: another run committed {marks[0].name!r} at the same time")
            with reachable(self.uri):
                try:
                    table.create_write_transaction(
                        [*files.actions, *_removals(table, replaced)],
                        "append",
                        table.schema(),
                        partition_by=list(self.layout.partition_by),
                        commit_properties=properties,
                    )
                except CommitFailedError as error:
                    refused = str(error)
                    continue
                self._sync(table.version() + 1)
            return True
        raise ConflictError(f"{self.uri}: other runs kept committing before this one; run again: {refused}")

    def _merge(self, table: DeltaTable, values: tuple[Any, ...]) -> bool:
        names = self.layout.partition_by
        which = [
            (name, "=", "" if value is None else value) for name, value in zip(names, values, strict=True)
        ]
        try:
            merged = table.optimize.compact(partition_filters=which, target_size=FILE_BYTES_MAX)
        except CommitFailedError:
            return False
        return bool(merged["numFilesRemoved"])

    def _create(self) -> DeltaTable:
        by = list(self.layout.partition_by)
        with reachable(self.uri):
            try:
                table = DeltaTable.create(self.uri, self.layout.schema, mode="ignore", partition_by=by)
            except CommitFailedError:
                table = DeltaTable(self.uri)
            self._sync(0)
        return table

    def _sync(self, version: int) -> None:
        make_durable(self.uri, f"_delta_log/{version:020}.json")


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = pa.table(table.get_add_actions()).to_pylist()
    return files


def _removals(table: DeltaTable, partitions: Collection[Mapping[str, Any]]) -> list[RemoveAction]:
    """List the files of the partitions, to be taken out; the log has their paths percent-encoded."""
    if not partitions:
        return []
    wanted = {tuple(sorted(partition.items())) for partition in partitions}
    now = int(time.time() * 1000)
    return [
        RemoveAction(unquote(file["path"]), True, now, file["size_bytes"])
        for file in _files(table)
        if tuple(sorted(file["partition"].items())) in wanted
    ]

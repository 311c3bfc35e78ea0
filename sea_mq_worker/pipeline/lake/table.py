"""A Delta table of the lake: Spark's tasks write Parquet files, the driver commits them atomically.

A commit contains watermarks: names with numbers. A writer that records its progress in watermarks can neither
write data twice nor omit data.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
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
"""(column, operator, value), all of which must match; operators of deltalake."""

_VERSION = version("sea-mq-worker")
_READER_VERSION = 1
"""Tables with a higher version (deletion vectors, column mapping) cannot be read as plain Parquet."""

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Files:
    """Files that tasks have written and that are not committed yet."""

    actions: tuple[AddAction, ...]
    rows: int

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(action.size for action in self.actions)


NO_FILES = Files((), 0)


def check_lake(lake: str) -> None:
    """Check that a lake exists before it is read.

    Raises:
        PipelineError: the lake has no tables.
    """
    if not any(LakeTable(lake, table_schema).open() for table_schema in SCHEMAS):
        raise PipelineError(
            f"{lake}: there is no lake; check the path, or create it by `pipeline land` or `pipeline archive`"
        )


class LakeTable:
    """One table of a lake, created by its first commit."""

    def __init__(self, lake: str, table_schema: TableSchema) -> None:
        self.uri = table_uri(lake, table_schema.name)
        self.table_schema = table_schema

    def open(self) -> DeltaTable | None:
        """Return the table's current version; None: nothing was committed yet.

        Raises:
            PipelineError: the table cannot be read, or it has features that this reader does not support.
        """
        with reachable(self.uri):
            if not DeltaTable.is_deltatable(self.uri):
                return None
            table = DeltaTable(self.uri)
        if table.protocol().min_reader_version > _READER_VERSION:
            raise PipelineError(
                f"{self.uri} requires Delta reader version {table.protocol().min_reader_version}: turn off "
                "deletion vectors and column mapping, which this reader does not support"
            )
        return table

    def watermark(self, name: str) -> int | None:
        """Return the last value committed under a watermark's name; None: there is none."""
        table = self.open()
        return table.transaction_version(name) if table else None

    def sync(self) -> None:
        """Sync the last commit to disk, in case its writer was killed before it did so.

        Raises:
            PipelineError: the commit cannot be synced.
        """
        table = self.open()
        if table:
            with reachable(self.uri), suppress(FileNotFoundError):  # a checkpoint has taken its place
                self._sync(table.version())

    def read(
        self, spark: SparkSession, skip_unless: Conditions = (), *, columns: Sequence[str] = ()
    ) -> DataFrame:
        """Return the current rows.

        Args:
            spark: the session.
            skip_unless: skip files without matching rows, by partition or ``ranged`` column; the result may
                still contain rows that do not match.
            columns: the columns to return; default: all.
        """
        return read_files(
            spark,
            self.uri,
            self.table_schema,
            self._paths(skip_unless),
            columns or self.table_schema.schema.names,
        )

    def peek(self, skip_unless: Conditions, columns: Sequence[str]) -> pa.Table:
        """Return rows like ``read``, but read them in this process; for few files."""
        reader = ReadFiles(self.uri, self.table_schema, tuple(columns))
        paths = pa.RecordBatch.from_pydict({"path": pa.array(self._paths(skip_unless), pa.string())})
        return pa.Table.from_batches(reader(iter([paths])), schema=self.table_schema.chosen(columns))

    def write(self, frame: DataFrame) -> Files:
        """Write the frame's rows into new files by Spark's tasks; ``commit`` adds them to the table.

        Raises:
            PipelineError: the lake's folder cannot be written.
        """
        if is_local(self.uri):
            filesystem(self.uri)
        columns = frame.select(*self.table_schema.schema.names)
        written = columns.mapInArrow(WriteFiles(self.uri, self.table_schema), RESULT_DDL).collect()
        now = int(time.time() * 1000)
        actions = [AddAction(r.path, r.size, r.partitions, now, True, r.stats) for r in written]
        return Files(tuple(actions), sum(r.rows for r in written))

    def commit(self, files: Files, *watermarks: Watermark, metadata: Mapping[str, str] | None = None) -> bool:
        """Add the files to the table atomically.

        Args:
            files: the files; ``NO_FILES`` for a commit of watermarks alone.
            watermarks: the writer's progress.
            metadata: facts about the commit for the table's history, such as ``sea_mq.job``,
                ``sea_mq.stream`` and ``sea_mq.range``; ``sea_mq.version`` is added.

        Returns:
            False, without a change, if the first watermark has already reached its value.

        Raises:
            ConflictError: another run changed a watermark, or a watermark does not have the value ``after``.
        """
        return self._commit(files, (), watermarks, metadata)

    def replace(
        self,
        files: Files,
        partitions: Collection[Mapping[str, Any]],
        *watermarks: Watermark,
        metadata: Mapping[str, str] | None = None,
    ) -> bool:
        """Replace the content of the partitions by the files atomically; otherwise the same as ``commit``.

        Args:
            files: the new content of the partitions.
            partitions: values by partition column.
            watermarks: see ``commit``.
            metadata: see ``commit``.
        """
        return self._commit(files, partitions, watermarks, metadata)

    def compact(self, files_max: int) -> int:
        """Merge the files of each partition that has more than ``files_max`` small files.

        Readers and writers are not affected: the old files stay until ``vacuum``, and a merge that conflicts
        with a commit is skipped until the next call.

        Returns:
            The number of merged partitions.
        """
        table = self.open()
        if table is None:
            return 0
        small = Counter(
            tuple(file["partition"][name] for name in self.table_schema.partition_by)
            for file in _files(table)
            if file["size_bytes"] < FILE_BYTES_MAX // 2
        )
        crowded = [values for values, files in small.items() if files > files_max]
        return sum(self._merge(table, values) for values in crowded)

    def vacuum(self, hours: int) -> list[str]:
        """Delete files that no version of the last ``hours`` contains, including files of killed runs.

        Files that a run is writing are safe if the run takes less time than this.

        Returns:
            The deleted files.
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
        predicate = [c for c in skip_unless if c[2] != "" or c[0] in self.table_schema.partition_by]
        pruned = table.file_uris(file_pruning_predicate=predicate or None) if table else []
        # Below the table's address a file is named as it is, while the address itself is percent-encoded.
        levels = len(self.table_schema.partition_by) + 1
        return ["/".join(uri.split("/")[-levels:]) for uri in pruned]

    def _commit(
        self,
        files: Files,
        replaced: Collection[Mapping[str, Any]],
        watermarks: Sequence[Watermark],
        metadata: Mapping[str, str] | None,
    ) -> bool:
        transactions = [Transaction(watermark.name, watermark.value) for watermark in watermarks]
        # Every attempt looks at the watermarks of the very version that it builds upon.
        properties = CommitProperties(
            app_transactions=transactions,
            custom_metadata={"sea_mq.version": _VERSION, **(metadata or {})},
            max_commit_retries=0,
        )
        refused = ""
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt * _PAUSE_SECONDS)
            table = self.open() or self._create()
            if is_reached(table, watermarks):
                if not attempt:
                    return False
                raise ConflictError(
                    f"{self.uri}: another run committed {watermarks[0].name!r} at the same time"
                )
            with reachable(self.uri):
                try:
                    self._set_properties(table)
                    table.create_write_transaction(
                        [*files.actions, *_removals(table, replaced)],
                        "append",
                        table.schema(),
                        partition_by=list(self.table_schema.partition_by),
                        commit_properties=properties,
                    )
                except CommitFailedError as error:
                    refused = str(error)
                    continue
                self._sync(table.version() + 1)
            return True
        raise ConflictError(f"{self.uri}: other runs kept committing before this one; run again: {refused}")

    def _merge(self, table: DeltaTable, values: tuple[Any, ...]) -> bool:
        names = self.table_schema.partition_by
        which = [
            (name, "=", "" if value is None else value) for name, value in zip(names, values, strict=True)
        ]
        try:
            merged = table.optimize.compact(partition_filters=which, target_size=FILE_BYTES_MAX)
        except CommitFailedError:
            return False
        return bool(merged["numFilesRemoved"])

    def _create(self) -> DeltaTable:
        by = list(self.table_schema.partition_by)
        with reachable(self.uri):
            try:
                table = DeltaTable.create(
                    self.uri,
                    self.table_schema.schema,
                    mode="ignore",
                    partition_by=by,
                    configuration=self._properties,
                )
            except CommitFailedError:
                table = DeltaTable(self.uri)
            self._sync(0)
        return table

    @property
    def _properties(self) -> dict[str, str]:
        # Otherwise pyarrow and DuckDB would take columns without statistics for columns without values.
        return {"delta.dataSkippingStatsColumns": ",".join(self.table_schema.ranged)}

    def _set_properties(self, table: DeltaTable) -> None:
        """Set the properties of a table that an older version created."""
        if not self._properties.items() <= table.metadata().configuration.items():
            table.alter.set_table_properties(self._properties)

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

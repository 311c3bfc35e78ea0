"""A Delta table of the lake: Spark's tasks write Parquet files, the driver commits them atomically.

A commit contains watermarks: names with numbers. A writer that records its progress in watermarks can neither
write data twice nor omit data.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.read_files import dataset_of, read_files
from sea_mq_worker.pipeline.lake.schemas import SCHEMAS, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, is_local, make_durable, reachable, table_uri
from sea_mq_worker.pipeline.lake.watermarks import ConflictError, Watermark, is_reached
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, FILE_BYTES_MAX, WriteFiles

__all__ = ["Conditions", "ConflictError", "Files", "LakeTable", "Watermark"]

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
"""(column, operator, value), all of which must match; operators of deltalake."""

_VERSION = version("sea-mq-worker")
_READER_VERSION = 1
"""Tables with a higher version (deletion vectors, column mapping) cannot be read as plain Parquet."""

_LOG_RETENTION = "interval 168 hours"
_MERGED_ROWS = 100_000
_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Files:
    """Files that tasks have written and that are not committed yet."""

    actions: tuple[AddAction, ...]
    rows: int

    @property
    def paths(self) -> list[str]:
        """Paths of the files below the table's address."""
        return [action.path for action in self.actions]

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

    def watermarks(self) -> Callable[[str], int]:
        """Return a function that returns a watermark of the current version by its name; 0: there is none."""
        table = self.open()
        return lambda name: (table.transaction_version(name) if table else None) or 0

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
            self.paths(skip_unless),
            columns or self.table_schema.schema.names,
        )

    def peek(self, skip_unless: Conditions, columns: Sequence[str]) -> pa.Table:
        """Return the matching rows, read in this process."""
        files = dataset_of(self.uri, self.table_schema, self.paths(skip_unless))
        matching = pq.filters_to_expression(list(skip_unless)) if skip_unless else None
        return files.to_table(columns=list(columns), filter=matching)

    def write(self, frame: DataFrame) -> Files:
        """Write the frame's rows into new files by Spark's tasks; ``commit`` adds them to the table.

        Raises:
            PipelineError: the lake's folder cannot be written.
        """
        if is_local(self.uri):
            filesystem(self.uri)
        columns = frame.select(*self.table_schema.schema.names)
        write = WriteFiles(self.uri, self.table_schema)
        return self.files(columns.mapInArrow(write, from_arrow_schema(ENTRIES)).toArrow())

    def files(self, entries: pa.Table) -> Files:
        """Return those of the entries that are this table's, as files to commit."""
        mine = entries.filter(pc.equal(entries["table"], self.table_schema.name)).to_pylist()
        now = int(time.time() * 1000)
        actions = [
            AddAction(each["path"], each["size"], json.loads(each["partitions"]), now, True, each["stats"])
            for each in mine
        ]
        return Files(tuple(actions), sum(each["rows"] for each in mine))

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
        small: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for file in _files(table):
            if file["size_bytes"] < FILE_BYTES_MAX // 2:
                small[tuple(file["partition"][name] for name in self.table_schema.partition_by)].append(file)
        merge = self._merge_sorted if self.table_schema.sort_by else self._merge
        crowded = [(values, files) for values, files in small.items() if len(files) > files_max]
        return sum(merge(table, values, files) for values, files in crowded)

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

    def entries(self, skip_unless: Conditions = ()) -> pa.Table:
        """Return path, rows, partition and statistics of each current file; see ``read``.

        The columns are ``path``, ``rows`` and such as ``partition.date``, ``min.seq``, ``max.seq``.
        """
        table, paths = self.open(), self.paths(skip_unless)
        names = ["path", "rows", *(f"partition.{name}" for name in self.table_schema.partition_by)]
        names += [f"{end}.{name}" for name in self.table_schema.ranged for end in ("min", "max")]
        if table is None:
            return pa.table({name: pa.nulls(0) for name in names})
        entries = pa.table(table.get_add_actions(flatten=True)).rename_columns({"num_records": "rows"})
        decoded = pa.array([unquote(path) for path in entries["path"].to_pylist()], pa.string())
        entries = entries.set_column(0, "path", decoded).select(names)
        return entries.filter(pc.is_in(decoded, pa.array(paths, pa.string())))

    def paths(self, skip_unless: Conditions = ()) -> list[str]:
        """Return the current files by their paths below the table's address; see ``read``."""
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
                    self._upgrade(table)
                    self._write(table, [*files.actions, *_removals(table, replaced)], properties)
                except CommitFailedError as error:
                    refused = str(error)
                    continue
                self._sync(table.version() + 1)
            return True
        raise ConflictError(f"{self.uri}: other runs kept committing before this one; run again: {refused}")

    def _merge(self, table: DeltaTable, values: tuple[Any, ...], _files: Sequence[Mapping[str, Any]]) -> bool:
        which = [
            (name, "=", "" if value is None else value)
            for name, value in zip(self.table_schema.partition_by, values, strict=True)
        ]
        try:
            table.optimize.compact(partition_filters=which, target_size=FILE_BYTES_MAX)
        except CommitFailedError:
            return False
        return True

    def _merge_sorted(
        self, table: DeltaTable, _values: tuple[Any, ...], files: Sequence[Mapping[str, Any]]
    ) -> bool:
        order = [(name, "ascending") for name in self.table_schema.sort_by]
        paths = [unquote(file["path"]) for file in files]
        rows = dataset_of(self.uri, self.table_schema, paths).to_table().sort_by(order)
        entries = WriteFiles(self.uri, self.table_schema)(iter(rows.to_batches(_MERGED_ROWS)))
        merged = self.files(pa.Table.from_batches(entries, ENTRIES))
        try:
            self._write(
                table, [*merged.actions, *map(_removal, files)], CommitProperties(max_commit_retries=0)
            )
        except CommitFailedError:
            return False
        return True

    def _write(
        self, table: DeltaTable, actions: list[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        by = list(self.table_schema.partition_by)
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=by, commit_properties=properties
        )

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
        return {
            "delta.logRetentionDuration": _LOG_RETENTION,
            # Otherwise pyarrow and DuckDB would take columns without statistics for columns without values.
            "delta.dataSkippingStatsColumns": ",".join(self.table_schema.ranged),
        }

    def _upgrade(self, table: DeltaTable) -> None:
        """Add the properties and columns that a table of an older version lacks."""
        if not self._properties.items() <= table.metadata().configuration.items():
            table.alter.set_table_properties(self._properties)
        there = {field.name for field in table.schema().fields}
        if added := [
            field for field in Schema.from_arrow(self.table_schema.schema).fields if field.name not in there
        ]:
            table.alter.add_columns(added)

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
    return [_removal(file) for file in _files(table) if tuple(sorted(file["partition"].items())) in wanted]


def _removal(file: Mapping[str, Any]) -> RemoveAction:
    return RemoveAction(unquote(file["path"]), True, int(time.time() * 1000), file["size_bytes"])

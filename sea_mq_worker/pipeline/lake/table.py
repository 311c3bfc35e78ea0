"""A Delta table of the lake: Spark's tasks write Parquet files, the driver commits them atomically.

A commit contains watermarks: names with numbers. A writer that records its progress in watermarks can neither
write data twice nor omit data.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
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

from sea_mq_worker.pipeline.dataframes import matching
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.read_files import BATCH_ROWS, dataset_of, read_batches, read_files
from sea_mq_worker.pipeline.lake.schemas import SCHEMAS, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, is_local, make_durable, reachable, table_uri
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, groups_to_merge, write_files

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
"""(column, operator, value), all of which must match; a value of None sets no condition."""

_VERSION = version("sea-mq-worker")
_READER_VERSION = 1
"""Tables with a higher version (deletion vectors, column mapping) cannot be read as plain Parquet."""

_LOG = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 24 hours"}
"""Each opening of a table reads all commits since its last checkpoint, and lists all files of its log."""

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.05


class ConflictError(PipelineError):
    """Another run changed the table in the meantime; read its current state before the next attempt."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Progress of a writer.

    Attributes:
        name: name of the watermark.
        value: value after the commit.
        after: required value before the commit, 0 if there is none yet; None: any value below ``value``.
    """

    name: str
    value: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """Files that tasks have written and that are not committed yet."""

    actions: tuple[AddAction, ...]
    rows: int

    @property
    def paths(self) -> list[str]:
        """Paths of the files below the table's address."""
        return [action.path for action in self.actions]


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
        self.lake = table_uri(lake, "")
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

    def watermarks(self) -> Callable[[str], int]:
        """Return a function that returns a watermark of the current version by its name; 0: there is none."""
        table = self.open()

        def value(name: str) -> int:
            with reachable(self.uri):
                return (table.transaction_version(name) if table else None) or 0

        return value

    def sync(self) -> None:
        """Sync the last commit to disk, in case its writer was killed before it did so.

        Raises:
            PipelineError: the commit cannot be synced.
        """
        if table := self.open():
            with reachable(self.uri), suppress(FileNotFoundError):  # a checkpoint has taken its place
                self._sync(table.version())

    def read(
        self, spark: SparkSession, conditions: Conditions = (), *, columns: Sequence[str] = ()
    ) -> DataFrame:
        """Return the matching rows, and skip files without them by partition and ``ranged`` columns."""
        wanted = columns or self.table_schema.schema.names
        needed = list(dict.fromkeys([*wanted, *(name for name, _, _ in conditions)]))
        rows = read_files(spark, self.uri, self.table_schema, self.paths(conditions), needed)
        return matching(rows, conditions).select(*wanted)

    def peek(self, conditions: Conditions, columns: Sequence[str]) -> pa.Table:
        """Return the matching rows, read in this process."""
        given = _given(conditions)
        return self.load(self.paths(given), columns, pq.filters_to_expression(given) if given else None)

    def load(
        self, paths: Sequence[str], columns: Sequence[str] = (), matching: pc.Expression | None = None
    ) -> pa.Table:
        """Return the matching rows of files, committed or not; by default with all columns."""
        chosen = self.table_schema.chosen(columns) if columns else self.table_schema.schema
        batches = read_batches(self.uri, self.table_schema, paths, chosen.names, matching)
        return pa.Table.from_batches(batches, chosen)

    def write(self, frame: DataFrame) -> Files:
        """Write the frame's rows into new files by Spark's tasks; ``commit`` adds them to the table.

        Raises:
            PipelineError: the lake's folder cannot be written.
        """
        if is_local(self.uri):
            filesystem(self.uri)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_files(self.lake, ((self.table_schema, batch) for batch in batches))

        columns = frame.select(*self.table_schema.schema.names)
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

    def commit(
        self,
        files: Files,
        *watermarks: Watermark,
        metadata: Mapping[str, str] | None = None,
        replaced: Collection[str] = (),
        data_change: bool = True,
    ) -> bool:
        """Add the files to the table atomically.

        Args:
            files: the files; ``NO_FILES`` for a commit of watermarks alone.
            watermarks: the writer's progress.
            metadata: facts about the commit for the table's history, such as ``sea_mq.job``,
                ``sea_mq.stream`` and ``sea_mq.range``; ``sea_mq.version`` is added.
            replaced: paths of current files that are removed.
            data_change: false if the files have the rows of the replaced ones.

        Returns:
            False, without a change, if the first watermark has already reached its value.

        Raises:
            ConflictError: another run changed a watermark or replaced a file, or a watermark does not have
                the value ``after``.
        """
        by = self.table_schema.partition_by
        added = [replace(each, data_change=data_change) for each in files.actions]
        properties = CommitProperties(
            app_transactions=[Transaction(each.name, each.value) for each in watermarks],
            custom_metadata={"sea_mq.version": _VERSION, **(metadata or {})},
            max_commit_retries=0,
        )
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt * _PAUSE_SECONDS)
            table = self.open() or self._create()
            with reachable(self.uri), suppress(CommitFailedError):
                # Every attempt looks at the watermarks and files of the very version that it builds upon.
                if _is_reached(table, watermarks):
                    if not attempt:
                        return False
                    raise ConflictError(
                        f"{self.uri}: another run committed {watermarks[0].name!r} at the same time"
                    )
                removed = _removals(table, replaced, data_change=data_change)
                self._upgrade(table)
                table.create_write_transaction(
                    [*added, *removed], "append", table.schema(), [*by], commit_properties=properties
                )
                self._sync(table.version() + 1)
                return True
        raise ConflictError(f"{self.uri}: other runs kept committing before this one; run again")

    def delete(self, conditions: Conditions) -> int:
        """Delete the matching rows in one commit; return their number.

        delta-rs itself would write texts in a type by which pyarrow, and so DuckDB, cannot filter.

        Raises:
            ConflictError: another run replaced a file in the meantime.
        """
        is_gone = pq.filters_to_expression(list(conditions))
        with reachable(self.uri):
            counts = {
                path: dataset_of(self.uri, self.table_schema, [path]).count_rows(filter=is_gone)
                for path in self.paths(conditions)
            }
        if touched := [path for path, count in counts.items() if count]:
            self.commit(self._merged([[path] for path in touched], ~is_gone), replaced=touched)
        return sum(counts.values())

    def compact(self, files_max: int) -> int:
        """Merge the files of each partition that has more than ``files_max`` small files.

        Readers and writers are not affected: the old files stay until ``vacuum``, and a merge that conflicts
        with another one is skipped until the next call.

        Returns:
            The number of merged partitions.
        """
        groups = groups_to_merge(self.entries().to_pylist(), files_max)
        if groups:
            try:
                replaced = [*chain.from_iterable(groups.values())]
                self.commit(self._merged(groups.values()), replaced=replaced, data_change=False)
            except ConflictError:
                return 0
        return len({partition for partition, _ in groups})

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
            return table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)

    def entries(self, conditions: Conditions = ()) -> pa.Table:
        """Return the current files that may have matching rows.

        Columns: ``path``, ``size_bytes``, ``rows``, and such as ``partition.date``, ``min.seq``, ``max.seq``.
        """
        table = self.open()
        names = [f"partition.{name}" for name in self.table_schema.partition_by]
        names += [f"{end}.{name}" for name in self.table_schema.ranged for end in ("min", "max")]
        names += ["path", "size_bytes", "rows"]
        if table is None:
            return pa.table({name: pa.nulls(0) for name in names})
        entries = pa.table(table.get_add_actions(flatten=True)).rename_columns({"num_records": "rows"})
        decoded = pa.array([unquote(path) for path in entries["path"].to_pylist()], pa.string())
        wanted = pc.is_in(decoded, pa.array(self._paths(table, conditions), pa.string()))
        return entries.set_column(0, "path", decoded).select(names).filter(wanted)

    def paths(self, conditions: Conditions = ()) -> list[str]:
        """Return the current files that may have matching rows, by their paths below the table's address."""
        table = self.open()
        return self._paths(table, conditions) if table else []

    def _paths(self, table: DeltaTable, conditions: Conditions) -> list[str]:
        by, ranged = self.table_schema.partition_by, self.table_schema.ranged
        # An empty text would be taken for null.
        known = [c for c in _given(conditions) if c[0] in by or (c[0] in ranged and c[2] != "")]
        pruned = table.file_uris(file_pruning_predicate=known or None)
        # Below the table's address a file is named as it is, while the address itself is percent-encoded.
        return ["/".join(uri.split("/")[-len(by) - 1 :]) for uri in pruned]

    def _merged(self, groups: Iterable[Sequence[str]], matching: pc.Expression | None = None) -> Files:
        """Write the matching rows of each group of files into new ones."""
        table = self.open()
        # The table may have columns that only older files have.
        schema = pa.schema(table.schema()) if table else self.table_schema.schema
        table_schema = replace(self.table_schema, schema=schema)
        entries: list[pa.RecordBatch] = []
        for paths in groups:
            batches = read_batches(self.uri, table_schema, paths, matching=matching)
            if by := table_schema.sort_by:
                rows = pa.Table.from_batches(batches, schema)
                batches = iter(rows.sort_by([(name, "ascending") for name in by]).to_batches(BATCH_ROWS))
            entries += write_files(self.lake, ((table_schema, batch) for batch in batches))
        return self.files(pa.Table.from_batches(entries, ENTRIES))

    def _create(self) -> DeltaTable:
        properties = {
            **_LOG,
            # Otherwise pyarrow and DuckDB would take columns without statistics for columns without values.
            "delta.dataSkippingStatsColumns": ",".join(self.table_schema.ranged),
        }
        with reachable(self.uri):
            try:
                table = DeltaTable.create(
                    self.uri,
                    self.table_schema.schema,
                    mode="ignore",
                    partition_by=list(self.table_schema.partition_by),
                    configuration=properties,
                )
            except CommitFailedError:
                table = DeltaTable(self.uri)
            self._sync(0)
        return table

    def _upgrade(self, table: DeltaTable) -> None:
        """Add the columns that a table of an older version lacks."""
        there = {field.name for field in table.schema().fields}
        if added := [
            field for field in Schema.from_arrow(self.table_schema.schema).fields if field.name not in there
        ]:
            table.alter.add_columns(added)

    def _sync(self, version: int) -> None:
        make_durable(self.uri, f"_delta_log/{version:020}.json")


def _given(conditions: Conditions) -> list[tuple[str, str, Any]]:
    return [condition for condition in conditions if condition[2] is not None]


def _removals(table: DeltaTable, paths: Collection[str], *, data_change: bool) -> list[RemoveAction]:
    """Return the removal of files.

    Raises:
        ConflictError: the table's version no longer has one of them.
    """
    files = pa.table(table.get_add_actions()).to_pylist() if paths else []
    sizes, now = {unquote(file["path"]): file["size_bytes"] for file in files}, int(time.time() * 1000)
    if gone := set(paths).difference(sizes):
        raise ConflictError(f"{table.table_uri}: another run replaced {min(gone)}; run again")
    return [RemoveAction(path, data_change, now, sizes[path]) for path in paths]


def _is_reached(table: DeltaTable, watermarks: Sequence[Watermark]) -> bool:
    """Return whether the first watermark has already reached its value.

    Raises:
        ConflictError: a watermark has neither the value ``value`` nor the value ``after``.
    """
    if not watermarks:
        return False
    current = {watermark.name: table.transaction_version(watermark.name) for watermark in watermarks}
    first = watermarks[0]
    reached = current[first.name]
    if reached is not None and (reached == first.value or (first.after is None and reached > first.value)):
        return True
    for watermark in watermarks:
        if watermark.after is not None and (current[watermark.name] or 0) != watermark.after:
            raise ConflictError(
                f"{table.table_uri}: watermark {watermark.name!r} is at {current[watermark.name]}, not at "
                f"{watermark.after}: another run writes to this table; wait for it or stop it, then run again"
            )
    return False

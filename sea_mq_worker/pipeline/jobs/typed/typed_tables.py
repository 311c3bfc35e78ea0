"""Update the typed tables from silver, each row once; a row that violates its schema goes to quarantine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import Schema
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import ROWS_IN_PROCESS, run_tasks
from sea_mq_worker.pipeline.jobs.typed.event_schemas import OF_MESSAGE, EventSchema, split
from sea_mq_worker.pipeline.lake.read_files import dataset_of
from sea_mq_worker.pipeline.lake.schemas import SILVER, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, reachable, table_uri
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, TableWriter

QUARANTINE = TableSchema(
    name="typed/quarantine",
    schema=pa.schema([*OF_MESSAGE, ("event", pa.string()), ("reason", pa.string())]),
    partition_by=("_date",),
    ranged=("_message_id", "_published_at", "_seq"),
)
"""Events that violate their schema: ``event`` is type and version; silver has the payload."""


@dataclass(frozen=True, slots=True)
class TypedCounts:
    """Numbers of rows that were added to typed tables, and to quarantine."""

    rows: int = 0
    violations: int = 0


def tables_of(lake: str) -> list[TableSchema]:
    """Return the typed tables of a lake and quarantine, without their columns."""
    store = filesystem(table_uri(lake, "typed"))
    folders = [
        file for file in store.get_file_info(pafs.FileSelector("")) if file.type == pafs.FileType.Directory
    ]
    return [
        TableSchema(name=f"typed/{folder.base_name}", schema=pa.schema([]), partition_by=())
        for folder in folders
    ]


def refresh(
    spark: SparkSession | None,
    lake: str,
    schemas: Sequence[EventSchema],
    progresses: Sequence[StreamProgress],
) -> TypedCounts:
    """Update the typed tables to silver.

    Args:
        spark: the session; None: work in this process.
        lake: the lake's address.
        schemas: schemas of all events that have a typed table.
        progresses: the incarnations of the streams.

    Raises:
        PipelineError: a schema changed in a way that its table cannot follow.
    """
    for schema in schemas:
        _add_columns(LakeTable(lake, schema.table), schema)
    counts = [_refresh(spark, lake, schemas, progress) for progress in progresses]
    return TypedCounts(sum(each.rows for each in counts), sum(each.violations for each in counts))


def _refresh(
    spark: SparkSession | None, lake: str, schemas: Sequence[EventSchema], progress: StreamProgress
) -> TypedCounts:
    silver, quarantine = LakeTable(lake, SILVER), LakeTable(lake, QUARANTINE)
    upto, judged = silver.watermarks()(progress.name), quarantine.watermarks()
    after = {
        schema.name: (
            LakeTable(lake, schema.table).watermarks()(progress.name),
            judged(f"{schema.name} {progress.name}"),
        )
        for schema in schemas
    }
    first = min(min(each) for each in after.values())
    if first >= upto:
        return TypedCounts()
    conditions: Conditions = [
        ("stream", "=", progress.stream),
        ("incarnation", "=", progress.incarnation),
        ("seq", ">", first),
        ("seq", "<=", upto),
    ]
    files = silver.entries(conditions)
    small = (pc.sum(files["rows"]).as_py() or 0) <= ROWS_IN_PROCESS
    task = TypeEvents(lake, tuple(schemas), after, pq.filters_to_expression(conditions))
    description = f"land {progress.stream} {first + 1}-{upto}: typed tables"
    entries = run_tasks(None if small else spark, description, task, files.select(["path"]), ENTRIES)
    typed = 0
    for schema in schemas:
        table = LakeTable(lake, schema.table)
        added = table.files(entries)
        if table.commit(added, Watermark(progress.name, upto, after=after[schema.name][0])):
            typed += added.rows
    refused = quarantine.files(entries)
    marks = [
        Watermark(f"{name} {progress.name}", upto, after=done)
        for name, (_, done) in after.items()
        if done < upto
    ]
    return TypedCounts(typed, refused.rows if marks and quarantine.commit(refused, *marks) else 0)


@dataclass(frozen=True, slots=True)
class TypeEvents:
    """Reads files of silver and writes typed tables and quarantine.

    Attributes:
        lake: the lake's address.
        schemas: schemas of the events.
        after: by schema, the sequences that the typed table and quarantine have reached.
        matching: the rows of silver that are read.
    """

    lake: str
    schemas: tuple[EventSchema, ...]
    after: Mapping[str, tuple[int, int]]
    matching: pc.Expression

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entry of each file; a task has the column ``path``."""
        paths = [path for batch in batches for path in batch.column("path").to_pylist()]
        silver = dataset_of(table_uri(self.lake, SILVER.name), SILVER, paths)
        tables = [QUARANTINE, *(schema.table for schema in self.schemas)]
        writers = {table.name: TableWriter(table_uri(self.lake, table.name), table) for table in tables}
        judges = [(schema, _Judge(schema, *self.after[schema.name])) for schema in self.schemas]
        for batch in silver.to_batches(filter=self.matching):
            for schema, judge in judges:
                typed, refused = judge.judged(batch)
                yield from writers[schema.table.name].add(
                    pa.RecordBatch.from_pylist(typed, schema.table.schema)
                )
                yield from writers[QUARANTINE.name].add(
                    pa.RecordBatch.from_pylist(refused, QUARANTINE.schema)
                )
        for writer in writers.values():
            yield from writer.close()


class _Judge:
    """Makes rows of a typed table, and of quarantine, from events."""

    def __init__(self, schema: EventSchema, typed: int, judged: int) -> None:
        self._schema, self._typed, self._judged = schema, typed, judged
        self._validator = validator_for(schema.document)(schema.document)

    def judged(self, silver: pa.RecordBatch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        kind, _, version = self._schema.name.rpartition(".v")
        mine = silver.filter((pc.field("event_type") == kind) & (pc.field("event_version") == int(version)))
        typed, refused = [], []
        for row in mine.to_pylist():
            own = {f"_{name}": value for name, value in row.items()}
            try:
                columns = self._columns(row["payload"])
            except ValueError as error:
                if row["seq"] > self._judged:
                    refused.append({**own, "event": self._schema.name, "reason": str(error)})
            else:
                if row["seq"] > self._typed:
                    typed.append(own | columns)
        return typed, refused

    def _columns(self, payload: str | None) -> dict[str, Any]:
        if payload is None:
            raise ValueError("the body is not UTF-8")
        value = json.loads(payload)
        if error := best_match(self._validator.iter_errors(value)):
            raise ValueError(f"{error.json_path}: {error.message}")
        columns, rest = split(value, self._schema.document)
        return {**columns, "_rescued": json.dumps(rest, ensure_ascii=False) if rest else None}


def _add_columns(table: LakeTable, schema: EventSchema) -> None:
    current = table.open()
    if current is None:
        return
    there = {field.name: field.type for field in current.schema().fields}
    added = []
    for field in Schema.from_arrow(schema.table.schema).fields:
        if field.name not in there:
            added.append(field)
        elif there[field.name] != field.type:
            raise PipelineError(
                f"{schema.name}.json: {field.name} is {field.type}, but {there[field.name]} in {table.uri}; "
                "keep its type, or describe another version of the event"
            )
    if added:
        with reachable(table.uri):
            current.alter.add_columns(added)

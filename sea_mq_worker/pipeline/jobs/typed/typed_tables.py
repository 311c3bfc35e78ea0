"""Update the typed tables from silver, each row once; a row that violates its schema goes to quarantine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import Schema
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import rewrite
from sea_mq_worker.pipeline.jobs.typed.event_schemas import EventSchema, split, typed_table
from sea_mq_worker.pipeline.lake.schemas import SILVER, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, table_uri
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import TableRows
from sea_mq_worker.producer.schemas import schema_validator

QUARANTINE = typed_table("quarantine", pa.field("event", pa.string()), pa.field("reason", pa.string()))
"""Events that violate their schema: ``event`` is type and version; silver has the payload."""

_Row: TypeAlias = dict[str, Any]


def tables_of(lake: str) -> list[TableSchema]:
    """Return the typed tables of a lake and quarantine, without the columns of payloads."""
    return [
        typed_table(file.base_name)
        for file in filesystem(table_uri(lake, "typed")).get_file_info(pafs.FileSelector(""))
        if file.type == pafs.FileType.Directory
    ]


def refresh(
    spark: SparkSession | None,
    lake: str,
    schemas: Sequence[EventSchema],
    progresses: Sequence[StreamProgress],
) -> tuple[int, int]:
    """Update the typed tables to silver; return the numbers of rows added to them, and to quarantine.

    Without ``spark`` work in this process. ``progresses`` are all incarnations of the streams.

    Raises:
        PipelineError: a schema changed in a way that its table cannot follow.
    """
    for schema in schemas:
        _check_types(LakeTable(lake, schema.table), schema)
    counts = [_refresh(spark, lake, schemas, progress) for progress in progresses if schemas]
    return sum(typed for typed, _ in counts), sum(refused for _, refused in counts)


def _refresh(
    spark: SparkSession | None, lake: str, schemas: Sequence[EventSchema], progress: StreamProgress
) -> tuple[int, int]:
    silver, quarantine = LakeTable(lake, SILVER), LakeTable(lake, QUARANTINE)
    tables = {schema.name: LakeTable(lake, schema.table) for schema in schemas}
    upto, judged = silver.watermarks()(progress.name), quarantine.watermarks()
    after = {
        name: (table.watermarks()(progress.name), judged(f"{name} {progress.name}"))
        for name, table in tables.items()
    }
    first = min(min(each) for each in after.values())
    if first >= upto:
        return 0, 0
    rows = progress.rows(first, upto)
    judge, matching = partial(_judge, schemas, after), pq.filters_to_expression(rows)
    description = f"land {progress.stream} {first + 1}-{upto}: typed tables"
    entries = rewrite(spark, description, silver, silver.entries(rows), judge, matching=matching)
    typed = 0
    for name, table in tables.items():
        added = table.files(entries)
        if table.commit(added, Watermark(progress.name, upto, after=after[name][0])):
            typed += added.rows
    refused = quarantine.files(entries)
    marks = [
        Watermark(f"{name} {progress.name}", upto, after=done)
        for name, (_, done) in after.items()
        if done < upto
    ]
    return typed, refused.rows if marks and quarantine.commit(refused, *marks) else 0


def _judge(
    schemas: Sequence[EventSchema], after: Mapping[str, tuple[int, int]], silver: pa.RecordBatch
) -> Iterator[TableRows]:
    """Yield rows of typed tables, and of quarantine, after the sequences that both have reached."""
    for schema in schemas:
        kind, _, version = schema.name.rpartition(".v")
        events = (pc.field("event_type") == kind) & (pc.field("event_version") == int(version))
        validator = schema_validator(schema.document)
        typed: list[_Row] = []
        refused: list[_Row] = []
        for row in silver.filter(events).to_pylist():
            own = {f"_{name}": value for name, value in row.items()}
            try:
                typed.append(own | _columns(schema, validator, row["payload"]))
            except (ValueError, OverflowError, RecursionError) as error:
                refused.append({**own, "event": schema.name, "reason": str(error)})
        tables = (schema.table, QUARANTINE)
        for table, rows, reached in zip(tables, (typed, refused), after[schema.name], strict=True):
            new = [row for row in rows if row["_seq"] > reached]
            yield table, pa.RecordBatch.from_pylist(new, table.schema)


def _columns(schema: EventSchema, validator: Validator, payload: str | None) -> _Row:
    if payload is None:
        raise ValueError("the body is not UTF-8")
    value = json.loads(payload)
    if "\\u" in payload:
        json.dumps(value, ensure_ascii=False).encode()  # which refuses half of a surrogate pair
    if error := best_match(validator.iter_errors(value)):
        raise ValueError(f"{error.json_path}: {error.message}")
    columns, rest = split(value, schema.document)
    return {**(columns or {}), "_rescued": json.dumps(rest, ensure_ascii=False) if rest else None}


def _check_types(table: LakeTable, schema: EventSchema) -> None:
    current = table.open()
    there = {field.name: field.type for field in current.schema().fields} if current else {}
    for field in Schema.from_arrow(schema.table.schema).fields:
        if there.get(field.name, field.type) != field.type:
            raise PipelineError(
                f"{schema.name}.json: {field.name} is {field.type}, but {there[field.name]} in {table.uri}; "
                "keep its type, or describe another version of the event"
            )

"""Typed tables: the payloads of silver as columns, by JSON Schemas of the events.

| JSON Schema                | column                      |
|----------------------------|-----------------------------|
| string                     | string                      |
| string, format date-time   | timestamp in microseconds   |
| integer, number, boolean   | bigint, double, boolean     |
| object with properties     | struct of its properties    |
| array with a type of items | array                       |
| anything else              | string that contains JSON   |

A Python function on the executors validates each payload once, and gives JSON of exactly these types; Spark
makes columns of it. A value that its column cannot contain violates the schema, like any other violation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, types
from pyspark.sql import functions as fn

from sea_mq_worker.errors import ContractError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake import SILVER, Lake, Table, repeated
from sea_mq_worker.pipeline.payloads import RETURNS, Judge, column_kind
from sea_mq_worker.producer.schemas import read_json_schemas

_OF_MESSAGE = (
    *("message_id", "aggregate", "occurred_at", "published_at"),
    *("stream", "incarnation", "seq", "context", "date"),
)
"""Columns of silver that all typed tables have, with an underscore before their names."""

_SIMPLE: Mapping[str | None, types.DataType] = {
    "date-time": types.TimestampType(),
    "integer": types.LongType(),
    "number": types.DoubleType(),
    "boolean": types.BooleanType(),
}
_NOT_IN_NAMES = set(" ,;{}()=`")


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The JSON Schema of a version of an event type.

    Attributes:
        name: type and version, such as order.paid.v1.
        document: the JSON Schema.
        columns: the typed table's columns; ``_rescued`` is the JSON of values that the schema does not name.
    """

    name: str
    document: Mapping[str, Any]
    columns: types.StructType


def typed_table(name: str, more: str = "") -> Table:
    """Return the table of messages, which may have further columns."""
    kinds = dict(column.split(" ", 1) for column in SILVER.ddl.split(", "))
    ddl = ", ".join(f"_{column} {kinds[column]}" for column in _OF_MESSAGE)
    return Table(f"typed/{name}", ddl + more, ("_date",), ("_message_id", "_published_at", "_seq"))


QUARANTINE = typed_table("quarantine", ", event STRING, reason STRING")
"""Events that violate their schema: ``event`` is type and version; silver has the payload."""

# --- The schemas.


def load_event_schemas(folder: Path) -> tuple[EventSchema, ...]:
    """Read the files ``<type>.v<version>.json`` of a folder.

    Raises:
        PipelineError: the folder or a file cannot be read, or a file has another name or is not the schema of
            an object with possible column names.
    """
    try:
        documents = read_json_schemas(folder)
    except ContractError as error:
        raise PipelineError(str(error)) from error
    if not documents:
        raise PipelineError(f"{folder}: contains no files named <type>.v<version>.json")
    return tuple(_schema(name, document, folder / f"{name}.json") for name, document in documents.items())


def _schema(name: str, document: Mapping[str, Any], path: Path) -> EventSchema:
    columns = _type(document)
    if not isinstance(columns, types.StructType):
        raise PipelineError(f"{path}: describe an object with properties")
    wrong = [*(column for column in columns.names if column.startswith("_")), *_wrong_names(columns)]
    if wrong:
        shown = ", ".join(repr(each) if not each.isprintable() or not each else each for each in wrong)
        raise PipelineError(f"{path}: {shown}: cannot be names of columns; rename these properties")
    return EventSchema(name, document, columns.add("_rescued", types.StringType()))


def _wrong_names(columns: types.DataType) -> Iterator[str]:
    """Return the names that Delta Lake forbids, nested ones too, or that differ only in case."""
    if isinstance(columns, types.ArrayType):
        yield from _wrong_names(columns.elementType)
    elif isinstance(columns, types.StructType):
        lower = [name.lower() for name in columns.names]
        for field in columns:
            name = field.name
            if not name.isprintable() or _NOT_IN_NAMES & {*name} or not name or lower.count(name.lower()) > 1:
                yield name
            yield from _wrong_names(field.dataType)


def _type(schema: Any) -> types.DataType:
    kind = column_kind(schema)
    if kind == "object":
        return types.StructType([types.StructField(*each) for each in _typed_properties(schema)])
    return (
        types.ArrayType(_type(schema["items"])) if kind == "array" else _SIMPLE.get(kind, types.StringType())
    )


def _typed_properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, types.DataType]]:
    for name, each in schema["properties"].items():
        yield name, _type(each)


# --- The tables.


def catch_up(lake: Lake, schemas: Sequence[EventSchema]) -> tuple[int, int]:
    """Create and alter the tables, and add what they lack of silver: after a new schema, or a killed run.

    A day of which silver has more events than their table and quarantine is read again. Only counts by event
    and day are compared, so silver's payloads are not read where nothing lacks.

    Returns:
        The number of rows added to typed tables, and to quarantine.

    Raises:
        PipelineError: a schema changed in a way that its table cannot follow.
    """
    if not schemas:
        return 0, 0
    lake.create(QUARANTINE)
    for schema in schemas:
        repeated(partial(_alter, lake, schema))
    if not lake.exists(SILVER.name):
        return 0, 0
    silver = lake.read(SILVER.name).where(_event().isin([schema.name for schema in schemas]))
    counts = [_days(lake.read(f"typed/{each.name}"), fn.lit(each.name), "_date", -1) for each in schemas]
    counts.append(_days(lake.read(QUARANTINE.name), fn.col("event"), "_date", -1))
    counts.append(_days(silver, _event(), "date", 1))
    days = reduce(DataFrame.union, counts).groupBy("event", "date").agg(fn.sum("rows").alias("lacking"))
    found = days.where("lacking > 0").groupBy("event").agg(fn.min("date"), fn.max("date")).collect()
    within = [(_event() == event) & fn.col("date").between(first, last) for event, first, last in found]
    return refresh(lake, silver.where(reduce(or_, within)), schemas) if within else (0, 0)


def _event() -> Column:
    return fn.concat_ws(".v", "event_type", "event_version")


def _days(rows: DataFrame, event: Column, date: str, sign: int) -> DataFrame:
    by = rows.groupBy(event.alias("event"), fn.col(date).alias("date"))
    return by.agg((fn.count("*") * sign).alias("rows"))


def refresh(lake: Lake, rows: DataFrame, schemas: Sequence[EventSchema]) -> tuple[int, int]:
    """Add rows to the typed tables, or to quarantine, each once; ``catch_up`` has created the tables.

    Args:
        lake: the lake.
        rows: rows that silver has.
        schemas: the same as for ``catch_up``.

    Returns:
        The number of rows added to typed tables, and to quarantine.
    """
    names = [schema.name for schema in schemas]
    judge = fn.udf(Judge({schema.name: schema.document for schema in schemas}), RETURNS, useArrow=False)
    own = [f"_{name}" for name in _OF_MESSAGE]
    judged = rows.where(_event().isin(names)).select(
        *(fn.col(name).alias(f"_{name}") for name in _OF_MESSAGE),
        _event().alias("event"),
        judge(_event(), "payload").alias("judged"),
    )
    judged.persist()  # for validation takes longer than all else
    try:
        ends = [
            end(name).alias(f"{end.__name__}{name}") for name in ("_seq", "_date") for end in (fn.min, fn.max)
        ]
        refused = fn.count("judged.reason").alias("refused")
        found = judged.groupBy("event").agg(*ends, refused, fn.count("*").alias("rows")).collect()
        added = 0
        for row in found:
            if row["refused"] == row["rows"]:
                continue
            table = f"typed/{row['event']}"
            there = [field for field in lake.read(table).schema if not field.name.startswith("_")]
            columns = fn.from_json("judged.value", types.StructType(there), {"mode": "FAILFAST"})
            valid = judged.where((fn.col("event") == row["event"]) & fn.col("judged.reason").isNull())
            valid = valid.select(*own, columns.alias("columns"), fn.col("judged.rescued").alias("_rescued"))
            valid = valid.select(*own, "columns.*", "_rescued")
            added += repeated(partial(lake.insert_new, table, valid, _same([row])))
        if not sum(row["refused"] for row in found):
            return added, 0
        wrong = judged.where("judged.reason IS NOT NULL").select(*own, "event", "judged.reason")
        return added, repeated(partial(lake.insert_new, QUARANTINE.name, wrong, _same(found)))
    finally:
        judged.unpersist()


def _same(rows: Sequence[Row]) -> str:
    """Return the condition of the same row in a table, with the bounds of rows for its statistics."""
    return (
        "t._stream = s._stream AND t._incarnation = s._incarnation AND t._seq = s._seq"
        f" AND t._seq BETWEEN {min(row['min_seq'] for row in rows)} AND {max(row['max_seq'] for row in rows)}"
        f" AND t._date BETWEEN DATE'{min(row['min_date'] for row in rows)}'"
        f" AND DATE'{max(row['max_date'] for row in rows)}'"
    )


def _alter(lake: Lake, schema: EventSchema) -> None:
    """Create the table of a schema, or add its new properties as columns."""
    table = typed_table(schema.name)
    lake.create(table)
    there = {field.name.lower(): field for field in lake.read(table.name).schema}
    grows = False
    for field in schema.columns:
        before = there.get(field.name.lower(), field)
        merged = _merged(before.dataType, field.dataType)
        if merged is None or before.name != field.name:
            raise PipelineError(
                f"{schema.name}.json: {field.name} is {field.dataType.simpleString()}, but {before.name} is "
                f"{before.dataType.simpleString()} in {lake.table(table.name)}; keep its type, or describe "
                "another version of the event"
            )
        grows = grows or before is field or merged != before.dataType
    if grows:
        empty = lake.spark.createDataFrame([], schema.columns)
        empty.writeTo(lake.table(table.name)).option("mergeSchema", "true").append()


def _merged(before: types.DataType, now: types.DataType) -> types.DataType | None:
    """Return a column's type with the properties of both types; None: they contradict each other."""
    if isinstance(before, types.ArrayType) and isinstance(now, types.ArrayType):
        element = _merged(before.elementType, now.elementType)
        return element and types.ArrayType(element, before.containsNull)
    if isinstance(before, types.StructType) and isinstance(now, types.StructType):
        merged: dict[str, types.DataType | None] = {field.name: field.dataType for field in before}
        for field in now:
            known = merged.get(field.name)
            merged[field.name] = field.dataType if known is None else _merged(known, field.dataType)
        if None in merged.values() or len({name.lower() for name in merged}) < len(merged):
            return None
        return types.StructType([types.StructField(name, each) for name, each in merged.items() if each])
    return before if before == now else None

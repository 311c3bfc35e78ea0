"""Read JSON Schemas of events, and map them to the columns of typed tables.

| JSON Schema                | column                      |
|----------------------------|-----------------------------|
| string                     | string                      |
| string, format date-time   | timestamp in microseconds   |
| integer, number, boolean   | bigint, double, boolean     |
| object with properties     | struct of its properties    |
| array with a type of items | array                       |
| anything else              | string that contains JSON   |
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from sea_mq_worker.errors import ContractError
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.schemas import SILVER, TableSchema
from sea_mq_worker.producer.schemas import read_json_schemas

_BAD_NAME = re.compile(r"^_|[ ,;{}()\n\t=]")
_SIMPLE = {
    "string": pa.string(),
    "date-time": pa.timestamp("us", tz="UTC"),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_INTEGERS = range(-(2**63), 2**63)

_OF_MESSAGE = (
    *("message_id", "aggregate", "occurred_at", "published_at"),
    *("stream", "incarnation", "seq", "context", "date"),
)
"""Columns of silver that all typed tables have, with an underscore before their names."""


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The JSON Schema of a version of an event type.

    Attributes:
        name: type and version, such as order.paid.v1.
        document: the JSON Schema.
        table: the typed table; ``_rescued`` is the JSON of values that the schema does not name.
    """

    name: str
    document: Mapping[str, Any]
    table: TableSchema


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
    if _kind(document) != "object":
        raise PipelineError(f"{path}: describe an object with properties")
    wrong = [*filter(_BAD_NAME.search, document["properties"]), *_names_alike(document)]
    if wrong:
        raise PipelineError(
            f"{path}: {', '.join(wrong)}: cannot be names of columns; rename these properties"
        )
    return EventSchema(name, document, typed_table(name, *_type(document), pa.field("_rescued", pa.string())))


def typed_table(name: str, *columns: pa.Field) -> TableSchema:
    """Return the table of messages with further columns."""
    of_message = [SILVER.schema.field(column).with_name(f"_{column}") for column in _OF_MESSAGE]
    return TableSchema(
        name=f"typed/{name}",
        schema=pa.schema([*of_message, *columns]),
        partition_by=("_date",),
        ranged=("_message_id", "_published_at", "_seq"),
    )


def _names_alike(schema: Any) -> Iterator[str]:
    """Return the properties, nested ones too, that have the same name as another one but for the case."""
    kind = _kind(schema)
    if kind == "array":
        yield from _names_alike(schema["items"])
    elif kind == "object":
        counts = Counter(map(str.lower, schema["properties"]))
        for name, each in schema["properties"].items():
            if counts[name.lower()] > 1:
                yield name
            yield from _names_alike(each)


def split(value: Any, schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a valid value as its column has it, and its parts that the schema does not name; None: no parts.

    Raises:
        ValueError: the column cannot contain the value.
        OverflowError: the same, of a number or a time.
    """
    if value is None:
        return None, None
    kind = _kind(schema)
    if kind == "object":
        parts = {name: split(value.get(name), each) for name, each in schema["properties"].items()}
        rest = {name: each for name, each in value.items() if name not in parts}
        rest |= {name: other for name, (_, other) in parts.items() if other is not None}
        return {name: each for name, (each, _) in parts.items()}, rest or None
    if kind == "array":
        pairs = [split(each, schema["items"]) for each in value]
        others = [other for _, other in pairs]
        return [each for each, _ in pairs], others if any(other is not None for other in others) else None
    return _simple(value, kind), None


def _simple(value: Any, kind: str | None) -> Any:
    if kind is None:
        return json.dumps(value, ensure_ascii=False)
    if kind == "date-time":
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return moment.astimezone(UTC)
    if kind == "number":
        return float(value)
    if kind == "integer" and int(value) not in _INTEGERS:
        raise ValueError(f"{value} does not fit 64 bits")
    return int(value) if kind == "integer" else value


def _type(schema: Mapping[str, Any]) -> pa.DataType:
    kind = _kind(schema)
    if kind == "object":
        return pa.struct([(name, _type(each)) for name, each in schema["properties"].items()])
    if kind == "array":
        return pa.list_(_type(schema["items"]))
    return _SIMPLE.get(kind or "", pa.string())


def _kind(schema: Any) -> str | None:
    """Return the type that decides on the column; None: the column contains JSON."""
    if not isinstance(schema, Mapping):
        return None
    given = schema.get("type")
    kinds = [kind for kind in (given if isinstance(given, list) else [given]) if kind != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "string" and schema.get("format") == "date-time":
        return "date-time"
    has_no_columns = kind == "object" and not schema.get("properties")
    has_no_one_type = kind == "array" and ("items" not in schema or "prefixItems" in schema)
    return None if has_no_columns or has_no_one_type else kind

"""Events become rows of typed tables by their JSON Schema, each once, or rows of quarantine."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.typed.event_schemas import load_event_schemas
from sea_mq_worker.pipeline.jobs.typed.typed_tables import QUARANTINE
from sea_mq_worker.pipeline.lake.table import LakeTable
from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import DiedError, Lake

ALIKE = {"type": "object", "properties": {"a": {}, "A": {}}}
NESTED = {"type": "object", "properties": {"of": {"type": "array", "items": ALIKE}}}
ORDER = {
    "type": "object",
    "required": ["total"],
    "properties": {
        "total": {"type": "number", "minimum": 0, "multipleOf": 0.01},
        "weight": {"type": "number"},
        "count": {"type": "integer"},
        "paid": {"type": ["boolean", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "extra": {"type": ["string", "integer"]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    },
}
VALID = {
    "total": 19.99,
    "weight": 2**53 + 1,
    "count": 2,
    "paid": None,
    "at": "2026-01-02T03:04:05.5+01:00",
    "to": {"city": "Łódź", "zip": "1"},
    "lines": [{"sku": "a"}, {"sku": "b", "n": 1}],
    "extra": 7,
    "pair": [1, "a"],
    "more": True,
}
COLUMNS = {
    "total": 19.99,
    "weight": 2.0**53,
    "count": 2,
    "paid": None,
    "at": datetime(2026, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC),
    "to": {"city": "Łódź"},
    "lines": [{"sku": "a"}, {"sku": "b"}],
    "extra": "7",
    "pair": '[1, "a"]',
}
RESCUED = {"more": True, "to": {"zip": "1"}, "lines": [None, {"n": 1}]}


def schema_file(folder: Path, document: Any, name: str = "order.paid.v1.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return folder


async def store(stream: Stream, *bodies: Any, event: str = "order.paid.v1") -> None:
    written = (body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies)
    await stream.publish(Published(f"{stream.name}.event.{event}", {}, body) for body in written)


def rows_of(lake: Lake, name: str = "order.paid.v1") -> list[dict[str, Any]]:
    return DeltaTable(lake.folder / "typed" / name).to_pyarrow_table().to_pylist()


async def test_payloads_become_columns_and_violations_go_to_quarantine(
    lake: Lake, stream: Stream, tmp_path: Path
) -> None:
    schemas = load_event_schemas(schema_file(tmp_path / "schemas", ORDER))
    wrong = [
        {"total": -1},
        {"count": 1},
        b"\xff",
        b"{",
        {"total": 1, "count": 2**63},
        {"total": 1, "at": "x"},
        {"total": 1, "at": "9999-12-31T23:59:59-12:00"},
        {"total": 1, "weight": 10**400},
        {"total": 1, "more": "\ud800"},
        b'{"total": 1, "more": %s%s}' % (b"[" * 5000, b"]" * 5000),
    ]
    await store(stream, VALID, *wrong)
    await store(stream, {"any": 1}, event="order.paid.v2")

    first = await lake.land(stream.name, event_schemas=schemas)
    again = await lake.land(stream.name, event_schemas=schemas)

    assert (first.typed, first.violations, again.typed, again.violations) == (1, len(wrong), 0, 0)
    [row] = rows_of(lake)
    assert {name: row[name] for name in COLUMNS} == COLUMNS
    assert json.loads(row["_rescued"]) == RESCUED
    assert (row["_seq"], row["_stream"]) == (1, stream.name)
    refused = {each["_seq"]: each["reason"] for each in rows_of(lake, "quarantine")}
    assert sorted(refused) == list(range(2, 2 + len(wrong)))
    assert refused[2] == "$.total: -1 is less than the minimum of 0"
    assert refused[4] == "the body is not UTF-8"


async def test_an_added_property_becomes_a_column_and_a_changed_type_is_refused(
    lake: Lake, stream: Stream, tmp_path: Path
) -> None:
    first = {"type": ["object", "null"], "properties": {"a": {"type": "string"}}}
    folder = schema_file(tmp_path / "schemas", first)
    await store(stream, {"a": "x", "b": 1}, None)
    await lake.land(stream.name, event_schemas=load_event_schemas(folder))

    more = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    await store(stream, {"a": "y", "b": 2})
    await lake.land(stream.name, event_schemas=load_event_schemas(schema_file(folder, more)))

    assert [(row["a"], row["b"]) for row in sorted(rows_of(lake), key=lambda row: row["_seq"])] == [
        ("x", None), (None, None), ("y", 2)
    ]  # fmt: skip
    other = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with pytest.raises(PipelineError, match=r"order\.paid\.v1\.json: a is .*long.*string.*describe another"):
        await lake.land(stream.name, event_schemas=load_event_schemas(schema_file(folder, other)))


async def test_a_schema_that_comes_later_takes_earlier_events(
    lake: Lake, stream: Stream, tmp_path: Path
) -> None:
    folder = schema_file(tmp_path / "schemas", ORDER)
    await store(stream, VALID, {"total": -1})
    await store(stream, {"n": 1}, event="user.made.v1")
    await lake.land(stream.name, event_schemas=load_event_schemas(folder))
    await store(stream, {"total": -2})
    user = {"type": "object", "properties": {"n": {"type": "integer"}}}

    await lake.land(
        stream.name, event_schemas=load_event_schemas(schema_file(folder, user, name="user.made.v1.json"))
    )

    assert [row["n"] for row in rows_of(lake, "user.made.v1")] == [1]
    assert (len(rows_of(lake)), len(rows_of(lake, "quarantine"))) == (1, 2), "earlier rows are not repeated"


@pytest.mark.crash
@pytest.mark.parametrize("table", ["typed/order.paid.v1", QUARANTINE.name])
async def test_a_run_that_died_before_a_commit_adds_each_row_once_later(
    lake: Lake, stream: Stream, tmp_path: Path, table: str
) -> None:
    schemas = load_event_schemas(schema_file(tmp_path / "schemas", ORDER))
    await store(stream, VALID, {"total": -1})
    commit = LakeTable.commit

    def die(self: LakeTable, *given: Any, **options: Any) -> bool:
        if self.table_schema.name == table:
            raise DiedError
        return commit(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTable, "commit", die)
        with pytest.raises(DiedError):
            await lake.land(stream.name, event_schemas=schemas)
    await store(stream, VALID, {"total": -2})
    await lake.land(stream.name, event_schemas=schemas)

    assert sorted(row["_seq"] for row in rows_of(lake)) == [1, 3]
    assert sorted(row["_seq"] for row in rows_of(lake, "quarantine")) == [2, 4]


@pytest.mark.parametrize(
    ("name", "document", "text"),
    [
        ("order.json", ORDER, "rename it to"),
        ("a.v1.json", {"type": "array"}, "describe an object"),
        ("a.v1.json", {"type": "object", "properties": {"a b": {}}}, "a b: cannot be names of columns"),
        ("a.v1.json", ALIKE, "a, A: cannot be names"),
        ("a.v1.json", NESTED, "a, A: cannot be names"),
        ("a.v1.json", {"type": 7}, "is no JSON Schema"),
        ("a.v1.json", {"properties": {"a": {"$ref": "b.json"}}}, r"\$ref b\.json does not lead into this"),
    ],
)
def test_a_file_that_makes_no_table_is_refused_by_its_name(
    name: str, document: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=f"{name}: .*{text}"):
        load_event_schemas(schema_file(tmp_path, document, name))


def test_a_folder_without_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="contains no files"):
        load_event_schemas(tmp_path)

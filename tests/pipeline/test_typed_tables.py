"""Events become rows of typed tables by their JSON Schema, each once, or rows of quarantine."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.typed import EventSchema, catch_up, load_event_schemas, refresh
from sea_mq_worker.pipeline.lake import SILVER, Lake
from sea_mq_worker.pipeline.payloads import Judge

ALIKE = {"type": "object", "properties": {"a": {}, "A": {}}}
FORBIDDEN = [" ", ",", ";", "{", "}", "(", ")", "\n", "\t", "=", "`"]
ORDER = {
    "type": "object",
    "required": ["total"],
    "properties": {
        "total": {"type": "number", "minimum": 0, "multipleOf": 0.01},
        "weight": {"type": "number"},
        "count": {"type": "integer"},
        "paid": {"type": ["boolean", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "to": {"type": "object", "properties": {"city": {"type": "string"}, "x.y": {"type": "integer"}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "extra": {"type": ["string", "integer"]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    },
}
VALID = """{"total": 19.99, "weight": 9007199254740993, "count": 9007199254740993.0, "paid": null,
 "at": "2026-01-02T03:04:05.5+01:00", "to": {"city": "Łódź", "zip": "1", "x.y": 3},
 "lines": [{"sku": "a"}, {"sku": "b", "n": 1e400}], "extra": 7, "pair": [1.0, "a"], "more": 0.1000}"""
COLUMNS = {
    "total": 19.99,
    "weight": 2.0**53,
    "count": 2**53 + 1,
    "paid": None,
    "to": ("Łódź", 3),
    "lines": [("a",), ("b",)],
    "extra": "7",
    "pair": '[1.0, "a"]',
    "_rescued": '{"more": 0.1000, "to": {"zip": "1"}, "lines": [null, {"n": 1e400}]}',
}
WRONG = [
    '{"total": -1}',
    '{"count": 1}',
    None,
    "{",
    '{"total": 1, "count": 9223372036854775808}',
    '{"total": 1, "at": "9999-12-31T23:59:59-12:00"}',
    '{"total": 1, "weight": 1e400}',
    '{"total": 1, "more": "\\ud800"}',
    f'{{"total": 1, "more": {"[" * 5000}{"]" * 5000}}}',
    '{"total": 1, "more": NaN}',
]
DAY = date(2026, 1, 1)


def schema_file(folder: Path, document: Any, name: str = "order.paid.v1.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return folder


def schemas_of(folder: Path, **documents: Any) -> tuple[EventSchema, ...]:
    for name, document in documents.items():
        schema_file(folder, document, f"{name}.v1.json")
    return load_event_schemas(folder)


class World:
    """A lake whose silver has events of given payloads, with sequences from 1 on."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.lake = Lake(spark, str(folder / "lake ü%20"))
        self.lake.create(SILVER)
        self._seq = 0

    def add(self, event: str, *payloads: str | None, day: date = DAY) -> DataFrame:
        """Add events to silver, and return them as a batch."""
        kind, _, version = event.rpartition(".v")
        at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        rows = []
        for payload in payloads:
            self._seq += 1
            rows.append((str(self._seq), kind, int(version), at, payload, "S", "i", self._seq, "c", day))
        columns = (
            "message_id STRING, event_type STRING, event_version INT, published_at TIMESTAMP, payload STRING"
        )
        columns += ", stream STRING, incarnation STRING, seq BIGINT, context STRING, date DATE"
        batch = self.lake.spark.createDataFrame(rows, columns)
        empty = self.lake.read(SILVER.name).limit(0)
        batch = empty.unionByName(batch, allowMissingColumns=True)
        batch.writeTo(self.lake.table(SILVER.name)).append()
        return batch

    def rows(self, name: str) -> list[Any]:
        return self.lake.read(f"typed/{name}").orderBy("_seq").collect()

    def seqs(self, name: str) -> list[int]:
        return [row["_seq"] for row in self.rows(name)]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def test_payloads_become_columns_or_go_to_quarantine_each_once(world: World, tmp_path: Path) -> None:
    schemas = schemas_of(tmp_path / "schemas", **{"order.paid": ORDER})
    assert catch_up(world.lake, schemas) == (0, 0)
    batch = world.add("order.paid.v1", VALID, *WRONG)
    other = world.add("order.paid.v2", "{}")

    first = refresh(world.lake, batch.union(other), schemas)
    again = refresh(world.lake, batch, schemas)
    caught_up = catch_up(world.lake, schemas)

    assert (first, again, caught_up) == ((1, len(WRONG)), (0, 0), (0, 0))
    [row] = world.rows("order.paid.v1")
    assert {name: row[name] for name in COLUMNS} == COLUMNS
    assert row["at"].astimezone(UTC) == datetime(2026, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC)
    assert (row["_seq"], row["_stream"], row["_message_id"]) == (1, "S", "1")
    reasons = [each["reason"] for each in world.rows("quarantine")]
    assert world.seqs("quarantine") == list(range(2, 2 + len(WRONG)))
    assert reasons[0] == "$.total: -1 is less than the minimum of 0"
    assert (reasons[2], reasons[6]) == ("the body is not UTF-8", "1E+400 does not fit a double")


def test_events_from_before_a_schema_or_a_killed_run_are_caught_up(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    orders = schemas_of(folder, **{"order.paid": ORDER})
    catch_up(world.lake, orders)
    refresh(world.lake, world.add("order.paid.v1", '{"total": 1}', '{"total": -1}'), orders)
    world.add("order.paid.v1", '{"total": -2}', '{"total": 2}', day=date(2026, 1, 3))
    world.add("user.made.v1", '{"n": 1}')

    all_schemas = schemas_of(
        folder, **{"user.made": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    )
    assert catch_up(world.lake, all_schemas) == (2, 1)

    assert [row["n"] for row in world.rows("user.made.v1")] == [1]
    assert (world.seqs("order.paid.v1"), world.seqs("quarantine")) == ([1, 4], [2, 3])


@pytest.mark.long
def test_an_added_property_becomes_a_column_and_a_changed_type_is_refused(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "schemas"

    def schemas(**properties: Any) -> tuple[EventSchema, ...]:
        return schemas_of(folder, a={"type": ["object", "null"], "properties": properties})

    def inner(**properties: Any) -> Any:
        each = {"type": "object", "properties": properties}
        return {"of": each, "all": {"type": "array", "items": each}}

    text, number = {"type": "string"}, {"type": "integer"}
    before = schemas(a=text, gone=text, **inner(x=text))
    catch_up(world.lake, before)
    refresh(world.lake, world.add("a.v1", '{"a": "x", "b": 1}', "null"), before)

    more = schemas(a=text, b=number, **inner(x=text, y=number))
    catch_up(world.lake, more)
    each = '{"x": "z", "y": 3}'
    batch = world.add("a.v1", f'{{"a": "y", "b": 2, "gone": "g", "of": {each}, "all": [{each}]}}')
    refresh(world.lake, batch, more)

    assert [(row.a, row.b, row.of, row.all) for row in world.rows("a.v1")] == [
        ("x", None, None, None), (None, None, None, None), ("y", 2, ("z", 3), [("z", 3)])
    ]  # fmt: skip
    assert [row["_rescued"] for row in world.rows("a.v1")] == ['{"b": 1}', None, '{"gone": "g"}']
    for changed, name in (
        ({"a": number}, "a is bigint, but a is string"),
        ({"A": text}, "A is string, but a is"),
    ):
        with pytest.raises(
            PipelineError, match=rf"a\.v1\.json: {name}.*; keep its type, or describe another"
        ):
            catch_up(world.lake, schemas(**changed))
    with pytest.raises(PipelineError, match="of is struct<x:bigint>, but of is struct<x:string,y:bigint>"):
        catch_up(world.lake, schemas(**inner(x=number)))


def judged(schema: Any) -> Callable[[str], Any]:
    judge = Judge({"a.v1": {"type": "object", "properties": {"a": schema}}})

    def value_of(text: str) -> Any:
        reason, value, _ = judge("a.v1", f'{{"a": {text}}}')
        return "violation" if reason else json.loads(value or "")["a"]

    return value_of


def both(value_of: Callable[[str], Any], cases: Iterable[tuple[str, Any]]) -> tuple[list[Any], list[Any]]:
    return [value_of(text) for text, _ in cases], [wanted for _, wanted in cases]


def test_a_number_that_its_column_would_change_is_a_violation() -> None:
    integers = [
        ("9007199254740993.0", 9007199254740993), ("-9223372036854775808.0", -(2**63)), ("1e3", 1000),
        ("0e9", 0), ("9223372036854775807.1", "violation"), ("9223372036854775808.0", "violation"),
        ("2.0000000000000000001", "violation"), ("1e400", "violation"), ("1e-400", "violation"),
        ("1e-99999999999999999999", "violation"), ("1e999999999", "violation"), ("true", "violation"),
        ("9" * 5000, "violation"),
    ]  # fmt: skip
    numbers = [
        ("1e400", "violation"), ("-1e400", "violation"), ("1e-400", "violation"),
        ("1" + "0" * 400, "violation"), ("0.1", 0.1),
        ("0.0e-400", 0.0), ("5e-324", 5e-324),
        ("1.7976931348623157e308", 1.7976931348623157e308),
    ]  # fmt: skip
    for kind, cases in ("integer", integers), ("number", numbers):
        found, wanted = both(judged({"type": kind}), cases)
        assert found == wanted


def test_a_time_is_one_of_rfc_3339() -> None:
    cases = [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02t03:04:05.1234567z", "2026-01-02T03:04:05.123456+00:00"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999+00:00"),
        ("2017-01-01T01:29:60.5+01:30", "2016-12-31T23:59:59.999999+00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00"),
    ]
    wrong = [
        "2026-W01-5T03:04:05Z", "20260102T030405Z", "2026-01-02", "2026-01-02T03:04:05",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04Z", "2026-01-02T24:00:00Z", "2026-02-30T00:00:00Z", "2026-01-02T03:04:05+0100",
        "2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:60Z", "0000-01-01T00:00:00Z",
        "2026-01-02T03:04:05Z\\n", "٢٠٢٦-01-02T03:04:05Z", "0001-01-01T00:00:00+01:00",
    ]  # fmt: skip
    value_of = judged({"type": "string", "format": "date-time"})
    found, wanted = both(
        lambda text: value_of(f'"{text}"'), [*cases, *((text, "violation") for text in wrong)]
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "document", "text"),
    [
        ("order.json", ORDER, "rename it to"),
        ("a.v1.json", {"type": "array"}, "describe an object"),
        ("a.v1.json", {"type": "object", "properties": {"_a": {}}}, "_a: cannot be names of columns"),
        ("a.v1.json", ALIKE, "a, A: cannot be names"),
        ("a.v1.json", {"type": 7}, "is no JSON Schema"),
        ("a.v1.json", {"properties": {"a": {"$ref": "b.json"}}}, r"\$ref b\.json does not lead into this"),
    ],
)
def test_a_file_that_makes_no_table_is_refused_by_its_name(
    name: str, document: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=f"{name}: .*{text}"):
        load_event_schemas(schema_file(tmp_path, document, name))


def test_a_nested_name_that_delta_forbids_is_refused(tmp_path: Path) -> None:
    for name in ["", *FORBIDDEN, *(f"a{each}b" for each in FORBIDDEN)]:
        nested = {"type": "array", "items": {"type": "object", "properties": {name: {"type": "string"}}}}
        folder = schema_file(tmp_path / "s", {"type": "object", "properties": {"of": nested}})
        with pytest.raises(PipelineError, match="cannot be names of columns") as refused:
            load_event_schemas(folder)
        assert (repr(name) if not name or not name.isprintable() else name) in str(refused.value)
    nested = {"type": "array", "items": ALIKE}
    with pytest.raises(PipelineError, match="a, A: cannot be names"):
        load_event_schemas(schema_file(tmp_path / "s", {"type": "object", "properties": {"of": nested}}))


def test_a_folder_without_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="contains no files"):
        load_event_schemas(tmp_path)

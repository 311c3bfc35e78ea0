"""Contracts between contexts: the AsyncAPI document, schemas of payloads, and their compatible changes."""

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest

from sea_mq_worker.errors import ContractError, InvalidEventError
from sea_mq_worker.producer.asyncapi import asyncapi_document
from sea_mq_worker.producer.schemas import EventSchemas, incompatible_changes
from tests.support.builders import enqueueable as event
from tests.support.documents import ROOT

OFFICIAL = ROOT / "tests" / "support" / "asyncapi-3.0.0.json.gz"
"""The JSON Schema of AsyncAPI 3.0.0, by which its tools validate (AsyncAPI Initiative, Apache-2.0)."""

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/order.paid.v1",
    "type": "object",
    "required": ["order"],
    "properties": {
        "order": {"type": "integer", "minimum": 1},
        "total": {"type": "number", "multipleOf": 0.01},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
}


def document(**changes: Any) -> dict[str, Any]:
    return asyncapi_document(
        "shop",
        sent={"shop.event.order.paid.v1", "shop.event.order/sent.v2", "shop.event.order|sent.v2"},
        received={"payments.event.payment.received.v2"},
        schemas={"order.paid.v1": ORDER, "order.lost.v1": {"type": "object"}, **changes},
    )


def invalid(found: Mapping[str, Any]) -> list[str]:
    official = jsonschema.Draft7Validator(json.loads(gzip.decompress(OFFICIAL.read_bytes())))
    return [error.json_path for error in official.iter_errors(found)]


def test_the_document_is_valid_by_the_official_schema() -> None:
    assert invalid(document()) == []
    assert invalid(document() | {"operations": {"x": {"action": "shout"}}}) != []


def test_the_document_has_seen_received_and_declared_types() -> None:
    found = document(**{"payment.received.v2": {"type": "object", "title": "theirs"}})

    assert {key: channel["address"] for key, channel in found["channels"].items()} == {
        "shop.event.order.paid.v1": "shop.event.order.paid.v1",
        "shop.event.order_2f_sent.v2": "shop.event.order/sent.v2",
        "shop.event.order_7c_sent.v2": "shop.event.order|sent.v2",
        "shop.event.order.lost.v1": "shop.event.order.lost.v1",
        "payments.event.payment.received.v2": "payments.event.payment.received.v2",
    }
    actions = {name: operation["action"] for name, operation in found["operations"].items()}
    assert actions["send.shop.event.order.lost.v1"] == "send"
    assert actions["receive.payments.event.payment.received.v2"] == "receive"
    messages = found["components"]["messages"]
    assert messages["payments.event.payment.received.v2"]["payload"]["schema"]["title"] == "theirs"
    assert messages["shop.event.order.paid.v1"]["payload"]["schema"] == ORDER
    assert "payload" not in messages["shop.event.order_2f_sent.v2"]


SKU = ("properties", "lines", "items", "properties", "sku")
CHANGES: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (("title",), "An order", ""),
    (("properties", "note"), {"type": "string"}, ""),
    (("properties", "order", "description"), "its number", ""),
    ((*SKU[:-1], "amount"), {"type": "integer"}, ""),
    (("required",), [], "has changed"),
    (("required",), ["order", "note"], "has changed"),
    (("required",), [{}], "has changed"),
    (("required",), 5, "has changed"),
    (SKU[:-1], {}, "sku is missing"),
    (("properties", "order", "type"), "string", "has changed"),
    (("properties", "order", "minimum"), 0, "has changed"),
    (("additionalProperties",), False, "has changed"),
    ((*SKU, "enum"), ["a"], "has changed"),
)


@pytest.mark.parametrize(("path", "value", "reported"), CHANGES)
def test_a_change_is_reported_with_its_place_unless_it_is_compatible(
    path: tuple[str, ...], value: Any, reported: str
) -> None:
    """Annotations and optional properties are."""
    place = "/".join(path) + ("/" if reported.endswith("missing") else " ")
    found = incompatible_changes({"order.paid.v1": ORDER}, {"order.paid.v1": changed(path, value)})
    assert found == ([f"order.paid.v1: /{place}{reported}"] if reported else [])


def test_a_new_version_is_compatible_and_a_missing_one_is_not() -> None:
    closed = {"type": "object", "additionalProperties": False}
    opened = closed | {"properties": {"a": {}}}

    assert incompatible_changes({}, {"order.paid.v2": ORDER}) == []
    assert incompatible_changes({"order.paid.v1": ORDER}, {}) == ["order.paid.v1: the schema is missing"]
    [problem] = incompatible_changes({"x.v1": closed}, {"x.v1": opened})
    assert problem.startswith("x.v1: /properties/a is new, and additionalProperties forbids it")


def changed(path: tuple[str, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(ORDER))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return copy


class Order(pydantic.BaseModel):
    order: int


@pytest.fixture
def schemas(tmp_path: Path) -> EventSchemas:
    (tmp_path / "order.paid.v1.json").write_text(json.dumps(ORDER))
    return EventSchemas(tmp_path)


@pytest.mark.parametrize("payload", [{"order": 7, "total": 19.99}, b'{"order": 7}', Order(order=7)])
def test_a_payload_that_fits_its_schema_gets_the_schemas_id(schemas: EventSchemas, payload: Any) -> None:
    [found] = schemas.checked(event(event_type="order.paid", payload=payload))

    assert (found.payload, found.dataschema) == (payload, "https://example.com/order.paid.v1")


def test_an_event_that_violates_its_schema_or_has_none_is_refused_without_its_values(
    schemas: EventSchemas,
) -> None:
    violates = r"the payload of order.paid.v1 violates `minimum` at \$\.order$"
    with pytest.raises(InvalidEventError, match=violates):
        schemas.checked(event(event_type="order.paid", payload={"order": 0}))
    with pytest.raises(InvalidEventError, match=r"order\.paid\.v2 has no schema"):
        schemas.checked(event(event_type="order.paid", event_version=2, payload={"order": 7}))


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("order.paid.v1.json", '{"type": "thing"}', "is no JSON Schema"),
        ("order.paid.v1.json", '{"items": {"$ref": "b"}}', r"\$ref b does not lead into this file"),
        ("order.paid.v1.json", "[]", "is no JSON object"),
        ("order.paid.v1.json", '{"$schema": 5}', r"is no JSON object, or its \$schema is no text"),
        ("order.paid.v1.json", "{", "cannot be read as JSON"),
        ("order.paid.v1.json", "[" * 100_000, "cannot be read as JSON"),
        ("order.json", "{}", "rename it"),
    ],
)
def test_a_wrong_file_of_schemas_is_named(tmp_path: Path, name: str, text: str, reported: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ContractError, match=f"{name}: {reported}"):
        EventSchemas(tmp_path)
    with pytest.raises(ContractError, match="No such file"):
        EventSchemas(tmp_path / "none")


def test_references_within_a_schema_and_to_a_meta_schema_are_followed(tmp_path: Path) -> None:
    inside = {"$id": "https://example.com/c", "$defs": {"d": {"$anchor": "d"}}, "$ref": "#d"}
    document = {
        "properties": {
            "order": {"$ref": "#/$defs/positive"},
            "by_id": {"$ref": "https://example.com/c"},
            "part": {"$ref": "#"},
            "schema": {"$ref": "http://json-schema.org/draft-07/schema#"},
        },
        "$defs": {"positive": {"minimum": 1}, "c": inside},
    }
    (tmp_path / "order.paid.v1.json").write_text(json.dumps(document))
    schemas = EventSchemas(tmp_path)
    with pytest.raises(InvalidEventError, match="violates `minimum`"):
        schemas.checked(event(event_type="order.paid", payload={"order": 0}))
    folded = '{"part": ' * 600 + "{}" + "}" * 600
    with pytest.raises(InvalidEventError, match="is nested too deeply"):
        schemas.checked(event(event_type="order.paid", payload=folded))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ContractError, match=r"pip install '\.\[schemas\]'"):
        EventSchemas(Path())

"""Validate payloads by JSON Schemas, and give JSON with exactly the types of a typed table's columns.

This works on the executors. A value that its column cannot contain violates the schema, too: an integer of
more than 64 bits, a number that a double makes infinite or zero, what is no time of RFC 3339.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from jsonschema.exceptions import best_match

from sea_mq_worker.producer.schemas import schema_validator

RETURNS = "reason STRING, value STRING, rescued STRING"
"""The columns of a judgement."""

_REASON_MAX = 1000
"""Characters; a message of the validator may repeat the whole payload."""

_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]((?:[01]\d|2[0-3]):[0-5]\d):([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


def column_kind(schema: Any) -> str | None:
    """Return the type of a JSON Schema that decides on the column; None: the column contains JSON."""
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


@dataclass(frozen=True)
class Judge:
    """Judges payloads by the JSON Schemas of their events; each task has one."""

    documents: Mapping[str, Any]

    @cached_property
    def _validators(self) -> Mapping[str, Any]:
        return {name: schema_validator(document) for name, document in self.documents.items()}

    def __call__(self, event: str, payload: str | None) -> tuple[str | None, str | None, str | None]:
        """Return why a payload violates its schema; or JSON of the columns, and of what else it has."""
        if payload is None:
            return "the body is not UTF-8", None, None
        try:
            value = json.loads(payload, parse_float=_Number, parse_constant=_refuse)
            if error := best_match(self._validators[event].iter_errors(value)):
                return f"{error.json_path}: {error.message}"[:_REASON_MAX], None, None
            columns, rest = _split(value, self.documents[event])
            found, rescued = json.dumps(columns or {}, ensure_ascii=False), rest and _json(rest)
            f"{found}{rescued}".encode()  # which refuses half of a surrogate pair
        except (ValueError, ArithmeticError, RecursionError) as error:
            return str(error)[:_REASON_MAX], None, None
        return None, found, rescued


class _Number(float):
    """A number with a fraction or an exponent, and its text."""

    text: str

    def __new__(cls, text: str) -> "_Number":  # noqa: PYI034 - Self cannot have the text assigned
        made = super().__new__(cls, text)
        made.text = text
        return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _split(value: Any, schema: Any) -> tuple[Any, Any]:
    """Return a valid value as its column has it, and its parts that the schema does not name; None: no parts.

    Raises:
        ValueError: the column cannot contain the value.
        ArithmeticError: the same, of a number or a time.
    """
    kind = column_kind(schema)
    if value is None:
        return None, None
    if kind == "object":
        parts = {name: _split(value.get(name), each) for name, each in schema["properties"].items()}
        rest = {name: each for name, each in value.items() if name not in parts}
        rest |= {name: other for name, (_, other) in parts.items() if other is not None}
        return {name: each for name, (each, _) in parts.items()}, rest or None
    if kind == "array":
        pairs = [_split(each, schema["items"]) for each in value]
        others = [other for _, other in pairs]
        return [each for each, _ in pairs], others if any(other is not None for other in others) else None
    if kind == "date-time":
        return _moment(value).isoformat(), None
    if kind in {"integer", "number"}:
        return _figure(value, kind), None
    return (_json(value) if kind is None else value), None


def _figure(value: int | _Number, kind: str) -> int | float:
    exact: int | Decimal = value if isinstance(value, int) else Decimal(value.text)
    if kind == "number":
        if math.isinf(value) or (exact and not float(value)):
            raise ValueError(f"{exact} does not fit a double")
        return float(value)
    if not -(2**63) <= exact < 2**63 or exact != int(exact):
        raise ValueError(f"{exact} is no integer of 64 bits")
    return int(exact)


def _moment(text: str) -> datetime:
    """Return a time of RFC 3339; a leap second becomes the last microsecond before it."""
    found = _RFC_3339.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no time of RFC 3339")
    day, minute, second, fraction, zone = found.groups(default="")
    if second == "60":
        second, fraction = "59", ".999999"
    offset = "+00:00" if zone in "zZ" else zone
    moment = datetime.fromisoformat(f"{day}T{minute}:{second}{fraction}{offset}").astimezone(UTC)
    if found[3] == "60" and (moment.hour, moment.minute) != (23, 59):
        raise ValueError(f"{text!r} is no time of RFC 3339: a leap second ends a day of UTC")
    return moment


def _json(value: Any) -> str:
    """Return JSON with each number as it was written."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(name, ensure_ascii=False)}: {_json(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    return value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)

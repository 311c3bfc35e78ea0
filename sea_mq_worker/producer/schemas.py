"""JSON Schemas of a service's events, as files ``<type>.v<version>.json`` in a folder.

``EventSchemas`` checks payloads before events are written, and needs the extra ``schemas``.
"""

import importlib.util
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from sea_mq_worker.errors import ContractError, InvalidEventError
from sea_mq_worker.producer import Event, payload_json
from sea_mq_worker.resources import files_in, install_hint

# --- Compatible changes of an event version's JSON Schema.
#
# Consumers must understand new events, and replays old ones. So within a version only annotations may
# change, and only optional properties may be added. Any other change needs another version.

_ANNOTATIONS = {"$comment", "$id", "default", "deprecated", "description", "examples", "title"}
_MISSING = object()

Schemas = Mapping[str, Any]
"""JSON Schemas by type and version, such as ``order.paid.v1``."""


def incompatible_changes(old: Schemas, new: Schemas) -> list[str]:
    """Return a line for each change that needs another version of the event; new versions are no change."""
    return [
        f"{name}: {problem}"
        for name, document in sorted(old.items())
        for problem in (_changes(document, new[name], "") if name in new else ["the schema is missing"])
    ]


def _changes(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yield the incompatible changes of a schema at a JSON pointer."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old != new:
            yield f"{path or '/'} has changed"
        return
    for keyword in sorted((old.keys() | new.keys()) - _ANNOTATIONS):
        before, after = old.get(keyword, _MISSING), new.get(keyword, _MISSING)
        if keyword == "properties" and isinstance(after, Mapping):
            yield from _changed_properties(before if isinstance(before, Mapping) else {}, old, after, path)
        elif keyword == "required":
            if _names(old) != _names(new):
                yield f"{path}/required has changed"
        elif keyword == "items" and _MISSING not in (before, after):
            yield from _changes(before, after, f"{path}/items")
        elif before != after:
            yield f"{path}/{keyword} has changed"


def _names(schema: Mapping[str, Any]) -> Any:
    """Return the required properties without their order; a value that is no list as it is."""
    required = schema.get("required", [])
    return {*map(repr, required)} if isinstance(required, list) else required


def _changed_properties(
    before: Mapping[str, Any], old: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        here = f"{path}/properties/{name}"
        if name not in after:
            yield f"{here} is missing"
        elif name in before:
            yield from _changes(before[name], after[name], here)
        elif old.get("additionalProperties", True) is not True:
            yield f"{here} is new, and additionalProperties forbids it in the old schema"


__all__ = ["EventSchemas", "read_event_schemas", "read_json_schemas"]

_STEM = re.compile(r".+\.v[1-9][0-9]*")


class EventSchemas:
    """The schemas of a folder, for events before ``enqueue``.

    Example::

        schemas = EventSchemas(Path("schemas"))
        await enqueue(connection, *schemas.checked(Event(...)))
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            ContractError: the folder or a file cannot be read, is no JSON Schema, or has another name; or the
                extra is not installed.
        """
        if importlib.util.find_spec("jsonschema") is None:
            raise ContractError(f"EventSchemas needs jsonschema: {install_hint('schemas')}")
        documents = read_json_schemas(folder)
        self._validators = {name: schema_validator(document) for name, document in documents.items()}

    def checked(self, *events: Event) -> list[Event]:
        """Return the events with the ``$id`` of their schemas as ``dataschema``.

        Raises:
            InvalidEventError: an event has no schema, or its payload violates the schema; the text names the
                place and the keyword, and no value.
        """
        return [self._checked(event) for event in events]

    def _checked(self, event: Event) -> Event:
        name = f"{event.event_type}.v{event.event_version}"
        validator = self._validators.get(name)
        if validator is None:
            raise InvalidEventError(f"INVALID_OUTBOX: {name} has no schema")
        payload = json.loads(payload_json(event.payload))
        try:
            error = next(validator.iter_errors(payload), None)
        except RecursionError:
            raise InvalidEventError(f"INVALID_OUTBOX: the payload of {name} is nested too deeply") from None
        if error:
            raise InvalidEventError(
                f"INVALID_OUTBOX: the payload of {name} violates `{error.validator}` at {error.json_path}"
            )
        return replace(event, dataschema=event.dataschema or validator.schema.get("$id"))


def read_json_schemas(folder: Path) -> Mapping[str, Any]:
    """Return what ``read_event_schemas`` does, checked; needs the extra.

    Raises:
        ContractError: as there, or a file is no JSON Schema, or a reference does not lead into its own file.
    """
    documents = read_event_schemas(folder)
    for name, document in documents.items():
        _check_schema(document, folder / f"{name}.json")
    return documents


def _check_schema(document: Mapping[str, Any], file: Path) -> None:
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - an extra
    from jsonschema.validators import validator_for  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        validator_for(document).check_schema(document)
        _resolve_references(document)
    except SchemaError as error:
        raise ContractError(f"{file}: is no JSON Schema: {error.message}") from error
    except Unresolvable as error:
        raise ContractError(f"{file}: $ref {error.ref} does not lead into this file") from error


def _resolve_references(document: Mapping[str, Any]) -> None:
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415 - an extra
    from referencing import Resource  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    root = Resource.from_contents(document, default_specification=DRAFT202012)
    found = [(root, REGISTRY.resolver_with_root(root))]
    while found:
        resource, resolver = found.pop()
        if isinstance(resource.contents, Mapping) and "$ref" in resource.contents:
            resolver.lookup(resource.contents["$ref"])
        found += [(each, resolver.in_subresource(each)) for each in resource.subresources()]


def schema_validator(document: Mapping[str, Any]) -> Any:
    """Return a validator by whose ``multipleOf`` 19.99 is a multiple of 0.01, as it is in decimal digits."""
    from jsonschema.validators import extend, validator_for  # noqa: PLC0415 - an extra

    return extend(validator_for(document), {"multipleOf": _multiple_of})(document)


def _multiple_of(validator: Any, step: float, value: Any, _: object) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - an extra

    is_finite = validator.is_type(value, "number") and abs(value) < math.inf
    if is_finite and Fraction(str(value)) % Fraction(str(step)):
        yield ValidationError(f"{value} is not a multiple of {step}")


def read_event_schemas(folder: Path) -> Mapping[str, Any]:
    """Return the schemas by type and version, such as ``order.paid.v1``.

    Raises:
        ContractError: the folder or a file cannot be read, is no JSON object, or has another name.
    """
    try:
        files = files_in(folder, ".json")
    except OSError as error:
        raise ContractError(f"{folder}: {error.strerror}") from error
    return {file.stem: _read(file) for file in files}


def _read(file: Path) -> Any:
    if not _STEM.fullmatch(file.stem):
        raise ContractError(f"{file}: rename it to <type>.v<version>.json")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("$schema", ""), str):
        raise ContractError(f"{file}: is no JSON object, or its $schema is no text")
    return document

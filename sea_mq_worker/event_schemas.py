"""JSON Schemas of a service's events, as files ``<type>.v<version>.json`` in a folder.

``EventSchemas`` checks payloads before events are written, and needs the extra ``schemas``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sea_mq_worker.domain.errors import ContractError, InvalidEventError
from sea_mq_worker.producer import Event, payload_json
from sea_mq_worker.resources import files_in, install_hint

__all__ = ["EventSchemas", "read_event_schemas"]

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
        try:
            from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - an extra
            from jsonschema.validators import validator_for  # noqa: PLC0415
        except ImportError as error:
            raise ContractError(f"EventSchemas needs jsonschema: {install_hint('schemas')}") from error
        self._validators: dict[str, Any] = {}
        for name, document in read_event_schemas(folder).items():
            kind = validator_for(document)
            try:
                kind.check_schema(document)
            except SchemaError as error:
                raise ContractError(f"{folder}/{name}.json: is no JSON Schema: {error.message}") from error
            self._validators[name] = kind(document)

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
        if error := next(validator.iter_errors(payload), None):
            raise InvalidEventError(
                f"INVALID_OUTBOX: the payload of {name} violates `{error.validator}` at {error.json_path}"
            )
        return replace(event, dataschema=event.dataschema or validator.schema.get("$id"))


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
    except (OSError, ValueError) as error:
        raise ContractError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(document, dict):
        raise ContractError(f"{file}: is no JSON object")
    return document

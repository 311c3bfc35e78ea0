"""The AsyncAPI 3 document of a context: the events that it sends and receives."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from sea_mq_worker.errors import InvalidMessageError
from sea_mq_worker.nats.headers import EVENT_HEADERS
from sea_mq_worker.nats.subjects import parse_subject

_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9_.-]")
_HEADERS = {
    "type": "object",
    "required": [header.name for header in EVENT_HEADERS if header.required],
    "properties": {
        header.name: {"type": "string", "description": header.meaning} for header in EVENT_HEADERS
    },
}
_DRAFT_07 = "application/schema+json;version=draft-07"
_FORMATS = {
    "https://json-schema.org/draft/2020-12/schema": "application/schema+json;version=2020-12",
    "https://json-schema.org/draft/2019-09/schema": "application/schema+json;version=2019-09",
}


def asyncapi_document(
    context: str, *, sent: Collection[str], received: Collection[str], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document.

    Args:
        context: the context.
        sent: subjects that the context publishes to; others than its events' are left out.
        received: subjects that it consumes.
        schemas: JSON Schemas of payloads by type and version, such as ``order.paid.v1``. A schema of no
            received type declares a sent one.
    """
    of_received = {_name(subject) for subject in received}
    declared = {f"{context}.event.{name}" for name in schemas if name not in of_received}
    actions = {subject: "send" for subject in {*sent, *declared} if _name(subject)}
    actions |= {subject: "receive" for subject in received if _name(subject)}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for subject, action in sorted(actions.items()):
        key = _key(subject)
        channels[key] = {"address": subject, "messages": {"event": _ref("components/messages", key)}}
        operations[f"{action}.{key}"] = {
            "action": action,
            "channel": _ref("channels", key),
            "messages": [_ref("channels", key, "messages/event")],
        }
        messages[key] = _message(subject, schemas)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": f"Events of the context {context}", "version": "1.0.0"},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {"headers": _HEADERS}},
    }


def _name(subject: str) -> str:
    """Return type and version of a subject; empty: it is no event's."""
    try:
        parsed = parse_subject(subject)
    except InvalidMessageError:
        return ""
    return f"{parsed.event_type}.v{parsed.event_version}"


def _key(subject: str) -> str:
    """Return a key of the document; subjects that differ have keys that differ."""
    return _NOT_IN_A_KEY.sub(lambda found: f"_{ord(found[0]):x}_", subject)


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(path)}


def _message(subject: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    name = _name(subject)
    message = {"name": name, "headers": _ref("components/schemas/headers")}
    if name not in schemas:
        return message
    schema = schemas[name]
    schema_format = _FORMATS.get(schema.get("$schema", ""), _DRAFT_07)
    return {**message, "payload": {"schemaFormat": schema_format, "schema": schema}}

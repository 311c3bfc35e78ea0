"""Compatible changes of an event version's JSON Schema.

Consumers must understand new events, and replays old ones. So within a version only annotations may change,
and only optional properties may be added. Any other change needs another version.
"""

from collections.abc import Iterator, Mapping
from typing import Any

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

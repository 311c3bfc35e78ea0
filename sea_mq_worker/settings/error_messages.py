"""Error messages of settings; they quote no value, since a value may be a secret."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

_NAME = re.compile(r"(?:[A-Za-z]+|[0-9]{1,5})(?:_+(?:[A-Za-z]+|[0-9]{1,5}))*")
_NAME_CHARACTERS_MAX = 60
_MESSAGES: Mapping[str, str] = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "extra_forbidden": "is not a known key; remove it",
    "finite_number": "expected a number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than_equal": "expected at least {ge}",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "missing": "is missing",
    "path_type": "expected a path",
    "string_type": "expected text",
}
"""Message by type of pydantic's error; any other type keeps pydantic's message."""


def unknown(name: str, known: Collection[str]) -> str:
    """Return the message for an unknown setting, with the most similar name."""
    if not _is_showable(name):
        return "one key is not a setting; its name is not shown because it may be a secret"
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{name}: there is no such setting{f'; did you mean {near[0]}?' if near else ''}"


def reason(problem: Mapping[str, Any]) -> str:
    """Return the message for one error of pydantic, with its position in a list."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if message := _MESSAGES.get(problem["type"]):
        text = message.format(**problem.get("ctx", {}))
    return ": ".join([*map(_position, problem["loc"][1:]), text])


def _position(part: str | int) -> str:
    if isinstance(part, int):
        return f"item {part + 1}"
    return part if _is_showable(part) else "a key"


def _is_showable(name: str) -> bool:
    """Return whether a name is words and short numbers, and no secret in the wrong place."""
    return len(name) <= _NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None

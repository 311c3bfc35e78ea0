"""What is wrong with a setting, in words; values are not quoted, since one may be a secret."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

_NAME = re.compile(r"[A-Za-z_]{1,60}")
_WORDS: Mapping[str, str] = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "extra_forbidden": "is not known here",
    "finite_number": "expected a number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "missing": "is missing",
    "path_type": "expected a path",
    "string_type": "expected a text",
}
"""By the type of pydantic's error; another's own message is passed on."""


def unknown(name: str, known: Collection[str]) -> str:
    """Say that there is no such setting, and which may be meant."""
    if not _NAME.fullmatch(name):
        return "there is a key that no setting has, and that is not quoted: it may be a secret"
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{name}: there is no such setting{f'; is {near[0]} meant?' if near else ''}"


def reason(problem: Mapping[str, Any]) -> str:
    """Tell what is wrong, and where in a list that is."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if words := _WORDS.get(problem["type"]):
        text = words.format(**problem.get("ctx", {}))
    return ": ".join([*map(_place, problem["loc"][1:]), text])


def _place(part: str | int) -> str:
    if isinstance(part, int):
        return f"item {part + 1}"
    return part if _NAME.fullmatch(part) else "a key"

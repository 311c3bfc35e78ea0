"""Which errors are alike: those that differ in ids and numbers alone; codes of errors are no such numbers."""

import re

_CODE = "(answered [0-9]{3}|SQLSTATE [0-9A-Z]{5})"
"""The status that the handler answered, and PostgreSQL's own number of an error."""

NUMBERS = f"{_CODE}|[0-9a-f]{{8}}-[0-9a-f-]{{27}}|[0-9]+"
r"""Each becomes ``\1#``: a code stays, with a # behind it. Read by Python and by PostgreSQL."""

MARKED = f"{_CODE}#"
r"""Each then becomes ``\1``: that # goes again."""


def mask_ids(text: str) -> str:
    """Put a # in place of each id and number that is no code."""
    return re.sub(MARKED, r"\1", re.sub(NUMBERS, r"\1#", text))

"""Group errors that differ only in ids and numbers; error codes are kept."""

import re

_CODE = "(answered [0-9]{3}|SQLSTATE [0-9A-Z]{5})"
"""HTTP status of the handler's answer, and SQLSTATE of PostgreSQL."""

NUMBERS = f"{_CODE}|[0-9a-f]{{8}}-[0-9a-f-]{{27}}|[0-9]+"
r"""Each match becomes ``\1#``: a code stays, followed by a #. Used by Python and by PostgreSQL."""

MARKED = f"{_CODE}#"
r"""Each match then becomes ``\1``, which removes that #."""


def mask_ids(text: str) -> str:
    """Replace each id, and each number that is no error code, by a #."""
    return re.sub(MARKED, r"\1", re.sub(NUMBERS, r"\1#", text))

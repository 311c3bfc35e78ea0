"""Which errors are alike: those that differ in ids and numbers alone."""

import re

NUMBERS = r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+"
"""Read by Python and by PostgreSQL."""


def without_numbers(text: str) -> str:
    """Put a # in place of each id and number."""
    return re.sub(NUMBERS, "#", text)

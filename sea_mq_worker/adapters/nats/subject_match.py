"""Matches subject wildcards: ``*`` is one token, a last ``>`` one or more."""

_REST = ">"


def covers(pattern: str, subject: str) -> bool:
    """Return whether every subject that ``subject``, itself a pattern, matches is matched by ``pattern``."""
    wide, narrow = pattern.split("."), subject.split(".")
    for place, token in enumerate(wide):
        if token == _REST:
            return len(narrow) > place
        if place >= len(narrow) or narrow[place] == _REST:
            return False
        if token not in {"*", narrow[place]}:
            return False
    return len(wide) == len(narrow)

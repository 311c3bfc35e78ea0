"""Reads type and title of a response's problem details (RFC 9457).

``detail`` and ``instance`` may repeat the payload of the message, so they are never read.
"""

import json

_CONTENT_TYPE = b"application/problem+json"
_CHARS_MAX = 120


def problem_text(headers: list[tuple[bytes, bytes]], body: bytes) -> str:
    """Return type and title, each on one line and cut; empty if the response has no problem details."""
    named = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    if named.partition(b";")[0].strip().lower() != _CONTENT_TYPE:
        return ""
    try:
        return members_text(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def members_text(members: object) -> str:
    """Return type and title of problem details that are read already; empty if they are none."""
    if not isinstance(members, dict):
        return ""
    return ", ".join(filter(None, (_line(members.get(name)) for name in ("type", "title"))))


def _line(member: object) -> str:
    text = " ".join(member.split()) if isinstance(member, str) else ""
    return "".join(filter(str.isprintable, text))[:_CHARS_MAX]
